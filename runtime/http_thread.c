/* http_thread.c - the thread's side of the server: libevent's loop and its HTTP.
**
**   arrive   page | refusal | a request for the owner     one at a time from each connection
**   take     the owner's orders, in their order
**   tick     ten times a second: who has left, though nothing is sent to it, or does not read?
**
** A connection that is waited on is not read (libevent stops it, so pipelined requests come one
** after the other), and libevent then does not see it close: tick asks the system.
*/
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http_inner.h"

static const struct timeval tick_time = {.tv_usec = 100000};
enum { BACKLOG = 128, CLOSING_TICKS = 20 };

/* A request that has no full answer yet. Requests that are answered, and being sent, stay too. */
typedef struct waiting {
  struct waiting *next;
  tl_http *server;
  int64_t id;
  struct evhttp_request *request;
  tl_http_news *farewell; /* made with the request, so that it never lacks memory */
  int begun, answered;
  int64_t added, unsent; /* since the last tick; then */
  int silent_ticks;      /* in which nothing of it was sent, though something was there */
} waiting;

struct tl_http_loop {
  struct event_base *base;
  struct evhttp *http;
  struct evconnlistener *listener; /* http owns it once it is bound */
  struct event *tick, *orders;
  waiting *list;
  int64_t last_id;
  int32_t unanswered;
  int bound, closing_ticks;
};

static waiting **find(struct tl_http_loop *loop, int64_t id) {
  waiting **at = &loop->list;
  while (*at != NULL && (*at)->id != id) at = &(*at)->next;
  return at;
}

static void forget(waiting *w) {
  waiting **at = find(w->server->loop, w->id);
  *at = w->next;
  if (!w->answered) w->server->loop->unanswered--;
  free(w->farewell);
  free(w);
}

/* answers -----------------------------------------------------------------------------------*/

static void add_header(struct evhttp_request *request, const char *name, const char *value) {
  evhttp_add_header(evhttp_request_get_output_headers(request), name, value);
}

static void add_headers(struct evhttp_request *request, const char *type, int32_t retry_after) {
  char seconds[16];
  add_header(request, "Content-Type", type);
  snprintf(seconds, sizeof seconds, "%d", retry_after);
  if (retry_after > 0) add_header(request, "Retry-After", seconds);
}

/* HEAD is told how long the body would be. */
static void send_text(struct evhttp_request *request, int status, const char *text, int64_t bytes) {
  const int head = evhttp_request_get_command(request) == EVHTTP_REQ_HEAD;
  char length[24];
  snprintf(length, sizeof length, "%lld", (long long)bytes);
  if (head) add_header(request, "Content-Length", length);
  struct evbuffer *body = evbuffer_new();
  if (body != NULL && bytes > 0 && !head) evbuffer_add(body, text, (size_t)bytes);
  evhttp_send_reply(request, status, status == 429 ? "Too Many Requests" : NULL, body);
  if (body != NULL) evbuffer_free(body);
}

/* `message` needs no escapes. */
static void refuse(tl_http *server, struct evhttp_request *request, int status, const char *kind,
                   const char *message) {
  char text[512];
  const int bytes = snprintf(text, sizeof text, TL_HTTP_ERROR, message, kind);
  tl_http_count(server, status);
  add_headers(request, "application/json", status == 429 || status == 503 ? 1 : 0);
  if (status == 401) add_header(request, "WWW-Authenticate", "Bearer");
  send_text(request, status, text, bytes);
}

/* What arrives -------------------------------------------------------------------------------*/

/* Looks at every byte of what was given, whatever the first ones are. */
static int has_key(const tl_http *server, struct evhttp_request *request) {
  static const char before[] = "Bearer ";
  const char *given =
      evhttp_find_header(evhttp_request_get_input_headers(request), "Authorization");
  if (server->key == NULL) return 1;
  if (given == NULL || evutil_ascii_strncasecmp(given, before, sizeof before - 1) != 0) return 0;
  given += sizeof before - 1;
  const size_t bytes = strlen(given), wanted = strlen(server->key);
  unsigned difference = bytes != wanted;
  for (size_t i = 0; i < bytes; i++)
    difference |= (unsigned char)given[i] ^ (unsigned char)server->key[wanted > 0 ? i % wanted : 0];
  return difference == 0;
}

static const char *method_of(struct evhttp_request *request) {
  switch (evhttp_request_get_command(request)) {
    case EVHTTP_REQ_GET: return "GET";
    case EVHTTP_REQ_POST: return "POST";
    case EVHTTP_REQ_HEAD: return "HEAD";
    case EVHTTP_REQ_PUT: return "PUT";
    case EVHTTP_REQ_DELETE: return "DELETE";
    case EVHTTP_REQ_OPTIONS: return "OPTIONS";
    case EVHTTP_REQ_PATCH: return "PATCH";
    default: return "OTHER";
  }
}

