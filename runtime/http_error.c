/* http_error.c - what libevent answers by itself, in the form of OpenAI's API.
**
** libevent refuses what it cannot read (no HTTP, too large headers, a method without a name) with a
** page of HTML, and its 2.1 has no call to change that. So the outgoing bytes of a connection are
** looked at when some are added: while the thread says nothing, they are libevent's own, and a page
** of an error among them is written anew before it is sent.
**
**   arrive, orders    speaking = 1, bytes, speaking = 0      ours: left alone
**   libevent          HTTP/1.1 400 .. <HTML> .. </HTML>      ours from here on
*/
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http_inner.h"

/* A page is some 300 bytes; a 100 Continue that is not sent yet may stand before it. */
enum { PAGE_BYTES_MAX = 1024 };
static const char page_end[] = "</HTML>\n";

/* Where the last answer in `text` begins: behind an interim one, if there is any. */
static const char *last_answer(const char *text) {
  const char *behind = strncmp(text, "HTTP/1.", 7) == 0 && strncmp(text + 8, " 1", 2) == 0
                           ? strstr(text, "\r\n\r\n")
                           : NULL;
  return behind == NULL ? text : behind + 4;
}

static void explain(const tl_http *server, int status, char *out, size_t bytes) {
  switch (status) {
    case 413:
      snprintf(out, bytes, "the body has more than %lld bytes, or its chunks cannot be read",
               (long long)server->body_bytes);
      return;
    case 417: snprintf(out, bytes, "of Expect, only 100-continue is done"); return;
    case 501: snprintf(out, bytes, "no such method: GET and POST are answered here"); return;
    default:
      snprintf(out, bytes,
               "this is no HTTP/1.1 request that can be read, or its headers have more than %lld "
               "bytes",
               (long long)server->header_bytes);
  }
}

/* The page in `text` becomes an answer of ours. Returns its status, 0 where it is no page. */
static int32_t write_anew(const tl_http *server, char *text, struct evbuffer *out) {
  const char *answer = last_answer(text);
  char reason[64] = "", message[160], body[320];
  int status = 0;
  if (sscanf(answer, "HTTP/1.%*1d %3d %63[^\r\n]", &status, reason) != 2) return 0;
  explain(server, status, message, sizeof message);
  const int bytes = snprintf(body, sizeof body, TL_HTTP_ERROR, message,
                             status >= 500 ? "server_error" : "invalid_request_error");
  evbuffer_add(out, text, (size_t)(answer - text));
  evbuffer_add_printf(out,
                      "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n"
                      "Content-Length: %d\r\nConnection: close\r\n\r\n%s",
                      status, reason, bytes, body);
  return status;
}

static void look(struct evbuffer *output, const struct evbuffer_cb_info *info, void *given) {
  tl_http *server = given;
  char text[PAGE_BYTES_MAX + 1];
  const size_t bytes = evbuffer_get_length(output), end = sizeof page_end - 1;
  if (server->speaking || info->n_added == 0 || bytes > PAGE_BYTES_MAX || bytes < end) return;
  evbuffer_copyout(output, text, bytes);
  text[bytes] = 0;
  if (memcmp(text + bytes - end, page_end, end) != 0) return;
  struct evbuffer *anew = evbuffer_new();
  const int32_t status = anew == NULL ? 0 : write_anew(server, text, anew);
  if (status != 0) {
    server->speaking = 1; /* this callback sees what it adds, too */
    evbuffer_drain(output, bytes);
    evbuffer_add_buffer(output, anew);
    server->speaking = 0;
    tl_http_count(server, status);
  }
  if (anew != NULL) evbuffer_free(anew);
}

void tl_http_watch(tl_http *server, struct bufferevent *stream) {
  if (stream != NULL) evbuffer_add_cb(bufferevent_get_output(stream), look, server);
}
