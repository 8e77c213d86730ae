/* comm_processes.c - collectives as transfers between pairs, in chunks. */
#include "comm_processes_inner.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hash.h"
#include "memory.h"

enum {
  CUT_BYTES = 64 << 20, /* of a transfer that needs no staging */
  SLICE_ELEMENTS = 16,
  TAGS = 1000, /* of groups; channels come after */
  LOOKS = 200, /* before a waiting rank begins to sleep */
  SLEEP_NS = 50000,
  PUSH_NS = 1000000
};

/* --- One caller at a time --------------------------------------------------------------------- */

typedef enum step { SEND, RECEIVE, TEST } step;

/* A call of the mover. `data` is read by a send and written by a receive. */
static tl_status call(tl_processes *x, step what, int32_t rank, int32_t tag, void *data,
                      int64_t bytes, tl_move *move) {
  pthread_mutex_lock(&x->mutex);
  const int failed = what == SEND      ? x->mover->send(rank, tag, data, bytes, move)
                     : what == RECEIVE ? x->mover->receive(rank, tag, data, bytes, move)
                                       : x->mover->test(move);
  const tl_status status = failed ? tl_fail(TL_LOST, "%s", x->mover->error()) : TL_OK;
  pthread_mutex_unlock(&x->mutex);
  return status;
}

static void *push(void *context) {
  tl_processes *x = context;
  while (!atomic_load(&x->closing)) {
    pthread_mutex_lock(&x->mutex);
    x->mover->push();
    pthread_mutex_unlock(&x->mutex);
    nanosleep(&(struct timespec){.tv_nsec = PUSH_NS}, NULL);
  }
  return NULL;
}

static tl_status start_pusher(tl_processes *x) {
  sigset_t all, before;
  if (x->mover->push == NULL) return TL_OK;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  x->pushes = pthread_create(&x->pusher, NULL, push, x) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return x->pushes ? TL_OK
                   : tl_fail(TL_MEMORY, "the thread that pushes messages cannot be started");
}

/* --- Waiting ---------------------------------------------------------------------------------- */

static void rest(int32_t *looks) {
  if (++*looks < LOOKS) {
    sched_yield();
  } else {
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
  }
}

/* Names the rank on the other side: the library does not. */
static tl_status test(tl_processes *x, tl_move *move, int32_t peer) {
  char text[TL_MOVER_TEXT];
  const tl_status status = call(x, TEST, 0, 0, NULL, 0, move);
  if (status == TL_OK) return TL_OK;
  snprintf(text, sizeof text, "%s", tl_last_error());
  return tl_fail(status, "no message of rank %d: %s", peer, text);
}

static tl_status wait_move(tl_processes *x, tl_move *move, int32_t peer) {
  int32_t looks = 0;
  int64_t start = 0;
  while (move->handle != NULL) {
    TL_TRY(test(x, move, peer));
    if (move->handle == NULL) break;
    if (start == 0) start = tl_now_ns();
    if (tl_world_aborted(x->world)) return tl_world_stopped(x->world);
    tl_world_patient(x->world, x->rank, peer); /* who waits too long is judged in one place */
    rest(&looks);
  }
  if (start != 0) tl_world_waited(x->world, x->rank, tl_now_ns() - start);
  tl_gate_done(x->world, x->rank);
  return TL_OK;
}

tl_status tl_processes_wait(process_comm *c) {
  for (int32_t i = 0; i < 2 * c->base.size; i++)
    TL_TRY(wait_move(c->processes, &c->moves[i], c->base.ranks[i % c->base.size]));
  return TL_OK;
}

tl_status tl_processes_put(process_comm *c, int32_t member, const void *data, int64_t bytes) {
  if (bytes <= 0) return TL_OK;
  return call(c->processes, SEND, c->base.ranks[member], c->tag, (void *)(uintptr_t)data, bytes,
              &c->moves[member]);
}

tl_status tl_processes_take(process_comm *c, int32_t member, void *data, int64_t bytes) {
  if (bytes <= 0) return TL_OK;
  c->base.moved += bytes;
  return call(c->processes, RECEIVE, c->base.ranks[member], c->tag, data, bytes,
              &c->moves[c->base.size + member]);
}

static int64_t clamp(int64_t left, int64_t most) {
  return left < 0 ? 0 : left < most ? left : most;
}

/* --- Sums ------------------------------------------------------------------------------------- */

/* x as its owners see it: element e of member j's share, which has share(j) elements, is
** x[e / run * stride + first(j) + e % run]. */
typedef struct layout {
  const char *x;
  int64_t element, run, stride;
  int64_t (*first)(const struct layout *l, int32_t j);
  int64_t (*share)(const struct layout *l, int32_t j);
  int64_t count, n; /* what first and share need */
} layout;