/* Whether the path is a page's, which then has been answered. */
static int answer_page(tl_http *server, struct evhttp_request *request, const char *path) {
  const enum evhttp_cmd_type command = evhttp_request_get_command(request);
  if (command != EVHTTP_REQ_GET && command != EVHTTP_REQ_HEAD) return 0;
  pthread_mutex_lock(&server->lock);
  const tl_http_text *page = server->pages;
  while (page != NULL && strcmp(page->path, path) != 0) page = page->next;
  if (page != NULL && (page->open || has_key(server, request))) {
    add_headers(request, page->type, 0);
    send_text(request, 200, page->text, page->bytes);
    pthread_mutex_unlock(&server->lock);
    return 1;
  }
  pthread_mutex_unlock(&server->lock);
  return 0;
}

/* The connection of a request ends. libevent frees the request with it, unless it has let it go. */
static void on_close(struct evhttp_connection *connection, void *given) {
  waiting *w = given;
  (void)connection;
  if (!w->answered) {
    tl_http_tell(w->server, w->farewell);
    w->farewell = NULL;
    if (evhttp_request_get_connection(w->request) == NULL) evhttp_request_free(w->request);
  }
  forget(w);
}

static void on_sent(struct evhttp_request *request, void *given) {
  struct evhttp_connection *connection = evhttp_request_get_connection(request);
  if (connection != NULL) evhttp_connection_set_closecb(connection, NULL, NULL);
  forget(given);
}

static void hand_over(tl_http *server, struct evhttp_request *request, const char *path) {
  struct tl_http_loop *loop = server->loop;
  const int64_t id = ++loop->last_id;
  waiting *w = malloc(sizeof *w);
  struct evbuffer *body = evhttp_request_get_input_buffer(request);
  const int64_t bytes = (int64_t)evbuffer_get_length(body);
  const unsigned char *text = bytes > 0 ? evbuffer_pullup(body, -1) : NULL;
  tl_http_news *farewell = tl_http_news_new(id, NULL, NULL, NULL, 0);
  tl_http_news *news = tl_http_news_new(id, method_of(request), path, (const char *)text, bytes);
  if (w == NULL || farewell == NULL || news == NULL || (bytes > 0 && text == NULL)) {
    free(w);
    free(farewell);
    free(news);
    refuse(server, request, 503, "server_error", "no memory for this request");
    return;
  }
  *w = (waiting){
      .next = loop->list, .server = server, .id = id, .request = request, .farewell = farewell};
  loop->list = w;
  loop->unanswered++;
  evhttp_connection_set_closecb(evhttp_request_get_connection(request), on_close, w);
  evhttp_request_set_on_complete_cb(request, on_sent, w);
  tl_http_tell(server, news);
  evbuffer_drain(body, (size_t)bytes);
}

static void take_in(tl_http *server, struct evhttp_request *request) {
  struct tl_http_loop *loop = server->loop;
  const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(request);
  const char *path = uri != NULL ? evhttp_uri_get_path(uri) : NULL;
  if (path == NULL || path[0] == 0) path = "/";
  if (answer_page(server, request, path)) return;
  pthread_mutex_lock(&server->lock);
  const int refusing = server->refusing;
  pthread_mutex_unlock(&server->lock);
  const int64_t bytes = (int64_t)evbuffer_get_length(evhttp_request_get_input_buffer(request));
  char text[128];
  if (!has_key(server, request)) {
    refuse(server, request, 401, "invalid_request_error",
           "this server wants its key: Authorization: Bearer KEY");
  } else if (refusing) {
    refuse(server, request, 503, "server_error",
           "this server ends when it has answered what it has");
  } else if (bytes > server->body_bytes) {
    snprintf(text, sizeof text, "the body has %lld bytes, and at most %lld are read",
             (long long)bytes, (long long)server->body_bytes);
    refuse(server, request, 413, "invalid_request_error", text);
  } else if (loop->unanswered >= server->open_most) {
    snprintf(text, sizeof text, "%d requests are unanswered, which is all that may wait",
             loop->unanswered);
    refuse(server, request, 429, "rate_limit_error", text);
  } else {
    hand_over(server, request, path);
  }
}

static void arrive(struct evhttp_request *request, void *given) {
  tl_http *server = given;
  server->speaking = 1;
  take_in(server, request);
  server->speaking = 0;
}

/* What the owner answers ---------------------------------------------------------------------*/

