/* http.h - a small HTTP/1.1 server on a thread of its own; libevent reads and writes the protocol.
**
**   thread   accept, parse, limits, key ---> page        answered at once from a text
**                                      \--> request 7   waits for its owner's answer
**   owner    tl_http_next -> request 7: POST /v1/completions, body
**            tl_http_answer(7, whole)                    or FIRST, PART, PART, LAST: a stream
**            tl_http_next -> 7 is gone                   its client has left: stop working for it
**
** One thread owns a server: it alone calls what stands here. It may be busy for seconds; pages,
** limits and refusals are the server thread's work and do not wait for it. Texts are copied.
**
** What the thread refuses by itself, with a reason as JSON in the form of OpenAI's API:
**
**   401   no key, or another one (compared in a time that depends on the length of the header only)
**   413   a body of more than body_bytes; beyond twice as many, or where its chunks cannot be read,
**         the connection is cut off early
**   429   `open` requests are unanswered; Retry-After says when to come again
**   503   after tl_http_refuse
**   400   no HTTP, or more than header_bytes of headers
**   417   an Expect that is not 100-continue
**   501   a method that HTTP/1.1 does not know, or that nothing here is asked by
**
** A client that says nothing, or does not read its answer, for timeout_s is dropped. Connections
** over `connections` wait in the system's queue until others end. A request may be answered after
** its client has left: that is no error.
*/
#ifndef TL_HTTP_H
#define TL_HTTP_H

#include <stdint.h>

#include "status.h"

typedef struct tl_http tl_http;

typedef struct tl_http_options {
  const char *host; /* an address in numbers: "127.0.0.1", "::1", "0.0.0.0" */
  int32_t port;     /* 0: one that is free */
  int64_t body_bytes, header_bytes;
  int32_t connections, open;
  int32_t timeout_s;
  const char *key; /* NULL: none; else Authorization: Bearer KEY is needed, but for open pages */
} tl_http_options;

/* Texts last until the next call of tl_http_next. */
typedef struct tl_http_event {
  int64_t id; /* of the request, from 1 */
  int gone;   /* its client has left; the fields below are NULL */
  const char *method, *path, *body;
  int64_t bytes; /* of the body; a zero byte stands behind it */
} tl_http_event;

typedef enum tl_http_part { TL_HTTP_WHOLE, TL_HTTP_FIRST, TL_HTTP_MORE, TL_HTTP_LAST } tl_http_part;

/* `status`, `type` and `retry_after` (seconds, 0: no such header) count in WHOLE and FIRST, `allow`
** in WHOLE: the methods that a path is asked by, which go with status 405; NULL: no such header. */
typedef struct tl_http_reply {
  tl_http_part part;
  int32_t status, retry_after;
  const char *type, *allow;
  const char *text;
  int64_t bytes;
} tl_http_reply;

/* TL_IO with address and reason when the port cannot be had. */
tl_status tl_http_open(const tl_http_options *options, tl_http **out);
int32_t tl_http_port(const tl_http *server);

/* From now on GET `path` is answered with `text`. Pages that are not `open` need the key. */
tl_status tl_http_page(tl_http *server, const char *path, const char *type, const char *text,
                       int64_t bytes, int open);
/* Waits at most `seconds` for a request or a farewell; 0: none, also when a signal came. */
int tl_http_next(tl_http *server, double seconds, tl_http_event *out);
tl_status tl_http_answer(tl_http *server, int64_t id, const tl_http_reply *reply);

/* How often the thread itself has answered with `status`, one of the list above. */
int64_t tl_http_refused(tl_http *server, int32_t status);
/* New requests are answered with 503 from now on; pages still work. */
void tl_http_refuse(tl_http *server);
/* Sends what has been answered, for two seconds at most, and ends the thread. NULL is allowed. */
void tl_http_close(tl_http *server);

#endif