static int64_t piece_first(const layout *l, int32_t j) { return j * l->run; }
static int64_t piece_share(const layout *l, int32_t j) { return (void)j, l->count; }

static int64_t slice_first(const layout *l, int32_t j) {
  return j == l->n ? l->count : j * (l->count / SLICE_ELEMENTS) / l->n * SLICE_ELEMENTS;
}
static int64_t slice_share(const layout *l, int32_t j) {
  return slice_first(l, j + 1) - slice_first(l, j);
}

/* Elements at .. at + count - 1 of member j's share, in one piece. */
static void pack(const layout *l, int32_t j, int64_t at, int64_t count, char *out) {
  for (int64_t done = 0; done < count;) {
    const int64_t e = at + done, within = e % l->run;
    const int64_t n = clamp(l->run - within, count - done);
    memcpy(out + done * l->element,
           l->x + (e / l->run * l->stride + l->first(l, j) + within) * l->element,
           (size_t)(n * l->element));
    done += n;
  }
}

/* My share of every member, chunk by chunk: fold(parts) -> y. */
static tl_status fold_shares(process_comm *c, const layout *l, tl_fold fold, char *y) {
  const int32_t n = c->base.size, me = c->base.position;
  const int64_t chunk = CHUNK_BYTES / l->element;
  int64_t longest = 0;
  for (int32_t j = 0; j < n; j++) longest = l->share(l, j) > longest ? l->share(l, j) : longest;
  for (int64_t at = 0; at < longest; at += chunk) {
    const int64_t mine = clamp(l->share(l, me) - at, chunk);
    for (int32_t j = 0; j < n; j++) {
      char *out = c->processes->out + (int64_t)j * CHUNK_BYTES;
      char *in = c->processes->in + (int64_t)j * CHUNK_BYTES;
      const int64_t theirs = clamp(l->share(l, j) - at, chunk);
      c->parts[j] = j == me ? out : in;
      pack(l, j, at, theirs, out);
      if (j == me) continue;
      TL_TRY(tl_processes_take(c, j, in, mine * l->element));
      TL_TRY(tl_processes_put(c, j, out, theirs * l->element));
    }
    TL_TRY(tl_processes_wait(c));
    if (mine > 0) fold(c->parts, n, 0, y + at * l->element, mine);
  }
  return TL_OK;
}

static tl_status reduce_scatter(tl_comm *comm, const float *x, float *y, int64_t outer,
                                int64_t piece) {
  const layout l = {.x = (const char *)x,
                    .element = sizeof *x,
                    .run = piece,
                    .stride = comm->size * piece,
                    .first = piece_first,
                    .share = piece_share,
                    .count = outer * piece};
  if (l.count == 0) return TL_OK;
  return fold_shares((process_comm *)comm, &l, tl_fold_tree, (char *)y);
}

/* Everybody's slice of y to everybody. */
static tl_status spread_slices(process_comm *c, const layout *l, char *y) {
  const int32_t n = c->base.size, me = c->base.position;
  const int64_t cut = CUT_BYTES / l->element, longest = l->count;
  for (int64_t at = 0; at < longest; at += cut) {
    const int64_t mine = clamp(slice_share(l, me) - at, cut);
    int more = 0;
    for (int32_t j = 0; j < n; j++) {
      const int64_t theirs = clamp(slice_share(l, j) - at, cut);
      more |= theirs > 0;
      if (j == me) continue;
      TL_TRY(
          tl_processes_take(c, j, y + (slice_first(l, j) + at) * l->element, theirs * l->element));
      TL_TRY(tl_processes_put(c, j, y + (slice_first(l, me) + at) * l->element, mine * l->element));
    }
    TL_TRY(tl_processes_wait(c));
    if (!more) break;
  }
  return TL_OK;
}

static tl_status reduce(tl_comm *comm, const void *x, void *y, int64_t count, int64_t element,
                        tl_fold fold) {
  process_comm *c = (process_comm *)comm;
  const layout l = {.x = x,
                    .element = element,
                    .run = count > 0 ? count : 1,
                    .first = slice_first,
                    .share = slice_share,
                    .count = count,
                    .n = comm->size};
  char *mine = (char *)y + slice_first(&l, comm->position) * element;
  TL_TRY(fold_shares(c, &l, fold, mine));
  return spread_slices(c, &l, y);
}

static tl_status all_reduce(tl_comm *comm, const float *x, float *y, int64_t count) {
  return reduce(comm, x, y, count, sizeof *x, tl_fold_tree);
}

