/* wire.c - sockets. */
#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAGIC = 0x6b6c6474, BACKLOG = 256, PATIENCE_MS = 20000, DIAL_MS = 2000 };

typedef struct header {
  uint32_t magic;
  int32_t kind;
  int64_t bytes;
} header;

_Static_assert(sizeof(header) == TL_WIRE_HEAD, "a header has no gaps");

static tl_status gone(void) {
  return tl_fail(TL_COMM, "the connection ended: %s", errno == 0 ? "closed" : strerror(errno));
}

tl_status tl_wire_listen(int32_t first, int32_t tries, int *out, int32_t *port) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  if (s < 0) return tl_fail(TL_COMM, "no socket: %s", strerror(errno));
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  for (int32_t i = 0; i < tries; i++) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(first + i))};
    socklen_t size = sizeof a;
    if (bind(s, (struct sockaddr *)&a, sizeof a) != 0 || listen(s, BACKLOG) != 0) continue;
    getsockname(s, (struct sockaddr *)&a, &size);
    *out = s, *port = ntohs(a.sin_port);
    return TL_OK;
  }
  close(s);
  return tl_fail(TL_COMM, "no free port from %d to %d: %s", first, first + tries - 1,
                 strerror(errno));
}

static void prepare(int s) {
  const int yes = 1;
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

tl_status tl_wire_accept(int s, int32_t ms, int *out) {
  struct pollfd p = {.fd = s, .events = POLLIN};
  *out = -1;
  if (poll(&p, 1, ms) <= 0) return TL_OK;
  *out = accept4(s, NULL, NULL, SOCK_CLOEXEC);
  if (*out >= 0) prepare(*out);
  return TL_OK;
}

/* A connect that gives up, for an address that nobody answers for. */
static int dial(const struct addrinfo *a) {
  const int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s < 0) return -1;
  int error = 0;
  socklen_t size = sizeof error;
  struct pollfd p = {.fd = s, .events = POLLOUT};
  const int begun = connect(s, a->ai_addr, a->ai_addrlen) == 0 || errno == EINPROGRESS;
  if (!begun || poll(&p, 1, DIAL_MS) <= 0 ||
      getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    close(s);
    return -1;
  }
  return s;
}

tl_status tl_wire_dial(const char *host, int32_t port, int *out) {
  const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  struct addrinfo *list = NULL;
  char text[16];
  *out = -1;
  snprintf(text, sizeof text, "%d", port);
  const int error = getaddrinfo(host, text, &hints, &list);
  if (error != 0) return tl_fail(TL_COMM, "%s: %s", host, gai_strerror(error));
  for (const struct addrinfo *a = list; a != NULL && *out < 0; a = a->ai_next) *out = dial(a);
  freeaddrinfo(list);
  if (*out >= 0) prepare(*out);
  return TL_OK;
}

void tl_wire_close(int s) {
  if (s >= 0) close(s);
}

static int wait_for(int s, short events) {
  struct pollfd p = {.fd = s, .events = events};
  const int ready = poll(&p, 1, PATIENCE_MS);
  if (ready == 0) errno = ETIMEDOUT;
  return ready > 0 || (ready < 0 && errno == EINTR);
}

static tl_status send_bytes(int s, const char *data, int64_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(s, data, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      data += n, bytes -= n;
    } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(s, POLLOUT)) {
      return gone();
    }
  }
  return TL_OK;
}

static tl_status receive_bytes(int s, char *data, int64_t bytes) {
  while (bytes > 0) {
    errno = 0;
    const ssize_t n = recv(s, data, (size_t)bytes, MSG_DONTWAIT);
    if (n > 0) {
      data += n, bytes -= n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || !wait_for(s, POLLIN)) {
      return gone();
    }
  }
  return TL_OK;
}

tl_status tl_wire_send(int s, int32_t kind, const void *data, int64_t bytes) {
  const header h = {MAGIC, kind, bytes};
  TL_TRY(send_bytes(s, (const char *)&h, sizeof h));
  return send_bytes(s, data, bytes);
}

tl_status tl_wire_receive(int s, int64_t most, tl_frame *out) {
  header h = {0};
  TL_TRY(receive_bytes(s, (char *)&h, sizeof h));
  if (h.magic != MAGIC || h.bytes < 0 || h.bytes > most)
    return tl_fail(TL_COMM, "what came is no message of a run: begins with %08x, has %lld bytes",
                   h.magic, (long long)h.bytes);
  char *data = malloc((size_t)h.bytes + 1);
  if (data == NULL) return tl_fail(TL_MEMORY, "no room for %lld bytes", (long long)h.bytes);
  const tl_status status = receive_bytes(s, data, h.bytes);
  if (status != TL_OK) {
    free(data);
    return status;
  }
  data[h.bytes] = '\0';
  *out = (tl_frame){h.kind, h.bytes, data};
  return TL_OK;
}

int tl_wire_hear(int s, int32_t kind, void *data, int64_t bytes, int64_t *got) {
  const header expected = {MAGIC, kind, bytes};
  while (*got < TL_WIRE_HEAD + bytes) {
    char head[TL_WIRE_HEAD];
    const int in_head = *got < TL_WIRE_HEAD;
    char *to = in_head ? head : (char *)data + (*got - TL_WIRE_HEAD);
    const ssize_t n =
        recv(s, to, (size_t)((in_head ? 0 : bytes) + TL_WIRE_HEAD - *got), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) return -1;
    if (in_head && memcmp(head, (const char *)&expected + *got, (size_t)n) != 0) return -1;
    *got += n;
  }
  return 1;
}

static void append_addresses(char *out, int32_t bytes, const struct ifaddrs *list, int loopback) {
  for (const struct ifaddrs *a = list; a != NULL; a = a->ifa_next) {
    char text[INET_ADDRSTRLEN];
    if (a->ifa_addr == NULL || a->ifa_addr->sa_family != AF_INET) continue;
    if (!(a->ifa_flags & IFF_UP) || !(a->ifa_flags & IFF_LOOPBACK) != !loopback) continue;
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)a->ifa_addr)->sin_addr, text,
              sizeof text);
    const size_t used = strlen(out);
    snprintf(out + used, (size_t)bytes - used, "%s%s", used > 0 ? " " : "", text);
  }
}

void tl_wire_addresses(char *out, int32_t bytes) {
  struct ifaddrs *list = NULL;
  out[0] = '\0';
  if (getifaddrs(&list) != 0) return;
  append_addresses(out, bytes, list, 0);
  append_addresses(out, bytes, list, 1);
  freeifaddrs(list);
}
