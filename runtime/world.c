/* world.c - seats, gates, and the first failure. */
#include "world.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct seat {                 /* written by its rank, read by all */
  _Alignas(64) _Atomic int64_t stamp; /* ns, when it began its instruction */
  _Atomic int32_t instruction;        /* -1: it has ended its section */
  _Atomic int32_t waits_for;          /* a rank, or -1 */
  int64_t waited_ns;                  /* its rank alone reads it */
} seat;

struct tl_world {
  int32_t ranks;
  tl_describe describe;
  void *context;
  seat *seats;
  tl_gate *gates;
  int64_t limit_ns;
  int32_t trusting;
  tl_gate failure; /* guards what follows until aborted is 1; then it never changes */
  _Atomic int32_t aborted;
  int32_t failed_rank;
  tl_status status;
  char error[TL_ERROR_BYTES];
};

int64_t tl_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void tl_gate_open(tl_world *world, tl_gate *g) {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->open, &attributes);
  pthread_condattr_destroy(&attributes);
  g->next = world->gates;
  world->gates = g;
}

void tl_gate_close(tl_gate *g) {
  pthread_cond_destroy(&g->open);
  pthread_mutex_destroy(&g->mutex);
}

/* Goes to the last link of the chain, or round a ring once. */
static void last_link(tl_world *world, int32_t *rank, int32_t *peer) {
  for (int32_t links = 0; links < world->ranks; links++) {
    const int32_t next = atomic_load(&world->seats[*peer].waits_for);
    if (next < 0) return;
    *rank = *peer;
    *peer = next;
  }
}

tl_status tl_world_silent(tl_world *world, int32_t rank, int32_t peer) {
  char here[256] = "", there[256] = "", text[TL_ERROR_BYTES];
  const int32_t caller = rank;
  last_link(world, &rank, &peer);
  const int32_t at = atomic_load(&world->seats[rank].instruction);
  const int32_t peer_at = atomic_load(&world->seats[peer].instruction);
  if (at >= 0) world->describe(world->context, rank, at, here, sizeof here);
  if (peer_at >= 0) world->describe(world->context, peer, peer_at, there, sizeof there);
  snprintf(text, sizeof text, "rank %d waits for rank %d: silent for %.3g s in %s; rank %d %s%s",
           rank, peer, (double)world->limit_ns / 1e9, here, peer,
           peer_at < 0 ? "has ended its section" : "is in ", there);
  tl_world_abort(world, caller, TL_LOST, text);
  return tl_fail(TL_LOST, "%s", text);
}

tl_status tl_world_stopped(tl_world *world) {
  int32_t rank;
  const char *text = tl_world_error(world, &rank);
  return tl_fail(TL_COMM, "stopped because of rank %d: %s", rank, text);
}

/* The newest stamp of `rank` and those it waits for. A rank stamps itself before it changes whom it
** waits for, so when this is old, the chain has not changed meanwhile. */
static int64_t newest_stamp(tl_world *world, int32_t rank) {
  int64_t newest = 0;
  for (int32_t links = 0; rank >= 0 && links < world->ranks; links++) {
    const int64_t stamp = atomic_load(&world->seats[rank].stamp);
    if (stamp > newest) newest = stamp;
    rank = atomic_load(&world->seats[rank].waits_for);
  }
  return newest;
}

int32_t tl_gate_wait(tl_world *world, tl_gate *g, int32_t rank, int32_t peer) {
  atomic_store(&world->seats[rank].waits_for, peer);
  const int64_t until = newest_stamp(world, peer) + world->limit_ns;
  if (tl_now_ns() >= until) return 0;
  const struct timespec deadline = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
  const int64_t start = tl_now_ns();
  pthread_cond_timedwait(&g->open, &g->mutex, &deadline);
  tl_world_waited(world, rank, tl_now_ns() - start);
  return 1;
}

int64_t tl_world_waited(tl_world *world, int32_t rank, int64_t ns) {
  return world->seats[rank].waited_ns += ns;
}

int32_t tl_world_patient(tl_world *world, int32_t rank, int32_t peer) {
  atomic_store(&world->seats[rank].waits_for, peer);
  return peer < 0 || world->trusting || tl_now_ns() < newest_stamp(world, peer) + world->limit_ns;
}

