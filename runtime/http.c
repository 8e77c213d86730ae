/* http.c - the owner's side of the server: queues under one lock, and an eventfd each way. */
#include "http_inner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void wake(int file) {
  const uint64_t one = 1;
  while (write(file, &one, sizeof one) < 0 && errno == EINTR) continue;
}

/* Copies `bytes` of `text` to *end and a zero behind them; moves *end. */
static char *append(char **end, const char *text, int64_t bytes) {
  char *start = *end;
  if (bytes > 0) memcpy(start, text, (size_t)bytes);
  start[bytes] = 0;
  *end += bytes + 1;
  return start;
}

static int64_t length(const char *text) { return text == NULL ? 0 : (int64_t)strlen(text); }

tl_http_news *tl_http_news_new(int64_t id, const char *method, const char *path, const char *body,
                               int64_t bytes) {
  const size_t size = (size_t)(length(method) + length(path) + bytes + 3);
  tl_http_news *news = malloc(sizeof *news + size);
  if (news == NULL) return NULL;
  *news = (tl_http_news){
      .event = {.id = id, .gone = method == NULL}
  };
  if (method == NULL) return news;
  char *end = (char *)(news + 1);
  news->event.method = append(&end, method, length(method));
  news->event.path = append(&end, path, length(path));
  news->event.body = append(&end, body, bytes);
  news->event.bytes = bytes;
  return news;
}

void tl_http_tell(tl_http *server, tl_http_news *news) {
  pthread_mutex_lock(&server->lock);
  *server->news_end = news;
  server->news_end = &news->next;
  pthread_mutex_unlock(&server->lock);
  wake(server->to_owner);
}

static tl_http_news *take_news(tl_http *server) {
  pthread_mutex_lock(&server->lock);
  tl_http_news *news = server->news;
  if (news != NULL) server->news = news->next;
  if (server->news == NULL) server->news_end = &server->news;
  pthread_mutex_unlock(&server->lock);
  return news;
}

int tl_http_next(tl_http *server, double seconds, tl_http_event *out) {
  free(server->told);
  server->told = take_news(server);
  if (server->told == NULL && seconds > 0) {
    struct pollfd file = {.fd = server->to_owner, .events = POLLIN};
    uint64_t count;
    const double most = seconds < 1e6 ? seconds * 1000 : 1e9;
    if (poll(&file, 1, (int)most) > 0 && read(server->to_owner, &count, sizeof count) > 0)
      server->told = take_news(server);
  }
  if (server->told == NULL) return 0;
  *out = server->told->event;
  return 1;
}

tl_status tl_http_answer(tl_http *server, int64_t id, const tl_http_reply *reply) {
  const int64_t type = length(reply->type), allow = length(reply->allow);
  tl_http_order *order = malloc(sizeof *order + (size_t)(type + allow + reply->bytes + 3));
  if (order == NULL)
    return tl_fail(TL_MEMORY, "no memory for an answer of %lld bytes", (long long)reply->bytes);
  *order = (tl_http_order){.id = id, .reply = *reply};
  char *end = (char *)(order + 1);
  order->reply.type = append(&end, reply->type, type);
  if (reply->allow != NULL) order->reply.allow = append(&end, reply->allow, allow);
  order->reply.text = append(&end, reply->text, reply->bytes);
  pthread_mutex_lock(&server->lock);
  *server->orders_end = order;
  server->orders_end = &order->next;
  pthread_mutex_unlock(&server->lock);
  wake(server->to_thread);
  return TL_OK;
}

static void free_page(tl_http_text *page) {
  if (page == NULL) return;
  free(page->path);
  free(page->type);
  free(page->text);
  free(page);
}

