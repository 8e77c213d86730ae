/* mailbox.c - slots and two counters. A slot belongs to one side at a time, so bytes are copied
** with the gate unlocked. */
#include "mailbox.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"

struct tl_mailbox {
  tl_gate gate;
  tl_world *world;
  int32_t source, target;
  int64_t bytes;           /* of a slot */
  uint64_t sent, received; /* guarded by the gate, as `held` */
  int64_t held[TL_SLOTS];  /* bytes of the message in a slot */
  char *slots;
};

static char *slot_of(const tl_mailbox *m, uint64_t message) {
  return m->slots + (int64_t)(message % TL_SLOTS) * m->bytes;
}

tl_status tl_mailbox_open(tl_world *world, int32_t source, int32_t target, int64_t bytes,
                          tl_mailbox **out) {
  tl_mailbox *m = calloc(1, sizeof *m);
  if (m == NULL) return tl_fail(TL_MEMORY, "no room for a mailbox");
  void *slots;
  const tl_status status = tl_memory_alloc(TL_MEMORY_COMM, TL_SLOTS * bytes, &slots);
  if (status != TL_OK) {
    free(m);
    return status;
  }
  m->world = world, m->source = source, m->target = target, m->bytes = bytes, m->slots = slots;
  tl_gate_open(world, &m->gate);
  *out = m;
  return TL_OK;
}

void tl_mailbox_close(tl_mailbox *m) {
  if (m == NULL) return;
  tl_gate_close(&m->gate);
  tl_memory_free(m->slots);
  free(m);
}

/* Waits, as `rank`, until there is a free (full 0) or a full (full 1) slot. Returns with the gate
** locked if there is, and unlocked on failure. */
static tl_status enter(tl_mailbox *m, int32_t rank, int32_t full) {
  const int32_t peer = full ? m->source : m->target;
  int32_t late = 0, ready = 0;
  pthread_mutex_lock(&m->gate.mutex);
  for (;;) {
    const uint64_t count = m->sent - m->received;
    ready = full ? count > 0 : count < TL_SLOTS;
    if (ready || tl_world_aborted(m->world)) break;
    late = !tl_gate_wait(m->world, &m->gate, rank, peer);
    if (late) break;
  }
  if (ready) {
    tl_gate_done(m->world, rank);
    return TL_OK;
  }
  pthread_mutex_unlock(&m->gate.mutex);
  return late ? tl_world_silent(m->world, rank, peer) : tl_world_stopped(m->world);
}

static void leave(tl_mailbox *m, uint64_t *counter) {
  (*counter)++;
  pthread_cond_signal(&m->gate.open);
  pthread_mutex_unlock(&m->gate.mutex);
}

tl_status tl_mailbox_send(tl_mailbox *m, const void *x, int64_t bytes) {
  if (bytes > m->bytes)
    return tl_fail(TL_COMM, "a message of %lld bytes from rank %d to rank %d; its channel has %lld",
                   (long long)bytes, m->source, m->target, (long long)m->bytes);
  TL_TRY(enter(m, m->source, 0));
  const uint64_t message = m->sent;
  pthread_mutex_unlock(&m->gate.mutex);
  memcpy(slot_of(m, message), x, (size_t)bytes);
  pthread_mutex_lock(&m->gate.mutex);
  m->held[message % TL_SLOTS] = bytes;
  leave(m, &m->sent);
  return TL_OK;
}

tl_status tl_mailbox_recv(tl_mailbox *m, void *x, int64_t bytes) {
  TL_TRY(enter(m, m->target, 1));
  const uint64_t message = m->received;
  const int64_t held = m->held[message % TL_SLOTS];
  pthread_mutex_unlock(&m->gate.mutex);
  if (held != bytes)
    return tl_fail(TL_LOST, "rank %d expects %lld bytes from rank %d, and %lld came", m->target,
                   (long long)bytes, m->source, (long long)held);
  memcpy(x, slot_of(m, message), (size_t)bytes);
  pthread_mutex_lock(&m->gate.mutex);
  leave(m, &m->received);
  return TL_OK;
}