void tl_gate_done(tl_world *world, int32_t rank) {
  atomic_store(&world->seats[rank].stamp, tl_now_ns());
  atomic_store(&world->seats[rank].waits_for, -1);
}

void tl_world_trust(tl_world *world) { world->trusting = 1; }

void tl_world_tell(tl_world *world, int32_t rank, const tl_seat *told) {
  seat *s = &world->seats[rank];
  atomic_store(&s->stamp, tl_now_ns() - told->age_ns);
  atomic_store(&s->instruction, told->instruction);
  atomic_store(&s->waits_for, told->waits_for);
}

tl_seat tl_world_seat(tl_world *world, int32_t rank) {
  seat *s = &world->seats[rank];
  return (tl_seat){.age_ns = tl_now_ns() - atomic_load(&s->stamp),
                   .instruction = atomic_load(&s->instruction),
                   .waits_for = atomic_load(&s->waits_for)};
}

void tl_world_place(tl_world *world, int32_t rank, char *out, size_t bytes) {
  const int32_t at = atomic_load(&world->seats[rank].instruction);
  out[0] = '\0';
  if (at >= 0) world->describe(world->context, rank, at, out, bytes);
}

int32_t tl_world_judge(tl_world *world) {
  for (int32_t rank = 0; rank < world->ranks; rank++) {
    const int32_t peer = atomic_load(&world->seats[rank].waits_for);
    if (peer < 0 || tl_now_ns() < newest_stamp(world, peer) + world->limit_ns) continue;
    tl_world_silent(world, rank, peer);
    return 1;
  }
  return 0;
}

tl_status tl_world_open(int32_t ranks, tl_describe describe, void *context, tl_world **out) {
  tl_world *world = calloc(1, sizeof *world);
  seat *seats = aligned_alloc(sizeof(seat), (size_t)ranks * sizeof *seats);
  if (world == NULL || seats == NULL) {
    free(seats);
    free(world);
    return tl_fail(TL_MEMORY, "no room for a world of %d ranks", ranks);
  }
  memset(seats, 0, (size_t)ranks * sizeof *seats);
  for (int32_t i = 0; i < ranks; i++) seats[i].instruction = seats[i].waits_for = -1;
  world->ranks = ranks, world->seats = seats;
  world->describe = describe, world->context = context;
  tl_gate_open(world, &world->failure);
  *out = world;
  return TL_OK;
}

void tl_world_close(tl_world *world) {
  if (world == NULL) return;
  tl_gate_close(&world->failure);
  free(world->seats);
  free(world);
}

void tl_world_begin(tl_world *world, double limit_s) {
  world->limit_ns = (int64_t)(limit_s * 1e9);
  for (int32_t i = 0; i < world->ranks; i++) {
    tl_world_at(world, i, 0);
    atomic_store(&world->seats[i].waits_for, -1);
  }
}

void tl_world_at(tl_world *world, int32_t rank, int32_t instruction) {
  atomic_store_explicit(&world->seats[rank].instruction, instruction, memory_order_relaxed);
  atomic_store_explicit(&world->seats[rank].stamp, tl_now_ns(), memory_order_relaxed);
}

void tl_world_abort(tl_world *world, int32_t rank, tl_status status, const char *message) {
  pthread_mutex_lock(&world->failure.mutex);
  if (!atomic_load(&world->aborted)) {
    world->failed_rank = rank, world->status = status;
    snprintf(world->error, sizeof world->error, "%s", message);
    atomic_store(&world->aborted, 1);
  }
  pthread_mutex_unlock(&world->failure.mutex);
  for (tl_gate *g = world->gates; g != NULL; g = g->next) {
    pthread_mutex_lock(&g->mutex);
    pthread_cond_broadcast(&g->open);
    pthread_mutex_unlock(&g->mutex);
  }
}

int32_t tl_world_aborted(tl_world *world) { return atomic_load(&world->aborted); }

const char *tl_world_error(tl_world *world, int32_t *rank) {
  *rank = world->failed_rank;
  return world->error;
}

tl_status tl_world_status(tl_world *world) { return world->status; }

void tl_world_stall(tl_world *world) {
  pthread_mutex_lock(&world->failure.mutex);
  while (!tl_world_aborted(world)) pthread_cond_wait(&world->failure.open, &world->failure.mutex);
  pthread_mutex_unlock(&world->failure.mutex);
}