static tl_status all_reduce_max(tl_comm *comm, const float *x, float *y, int64_t count) {
  return reduce(comm, x, y, count, sizeof *x, tl_fold_max);
}

static tl_status all_reduce_count(tl_comm *comm, const int64_t *x, int64_t *y, int64_t count) {
  return reduce(comm, x, y, count, sizeof *x, tl_fold_count);
}

/* --- Movement --------------------------------------------------------------------------------- */

/* Bytes at .. at + count - 1 of member j's x to their places in y (outer, n, bytes). */
static void unpack(char *y, int32_t n, int32_t j, int64_t bytes, int64_t at, int64_t count,
                   const char *from) {
  for (int64_t done = 0; done < count;) {
    const int64_t e = at + done, within = e % bytes, k = clamp(bytes - within, count - done);
    memcpy(y + (e / bytes * n + j) * bytes + within, from + done, (size_t)k);
    done += k;
  }
}

static tl_status all_gather(tl_comm *comm, const void *x, void *y, int64_t outer, int64_t bytes) {
  process_comm *c = (process_comm *)comm;
  const int32_t n = comm->size, me = comm->position;
  const int64_t whole = outer * bytes;
  for (int64_t at = 0; at < whole; at += CHUNK_BYTES) {
    const int64_t count = clamp(whole - at, CHUNK_BYTES);
    for (int32_t j = 0; j < n; j++) {
      if (j == me) continue;
      TL_TRY(tl_processes_take(c, j, c->processes->in + (int64_t)j * CHUNK_BYTES, count));
      TL_TRY(tl_processes_put(c, j, (const char *)x + at, count));
    }
    TL_TRY(tl_processes_wait(c));
    for (int32_t j = 0; j < n; j++)
      unpack(y, n, j, bytes, at, count,
             j == me ? (const char *)x + at : c->processes->in + (int64_t)j * CHUNK_BYTES);
  }
  return TL_OK;
}

static tl_status broadcast(tl_comm *comm, const void *x, void *y, int64_t bytes, int32_t root) {
  process_comm *c = (process_comm *)comm;
  const int mine = comm->position == root;
  for (int64_t at = 0; at < bytes; at += CUT_BYTES) {
    const int64_t count = clamp(bytes - at, CUT_BYTES);
    if (!mine) TL_TRY(tl_processes_take(c, root, (char *)y + at, count));
    for (int32_t j = 0; mine && j < comm->size; j++)
      if (j != root) TL_TRY(tl_processes_put(c, j, (const char *)x + at, count));
    TL_TRY(tl_processes_wait(c));
  }
  if (mine && x != y && bytes > 0) memcpy(y, x, (size_t)bytes);
  return TL_OK;
}

static tl_status barrier(tl_comm *comm) {
  int64_t one = 1;
  return all_reduce_count(comm, &one, &one, 1);
}

static channel *find_channel(const tl_processes *x, int32_t source, int32_t target,
                             int32_t number) {
  for (channel *c = x->channels; c != NULL; c = c->next)
    if (c->source == source && c->target == target && c->number == number) return c;
  return NULL;
}

static tl_status check_message(const channel *c, int32_t source, int32_t target, int32_t number,
                               int64_t bytes) {
  if (c == NULL)
    return tl_fail(TL_COMM, "there is no channel %d from rank %d to rank %d", number, source,
                   target);
  if (bytes <= c->bytes) return TL_OK;
  return tl_fail(TL_COMM, "a message of %lld bytes from rank %d to rank %d; its channel has %lld",
                 (long long)bytes, source, target, (long long)c->bytes);
}

static tl_status send(tl_comm *comm, int32_t peer, int32_t number, const void *data,
                      int64_t bytes) {
  process_comm *c = (process_comm *)comm;
  tl_processes *x = c->processes;
  const int32_t target = comm->ranks[peer];
  channel *found = find_channel(x, x->rank, target, number);
  TL_TRY(check_message(found, x->rank, target, number, bytes));
  slot *s = &found->slots[found->sent++ % TL_SLOTS];
  TL_TRY(wait_move(x, &s->move, target));
  memcpy(s->data, data, (size_t)bytes);
  comm->moved += bytes;
  return call(x, SEND, target, TAGS + number, s->data, bytes, &s->move);
}

