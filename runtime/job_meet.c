/* job_meet.c - rank 0 listens, the others dial and say who they are. */
#include "job_meet.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wire.h"
#include "world.h"

enum { ADDRESSES = 512, PORTS = 16, HELLO = 1, WELCOME = 2, REPORT_S = 10, RETRY_MS = 100 };
enum { CALLERS = 64, HELLO_S = 10 };

typedef struct place {
  char addresses[ADDRESSES];
  int32_t port, tries;
} place;

typedef struct hello {
  int32_t rank, world;
} hello;

/* Who has dialled and is not known yet. Anybody may: each is heard as far as it has spoken, and
** none keeps another waiting. */
typedef struct caller {
  int socket;
  int64_t since, got;
  hello said;
} caller;

typedef struct hall {
  int listener;
  int32_t count;
  caller callers[CALLERS];
} hall;

static double seconds_since(int64_t start) { return (double)(tl_now_ns() - start) / 1e9; }

static void list_missing(const int *sockets, int32_t world, char *out, size_t bytes) {
  size_t used = 0;
  out[0] = '\0';
  for (int32_t r = 1; r < world && used < bytes; r++)
    if (sockets[r] < 0)
      used += (size_t)snprintf(out + used, bytes - used, "%s%d", used > 0 ? ", " : "", r);
}

static void send_away(hall *h, int32_t i) {
  tl_wire_close(h->callers[i].socket);
  h->callers[i] = h->callers[--h->count]; /* the order is not kept: `since` tells who is oldest */
}

/* Hears caller i, who is admitted, sent away, or has not said all. 1: a rank has come. */
static int hear(const tl_job_meeting *m, hall *h, int32_t i, int *sockets) {
  caller *c = &h->callers[i];
  const hello *said = &c->said;
  const int heard = tl_wire_hear(c->socket, HELLO, &c->said, sizeof c->said, &c->got);
  if (heard == 0 && seconds_since(c->since) < HELLO_S) return 0;
  if (heard == 1 && said->world == m->world && said->rank >= 1 && said->rank < m->world &&
      sockets[said->rank] < 0 && tl_wire_send(c->socket, WELCOME, "", 0) == TL_OK) {
    sockets[said->rank] = c->socket;
    h->callers[i] = h->callers[--h->count];
    return 1;
  }
  send_away(h, i);
  return 0;
}

/* A rank says who it is at once, so that of a full hall it is the oldest caller who leaves. */
static tl_status let_in(hall *h) {
  int32_t oldest = 0;
  int s = -1;
  TL_TRY(tl_wire_accept(h->listener, 0, &s));
  if (s < 0) return TL_OK;
  for (int32_t i = 1; i < h->count; i++)
    if (h->callers[i].since < h->callers[oldest].since) oldest = i;
  if (h->count == CALLERS) send_away(h, oldest);
  h->callers[h->count++] = (caller){.socket = s, .since = tl_now_ns()};
  return TL_OK;
}

/* Waits until somebody comes or says something, and hears all who are there. */
static tl_status attend(const tl_job_meeting *m, hall *h, int *sockets, int32_t *here) {
  struct pollfd list[CALLERS + 1] = {
      {.fd = h->listener, .events = POLLIN}
  };
  for (int32_t i = 0; i < h->count; i++)
    list[i + 1] = (struct pollfd){.fd = h->callers[i].socket, .events = POLLIN};
  if (poll(list, (nfds_t)h->count + 1, RETRY_MS) > 0 && list[0].revents != 0) TL_TRY(let_in(h));
  for (int32_t i = h->count - 1; i >= 0; i--) *here += hear(m, h, i, sockets);
  return TL_OK;
}

static tl_status receive_ranks(const tl_job_meeting *m, hall *h, int *sockets) {
  const int64_t start = tl_now_ns();
  double reported = 0;
  char missing[256];
  for (int32_t here = 1; here < m->world;) {
    TL_TRY(attend(m, h, sockets, &here));
    if (here == m->world) break;
    list_missing(sockets, m->world, missing, sizeof missing);
    if (seconds_since(start) > m->start_s)
      return tl_fail(TL_LOST, "%d of %d ranks have come within %.3g s; missing: %s", here, m->world,
                     m->start_s, missing);
    if (seconds_since(start) - reported < REPORT_S) continue;
    reported = seconds_since(start);
    fprintf(stderr, "waiting for ranks since %.0f s; missing: %s\n", reported, missing);
  }
  return TL_OK;
}

static tl_status gather(const tl_job_meeting *m, int listener, int *sockets) {
  hall h = {.listener = listener};
  const tl_status status = receive_ranks(m, &h, sockets);
  while (h.count > 0) send_away(&h, h.count - 1);
  return status;
}

/* Tries every address and port once. */
static tl_status dial_once(const tl_job_meeting *m, const place *where, int *out) {
  char list[ADDRESSES], *rest = NULL;
  snprintf(list, sizeof list, "%s", where->addresses);
  for (char *a = strtok_r(list, " ", &rest); a != NULL; a = strtok_r(NULL, " ", &rest)) {
    for (int32_t i = 0; i < where->tries; i++) {
      const hello h = {m->rank, m->world};
      tl_frame frame;
      int s = -1;
      TL_TRY(tl_wire_dial(a, where->port + i, &s));
      if (s < 0) continue;
      if (tl_wire_send(s, HELLO, &h, sizeof h) == TL_OK && tl_wire_receive(s, 0, &frame) == TL_OK) {
        free(frame.data);
        *out = s;
        return TL_OK;
      }
      tl_wire_close(s);
    }
  }
  return TL_OK;
}

static tl_status join(const tl_job_meeting *m, const place *where, int *out) {
  const int64_t start = tl_now_ns();
  for (;;) {
    TL_TRY(dial_once(m, where, out));
    if (*out >= 0) return TL_OK;
    if (seconds_since(start) > m->start_s)
      return tl_fail(TL_LOST, "rank %d did not find rank 0 at %s, port %d, within %.3g s", m->rank,
                     where->addresses, where->port, m->start_s);
    nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
  }
}

static tl_status meet(const tl_job_meeting *m, int *listener, int *sockets) {
  place where = {.port = 0, .tries = 1};
  if (m->mover == NULL) {
    where.port = m->port + 1, where.tries = PORTS;
    snprintf(where.addresses, sizeof where.addresses, "%s", m->address);
  }
  if (m->rank == 0) {
    TL_TRY(tl_wire_listen(where.port, where.tries, listener, &where.port));
    if (m->mover != NULL) tl_wire_addresses(where.addresses, sizeof where.addresses);
  }
  if (m->mover != NULL && m->mover->share(&where, sizeof where))
    return tl_fail(TL_COMM, "%s", m->mover->error());
  return m->rank == 0 ? gather(m, *listener, sockets) : join(m, &where, &sockets[0]);
}

tl_status tl_job_meet(const tl_job_meeting *m, int *sockets) {
  int listener = -1;
  for (int32_t r = 0; r < m->world; r++) sockets[r] = -1;
  const tl_status status = meet(m, &listener, sockets);
  tl_wire_close(listener);
  for (int32_t r = 0; status != TL_OK && r < m->world; r++) tl_wire_close(sockets[r]);
  return status;
}
