/* job_meet.c - rank 0 listens, the others dial and say who they are. */
#include "job_meet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "wire.h"
#include "world.h"

enum { ADDRESSES = 512, PORTS = 16, HELLO = 1, WELCOME = 2, REPORT_S = 10, RETRY_MS = 100 };

typedef struct place {
  char addresses[ADDRESSES];
  int32_t port, tries;
} place;

typedef struct hello {
  int32_t rank, world;
} hello;

static double seconds_since(int64_t start) { return (double)(tl_now_ns() - start) / 1e9; }

static void list_missing(const int *sockets, int32_t world, char *out, size_t bytes) {
  size_t used = 0;
  out[0] = '\0';
  for (int32_t r = 1; r < world && used < bytes; r++)
    if (sockets[r] < 0)
      used += (size_t)snprintf(out + used, bytes - used, "%s%d", used > 0 ? ", " : "", r);
}

/* A caller that is no rank of this run is sent away; 1: it is one. */
static int admit(const tl_job_meeting *m, int *sockets, int s) {
  tl_frame frame;
  hello h = {-1, -1};
  if (tl_wire_receive(s, &frame) != TL_OK) return 0;
  if (frame.kind == HELLO && frame.bytes == sizeof h) memcpy(&h, frame.data, sizeof h);
  free(frame.data);
  if (h.world != m->world || h.rank < 1 || h.rank >= m->world || sockets[h.rank] >= 0) return 0;
  if (tl_wire_send(s, WELCOME, "", 0) != TL_OK) return 0;
  sockets[h.rank] = s;
  return 1;
}

static tl_status gather(const tl_job_meeting *m, int listener, int *sockets) {
  const int64_t start = tl_now_ns();
  double reported = 0;
  char missing[256];
  for (int32_t here = 1; here < m->world;) {
    int s = -1;
    TL_TRY(tl_wire_accept(listener, RETRY_MS, &s));
    if (s >= 0 && admit(m, sockets, s)) {
      here++;
      continue;
    }
    tl_wire_close(s);
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
      if (tl_wire_send(s, HELLO, &h, sizeof h) == TL_OK && tl_wire_receive(s, &frame) == TL_OK) {
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