/* While a stream waits for its next part, its connection is silent on both sides, which is not the
** client's fault: libevent's timers rest then, and is_lost looks after it. After the last part they
** run again. */
static void set_timers(tl_http *server, struct evhttp_request *request, int run) {
  struct evhttp_connection *connection = evhttp_request_get_connection(request);
  if (connection == NULL) return;
  if (run)
    evhttp_connection_set_timeout(connection, server->timeout_s);
  else
    bufferevent_set_timeouts(evhttp_connection_get_bufferevent(connection), NULL, NULL);
}

static void carry_out(tl_http *server, const tl_http_order *order) {
  waiting *w = *find(server->loop, order->id);
  const tl_http_reply *reply = &order->reply;
  if (w == NULL || w->answered) return; /* its client has left */
  struct evhttp_request *request = w->request;
  if (reply->part == TL_HTTP_WHOLE || reply->part == TL_HTTP_LAST) {
    w->answered = 1;
    server->loop->unanswered--;
  }
  if (reply->part == TL_HTTP_WHOLE) {
    add_headers(request, reply->type, reply->retry_after);
    if (reply->allow != NULL) add_header(request, "Allow", reply->allow);
    send_text(request, reply->status, reply->text, reply->bytes);
    return;
  }
  if (reply->part == TL_HTTP_FIRST && !w->begun) {
    w->begun = 1;
    add_headers(request, reply->type, reply->retry_after);
    add_header(request, "Cache-Control", "no-cache");
    evhttp_send_reply_start(request, reply->status, NULL);
    set_timers(server, request, 0);
  }
  struct evbuffer *text = evbuffer_new();
  w->added += reply->bytes;
  if (text != NULL && reply->bytes > 0 &&
      evbuffer_add(text, reply->text, (size_t)reply->bytes) == 0)
    evhttp_send_reply_chunk(request, text);
  if (text != NULL) evbuffer_free(text);
  if (reply->part != TL_HTTP_LAST) return;
  set_timers(server, request, 1);
  evhttp_send_reply_end(request);
}

static void take_orders(int file, short what, void *given) {
  tl_http *server = given;
  uint64_t count;
  (void)what;
  while (read(file, &count, sizeof count) < 0 && errno == EINTR) continue;
  pthread_mutex_lock(&server->lock);
  tl_http_order *order = server->orders;
  server->orders = NULL;
  server->orders_end = &server->orders;
  const int stopping = server->stopping;
  pthread_mutex_unlock(&server->lock);
  server->speaking = 1;
  while (order != NULL) {
    tl_http_order *next = order->next;
    carry_out(server, order);
    free(order);
    order = next;
  }
  server->speaking = 0;
  if (!stopping) return;
  server->loop->closing_ticks = 1;
  for (waiting *w = server->loop->list, *next; w != NULL; w = next) {
    next = w->next;
    if (!w->answered) evhttp_connection_free(evhttp_request_get_connection(w->request));
  }
}

/* The loop -----------------------------------------------------------------------------------*/

/* Connections that are read or written have an event, those that are waited on none; beside them,
** without the listener's, there are the tick's and the orders'. A connection of which both is done
** counts twice for that moment: then fewer are taken in, never more. `more` begin just now. */
static void listen_if_room(tl_http *server, int32_t more) {
  struct tl_http_loop *loop = server->loop;
  evconnlistener_disable(loop->listener);
  const int used = event_base_get_num_events(loop->base, EVENT_BASE_COUNT_ADDED) - 2;
  if (used + loop->unanswered + more < server->connections) evconnlistener_enable(loop->listener);
}

/* libevent takes in no other connection when this leaves the listener disabled. */
static struct bufferevent *connect_one(struct event_base *base, void *given) {
  listen_if_room(given, 1);
  struct bufferevent *stream = bufferevent_socket_new(base, -1, 0);
  tl_http_watch(given, stream);
  return stream;
}

/* No file is left for a connection: libevent would try again at once, for ever. A tick enables. */
static void on_listen_error(struct evconnlistener *listener, void *given) {
  (void)given;
  evconnlistener_disable(listener);
}

/* Whether the client has left, or has not read for too long. libevent's own timer begins anew with
** every part that is added; what it puts around a part only makes `unsent` larger. */
static int is_lost(waiting *w, struct bufferevent *stream) {
  struct pollfd socket = {.fd = bufferevent_getfd(stream), .events = POLLRDHUP};
  const int64_t unsent = (int64_t)evbuffer_get_length(bufferevent_get_output(stream));
  const int stuck = unsent > 0 && unsent >= w->unsent + w->added;
  w->silent_ticks = stuck ? w->silent_ticks + 1 : 0;
  w->unsent = unsent;
  w->added = 0;
  return w->silent_ticks > 10 * w->server->timeout_s || poll(&socket, 1, 0) > 0;
}