tl_status tl_http_page(tl_http *server, const char *path, const char *type, const char *text,
                       int64_t bytes, int open) {
  tl_http_text *page = calloc(1, sizeof *page);
  if (page != NULL)
    *page = (tl_http_text){.path = strdup(path),
                           .type = strdup(type),
                           .text = malloc((size_t)bytes + 1),
                           .bytes = bytes,
                           .open = open};
  if (page == NULL || page->path == NULL || page->type == NULL || page->text == NULL) {
    free_page(page);
    return tl_fail(TL_MEMORY, "no memory for the page %s", path);
  }
  memcpy(page->text, text, (size_t)bytes);
  pthread_mutex_lock(&server->lock);
  tl_http_text **at = &server->pages;
  while (*at != NULL && strcmp((*at)->path, path) != 0) at = &(*at)->next;
  tl_http_text *old = *at;
  page->next = old == NULL ? NULL : old->next;
  *at = page;
  pthread_mutex_unlock(&server->lock);
  free_page(old);
  return TL_OK;
}

void tl_http_refuse(tl_http *server) {
  pthread_mutex_lock(&server->lock);
  server->refusing = 1;
  pthread_mutex_unlock(&server->lock);
}

int64_t tl_http_refused(tl_http *server, int32_t status) {
  if (status < 0 || status > TL_HTTP_REFUSED) return 0;
  pthread_mutex_lock(&server->lock);
  const int64_t count = server->refused[status];
  pthread_mutex_unlock(&server->lock);
  return count;
}

void tl_http_count(tl_http *server, int32_t status) {
  if (status < 0 || status > TL_HTTP_REFUSED) return;
  pthread_mutex_lock(&server->lock);
  server->refused[status]++;
  pthread_mutex_unlock(&server->lock);
}

int32_t tl_http_port(const tl_http *server) { return server->port; }

/* Frees all that no thread uses any more. */
static void release(tl_http *server) {
  tl_http_unlisten(server);
  free(server->told);
  while (server->news != NULL) free(take_news(server));
  while (server->orders != NULL) {
    tl_http_order *order = server->orders;
    server->orders = order->next;
    free(order);
  }
  while (server->pages != NULL) {
    tl_http_text *page = server->pages;
    server->pages = page->next;
    free_page(page);
  }
  if (server->to_owner >= 0) close(server->to_owner);
  if (server->to_thread >= 0) close(server->to_thread);
  pthread_mutex_destroy(&server->lock);
  free(server->key);
  free(server);
}

/* A signal belongs to the owner: the thread blocks them all, a broken pipe is an error code. */
static int start_thread(tl_http *server) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = pthread_create(&server->thread, NULL, tl_http_run, server);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed;
}

tl_status tl_http_open(const tl_http_options *options, tl_http **out) {
  tl_http *server = calloc(1, sizeof *server);
  if (server == NULL) return tl_fail(TL_MEMORY, "no memory for a server");
  server->news_end = &server->news;
  server->orders_end = &server->orders;
  server->body_bytes = options->body_bytes;
  server->header_bytes = options->header_bytes;
  server->connections = options->connections;
  server->open_most = options->open;
  server->timeout_s = options->timeout_s;
  server->key = options->key == NULL ? NULL : strdup(options->key);
  pthread_mutex_init(&server->lock, NULL);
  server->to_owner = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  server->to_thread = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  tl_status status = TL_OK;
  if (server->to_owner < 0 || server->to_thread < 0 || (options->key != NULL && !server->key))
    status = tl_fail(TL_MEMORY, "no memory or no file left for a server");
  if (status == TL_OK) status = tl_http_listen(server, options->host, options->port);
  if (status == TL_OK && start_thread(server) != 0)
    status = tl_fail(TL_MEMORY, "no thread left for a server");
  if (status != TL_OK) {
    release(server);
    return status;
  }
  *out = server;
  return TL_OK;
}

void tl_http_close(tl_http *server) {
  if (server == NULL) return;
  pthread_mutex_lock(&server->lock);
  server->stopping = 1;
  pthread_mutex_unlock(&server->lock);
  wake(server->to_thread);
  pthread_join(server->thread, NULL);
  release(server);
}
