/* http_inner.h - what the two halves of the server share.
**
**   http.c          the owner's side: open, next, answer; queues under one lock
**   http_thread.c   the thread's side: libevent; it alone touches connections
**   http_error.c    the same thread: what libevent refuses by itself
**
**   owner  -- orders -->  thread        an eventfd wakes whoever waits
**   owner  <-- events --  thread
*/
#ifndef TL_HTTP_INNER_H
#define TL_HTTP_INNER_H

#include <pthread.h>

#include "http.h"

enum { TL_HTTP_REFUSED = 599 };

/* A request or a farewell on its way to the owner; method, path and body lie behind it. */
typedef struct tl_http_news {
  struct tl_http_news *next;
  tl_http_event event;
} tl_http_news;

/* A part of an answer on its way to the thread; type, allow and text lie behind it. */
typedef struct tl_http_order {
  struct tl_http_order *next;
  int64_t id;
  tl_http_reply reply;
} tl_http_order;

typedef struct tl_http_text {
  struct tl_http_text *next;
  char *path, *type, *text;
  int64_t bytes;
  int open;
} tl_http_text;

struct tl_http {
  pthread_t thread;
  int32_t port, timeout_s, connections, open_most;
  int64_t body_bytes, header_bytes;
  char *key;
  int to_owner, to_thread; /* eventfds */
  tl_http_news *told;      /* what the last tl_http_next gave */

  pthread_mutex_t lock; /* guards what follows */
  tl_http_news *news, **news_end;
  tl_http_order *orders, **orders_end;
  tl_http_text *pages;
  int refusing, stopping;
  int64_t refused[TL_HTTP_REFUSED + 1]; /* by status */

  struct tl_http_loop *loop; /* the thread's own */
  int speaking;              /* too: what is sent now is ours, not libevent's */
};

/* An error as the API has it, of a message without escapes and a type. */
#define TL_HTTP_ERROR \
  "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}\n"

/* Binds the address and makes the loop; the caller starts tl_http_run on a thread. */
tl_status tl_http_listen(tl_http *server, const char *host, int32_t port);
void *tl_http_run(void *server);
void tl_http_unlisten(tl_http *server); /* of a loop that does not run; NULL loop is fine */
/* From now on libevent's own refusals on this connection are JSON; NULL is allowed. */
struct bufferevent;
void tl_http_watch(tl_http *server, struct bufferevent *stream);
void tl_http_count(tl_http *server, int32_t status); /* one more refusal by the thread */

/* A request, or with a method of NULL the farewell of `id`; NULL without memory. */
tl_http_news *tl_http_news_new(int64_t id, const char *method, const char *path, const char *body,
                               int64_t bytes);
void tl_http_tell(tl_http *server, tl_http_news *news); /* to the owner, who frees it */

#endif