static void on_tick(int file, short what, void *given) {
  tl_http *server = given;
  struct tl_http_loop *loop = server->loop;
  (void)file, (void)what;
  listen_if_room(server, 0);
  for (waiting *w = loop->list, *next; w != NULL; w = next) {
    next = w->next;
    struct evhttp_connection *connection = evhttp_request_get_connection(w->request);
    if (w->answered || connection == NULL) continue;
    if (is_lost(w, evhttp_connection_get_bufferevent(connection)))
      evhttp_connection_free(connection); /* on_close forgets w */
  }
  if (loop->closing_ticks > 0 && (loop->list == NULL || loop->closing_ticks++ > CLOSING_TICKS))
    event_base_loopbreak(loop->base);
}

/* The address that the words mean; `bytes` is its size. */
static tl_status read_address(const char *host, int32_t port, struct sockaddr_storage *out,
                              int *bytes) {
  char text[128];
  *bytes = sizeof *out;
  memset(out, 0, sizeof *out);
  /* libevent reads no port 0 */
  snprintf(text, sizeof text, strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host,
           port == 0 ? 1 : port);
  if (evutil_parse_sockaddr_port(text, (struct sockaddr *)out, bytes) != 0)
    return tl_fail(TL_ARGUMENT, "%s is no address in numbers, such as 127.0.0.1 or ::1", host);
  if (out->ss_family == AF_INET6)
    ((struct sockaddr_in6 *)out)->sin6_port = htons((uint16_t)port);
  else
    ((struct sockaddr_in *)out)->sin_port = htons((uint16_t)port);
  return TL_OK;
}

static int32_t port_of(struct evconnlistener *listener) {
  struct sockaddr_storage address;
  socklen_t bytes = sizeof address;
  memset(&address, 0, sizeof address);
  getsockname(evconnlistener_get_fd(listener), (struct sockaddr *)&address, &bytes);
  return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                             : ((struct sockaddr_in *)&address)->sin_port);
}

/* Limits, and who is called; http owns the listener from here on. */
static int set_up(tl_http *server) {
  struct tl_http_loop *loop = server->loop;
  loop->http = evhttp_new(loop->base);
  loop->tick = event_new(loop->base, -1, EV_PERSIST, on_tick, server);
  loop->orders =
      event_new(loop->base, server->to_thread, EV_READ | EV_PERSIST, take_orders, server);
  if (loop->http == NULL || loop->tick == NULL || loop->orders == NULL) return 0;
  evhttp_set_max_headers_size(loop->http, server->header_bytes);
  evhttp_set_max_body_size(loop->http, 2 * server->body_bytes);
  evhttp_set_timeout(loop->http, server->timeout_s);
  evhttp_set_allowed_methods(loop->http, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD |
                                             EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                             EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
  evhttp_set_gencb(loop->http, arrive, server);
  evhttp_set_bevcb(loop->http, connect_one, server);
  if (evhttp_bind_listener(loop->http, loop->listener) == NULL) return 0;
  loop->bound = 1;
  return event_add(loop->tick, &tick_time) == 0 && event_add(loop->orders, NULL) == 0;
}

tl_status tl_http_listen(tl_http *server, const char *host, int32_t port) {
  struct tl_http_loop *loop = server->loop = calloc(1, sizeof *loop);
  struct sockaddr_storage address;
  int bytes;
  if (loop == NULL || (loop->base = event_base_new()) == NULL)
    return tl_fail(TL_MEMORY, "no memory for a server");
  TL_TRY(read_address(host, port, &address, &bytes));
  const unsigned flags = LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_CLOSE_ON_FREE;
  loop->listener = evconnlistener_new_bind(loop->base, NULL, NULL, flags, BACKLOG,
                                           (struct sockaddr *)&address, bytes);
  if (loop->listener == NULL) return tl_fail(TL_IO, "%s, port %d: %s", host, port, strerror(errno));
  server->port = port_of(loop->listener);
  evconnlistener_set_error_cb(loop->listener, on_listen_error);
  return set_up(server) ? TL_OK : tl_fail(TL_MEMORY, "no memory for a server");
}

void *tl_http_run(void *server) {
  event_base_dispatch(((tl_http *)server)->loop->base);
  return NULL;
}

void tl_http_unlisten(tl_http *server) {
  struct tl_http_loop *loop = server->loop;
  if (loop == NULL) return;
  if (loop->tick != NULL) event_free(loop->tick);
  if (loop->orders != NULL) event_free(loop->orders);
  if (loop->listener != NULL && !loop->bound) evconnlistener_free(loop->listener);
  if (loop->http != NULL) evhttp_free(loop->http); /* and its connections: on_close */
  if (loop->base != NULL) event_base_free(loop->base);
  free(loop);
  server->loop = NULL;
}