static tl_status recv(tl_comm *comm, int32_t peer, int32_t number, void *data, int64_t bytes) {
  process_comm *c = (process_comm *)comm;
  tl_processes *x = c->processes;
  const int32_t source = comm->ranks[peer];
  tl_move move = {NULL};
  comm->moved += bytes;
  TL_TRY(check_message(find_channel(x, source, x->rank, number), source, x->rank, number, bytes));
  TL_TRY(call(x, RECEIVE, source, TAGS + number, data, bytes, &move));
  return wait_move(x, &move, source);
}

tl_status tl_processes_finish(tl_processes *x) {
  for (channel *c = x->channels; c != NULL; c = c->next)
    for (int32_t i = 0; i < TL_SLOTS; i++) TL_TRY(wait_move(x, &c->slots[i].move, c->target));
  return TL_OK;
}

/* --- Opening ---------------------------------------------------------------------------------- */

static void comm_close(tl_comm *comm) {
  process_comm *c = (process_comm *)comm;
  free(c->moves);
  free(c->parts);
  free(c);
}

static const tl_comm_kind process_kind = {
    .path = TL_PATH_NETWORK,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .all_reduce_max = all_reduce_max,
    .all_reduce_count = all_reduce_count,
    .broadcast = broadcast,
    .exchange = tl_processes_exchange,
    .barrier = barrier,
    .send = send,
    .recv = recv,
    .close = comm_close,
};

tl_status tl_processes_open(tl_world *world, const tl_mover *mover, int32_t rank, int32_t largest,
                            tl_processes **out) {
  tl_processes *x = calloc(1, sizeof *x);
  void *memory;
  if (x == NULL) return tl_fail(TL_MEMORY, "no room for messages");
  const tl_status status =
      tl_memory_alloc(TL_MEMORY_COMM, 2 * (int64_t)largest * CHUNK_BYTES, &memory);
  if (status != TL_OK) {
    free(x);
    return status;
  }
  x->world = world, x->mover = mover, x->rank = rank, x->largest = largest;
  x->out = memory, x->in = x->out + (int64_t)largest * CHUNK_BYTES;
  pthread_mutex_init(&x->mutex, NULL);
  const tl_status started = start_pusher(x);
  if (started == TL_OK) *out = x, x = NULL;
  tl_processes_close(x);
  return started;
}

void tl_processes_close(tl_processes *x) {
  if (x == NULL) return;
  atomic_store(&x->closing, 1);
  if (x->pushes) pthread_join(x->pusher, NULL);
  pthread_mutex_destroy(&x->mutex);
  for (channel *c = x->channels, *next; c != NULL; c = next) {
    next = c->next;
    tl_memory_free(c->slots[0].data);
    free(c);
  }
  tl_memory_free(x->out);
  free(x);
}

tl_status tl_processes_group(tl_processes *x, const char *name, const int32_t *ranks, int32_t size,
                             int32_t position, tl_comm **out) {
  const size_t bytes = (size_t)size * sizeof *ranks;
  process_comm *c = calloc(1, sizeof *c + bytes);
  if (c == NULL) return tl_fail(TL_MEMORY, "no room for group %s", name);
  memcpy(c->ranks, ranks, bytes);
  c->base = (tl_comm){.kind = &process_kind, .ranks = c->ranks, .size = size};
  c->base.position = position;
  c->processes = x, c->rank = x->rank;
  c->tag = (int32_t)(tl_hash_bytes(name, (int64_t)strlen(name)) % TAGS);
  c->moves = calloc(2 * (size_t)size, sizeof *c->moves);
  c->parts = calloc((size_t)size, sizeof *c->parts);
  if (c->moves == NULL || c->parts == NULL) {
    comm_close(&c->base);
    return tl_fail(TL_MEMORY, "no room for group %s", name);
  }
  *out = &c->base;
  return TL_OK;
}

tl_status tl_processes_channel(tl_processes *x, int32_t source, int32_t target, int32_t number,
                               int64_t bytes) {
  channel *c = calloc(1, sizeof *c);
  void *memory = NULL;
  if (c == NULL) return tl_fail(TL_MEMORY, "no room for channel %d", number);
  const int64_t room = (bytes + TL_ALIGNMENT - 1) / TL_ALIGNMENT * TL_ALIGNMENT;
  const int64_t slots = source == x->rank ? TL_SLOTS * room : 0;
  const tl_status status = tl_memory_alloc(TL_MEMORY_COMM, slots, &memory);
  if (status != TL_OK) {
    free(c);
    return status;
  }
  c->source = source, c->target = target, c->number = number, c->bytes = bytes;
  for (int32_t i = 0; i < TL_SLOTS; i++) c->slots[i].data = (char *)memory + (slots > 0) * i * room;
  c->next = x->channels;
  x->channels = c;
  return TL_OK;
}
