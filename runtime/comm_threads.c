/* comm_threads.c - ranks are threads of one process: memory is shared, so nothing is sent.
**
** Collectives pull. Each rank publishes its pointers, waits for the others, works on its own slice
** straight from everybody's memory, and waits again before anybody may change what was read:
**
**   all_reduce   publish | fold my slice into my y | copy the other slices from their owners |
**                        |                         |                                         |
**                     barrier                   barrier                                   barrier
**
** Of one rank's memory a slice is read only by the owner of that slice, so x and y may be the same.
** A small all_reduce is folded whole by every rank into private memory, which saves a barrier.
**
** Each group has one gate (world.h), and so has each mailbox.
*/
#include "comm_threads_inner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"
#include "mailbox.h"
#include "memory.h"

enum {
  WHOLE_BYTES = 16 << 10, /* an all_reduce up to here is folded by everybody */
  CHUNK_BYTES = 64 << 10  /* of work for one task of a team */
};

typedef struct channel {
  struct channel *next;
  int32_t source, target, number;
  tl_mailbox *mailbox;
} channel;

struct tl_threads {
  tl_world *world;
  int32_t look_on; /* before sleeping */
  group *groups;
  channel *channels;
};

/* The first rank of the group that has not entered the barrier that is under way. */
static int32_t late_rank(const group *g, uint32_t generation) {
  int32_t i = 0;
  while (g->members[i].entered != generation) i++;
  return g->ranks[i];
}

static void look_on(const thread_comm *c, uint32_t generation) {
  const int64_t start = tl_now_ns();
  int64_t now = start;
  while (atomic_load(&c->group->generation) == generation && now - start < TL_LOOK_ON_NS)
    now = tl_now_ns();
  tl_world_waited(c->world, c->rank, now - start);
}

tl_status tl_threads_barrier(tl_comm *comm) {
  thread_comm *c = (thread_comm *)comm;
  group *g = c->group;
  int32_t late = -1;
  pthread_mutex_lock(&g->gate.mutex);
  const uint32_t generation = atomic_load(&g->generation);
  g->members[comm->position].entered++;
  if (++g->arrived == g->size) {
    g->arrived = 0;
    atomic_store(&g->generation, generation + 1);
    pthread_cond_broadcast(&g->gate.open);
  } else if (c->threads->look_on) {
    pthread_mutex_unlock(&g->gate.mutex);
    look_on(c, generation);
    pthread_mutex_lock(&g->gate.mutex);
  }
  while (atomic_load(&g->generation) == generation && !tl_world_aborted(c->world)) {
    const int32_t peer = late_rank(g, generation);
    if (tl_gate_wait(c->world, &g->gate, c->rank, peer)) continue;
    late = peer;
    break;
  }
  const int32_t complete = atomic_load(&g->generation) != generation;
  if (complete) tl_gate_done(c->world, c->rank);
  pthread_mutex_unlock(&g->gate.mutex);
  if (complete) return TL_OK;
  return late < 0 ? tl_world_stopped(c->world) : tl_world_silent(c->world, c->rank, late);
}

tl_status tl_threads_publish(thread_comm *c, const void *x, void *y) {
  member *m = &c->group->members[c->base.position];
  m->x = x, m->y = y;
  TL_TRY(tl_threads_barrier(&c->base));
  for (int32_t i = 0; i < c->base.size; i++) c->parts[i] = c->group->members[i].x;
  return TL_OK;
}

/* `outer` pieces of `piece` elements: piece o is folded from part_first + o * part_stride of every
** part to out + o * piece elements, cut in chunks. */
typedef struct work {
  tl_fold fold;
  const void *const *parts;
  char *out;
  int64_t part_first, part_stride, piece, element, chunk, chunks;
  int32_t n;
} work;

static void fold_chunk(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const work *w = context;
  const int64_t o = index / w->chunks, first = index % w->chunks * w->chunk;
  const int64_t count = w->piece - first < w->chunk ? w->piece - first : w->chunk;
  w->fold(w->parts, w->n, w->part_first + o * w->part_stride + first,
          w->out + (o * w->piece + first) * w->element, count);
}

static void run(const tl_comm *comm, int64_t count, tl_task task, void *context) {
  if (comm->team != NULL) {
    tl_team_for(comm->team, count, task, context);
  } else {
    for (int64_t i = 0; i < count; i++) task(context, i, 0);
  }
}

static void fold_pieces(const thread_comm *c, work *w, int64_t outer) {
  if (w->piece == 0) return;
  w->parts = c->parts, w->n = c->base.size;
  w->chunk = CHUNK_BYTES / w->element;
  w->chunks = (w->piece + w->chunk - 1) / w->chunk;
  run(&c->base, outer * w->chunks, fold_chunk, w);
}

static tl_status reduce_scatter(tl_comm *comm, const float *x, float *y, int64_t outer,
                                int64_t piece) {
  thread_comm *c = (thread_comm *)comm;
  work w = {.fold = tl_fold_tree, .out = (char *)y, .part_first = comm->position * piece};
  w.part_stride = comm->size * piece, w.piece = piece, w.element = sizeof *x;
  TL_TRY(tl_threads_publish(c, x, y));
  fold_pieces(c, &w, outer);
  comm->moved += (comm->size - 1) * outer * piece * (int64_t)sizeof *x;
  return tl_threads_barrier(comm);
}

/* Slice borders are multiples of 16 elements, so that no cache line has two writers. */
static int64_t slice_first(const tl_comm *comm, int32_t slice, int64_t count) {
  return slice == comm->size ? count : slice * (count / 16) / comm->size * 16;
}

static tl_status reduce_whole(thread_comm *c, work *w, void *y, int64_t bytes) {
  w->out = c->whole;
  fold_pieces(c, w, 1);
  c->base.moved += (c->base.size - 1) * bytes;
  TL_TRY(tl_threads_barrier(&c->base));
  memcpy(y, c->whole, (size_t)bytes);
  return TL_OK;
}

static tl_status reduce(tl_comm *comm, const void *x, void *y, int64_t count, work *w) {
  thread_comm *c = (thread_comm *)comm;
  const int64_t element = w->element;
  TL_TRY(tl_threads_publish(c, x, y));
  w->piece = count;
  if (count * element <= WHOLE_BYTES) return reduce_whole(c, w, y, count * element);
  const int64_t first = slice_first(comm, comm->position, count);
  w->part_first = first;
  w->piece = slice_first(comm, comm->position + 1, count) - first;
  w->out = (char *)y + first * element;
  fold_pieces(c, w, 1);
  comm->moved += (comm->size - 1) * w->piece * element;
  TL_TRY(tl_threads_barrier(comm));
  for (int32_t i = 0; i < comm->size; i++) {
    const int64_t from = slice_first(comm, i, count), to = slice_first(comm, i + 1, count);
    if (i == comm->position || from == to) continue;
    memcpy((char *)y + from * element, (const char *)c->group->members[i].y + from * element,
           (size_t)((to - from) * element));
    comm->moved += (to - from) * element;
  }
  return tl_threads_barrier(comm);
}

static tl_status all_reduce(tl_comm *comm, const float *x, float *y, int64_t count) {
  return reduce(comm, x, y, count, &(work){.fold = tl_fold_tree, .element = sizeof *x});
}

static tl_status all_reduce_max(tl_comm *comm, const float *x, float *y, int64_t count) {
  return reduce(comm, x, y, count, &(work){.fold = tl_fold_max, .element = sizeof *x});
}

static tl_status all_reduce_count(tl_comm *comm, const int64_t *x, int64_t *y, int64_t count) {
  return reduce(comm, x, y, count, &(work){.fold = tl_fold_count, .element = sizeof *x});
}

typedef struct gather {
  const void *const *parts;
  char *y;
  int64_t bytes, each; /* of a piece; pieces in a task */
  int64_t count;       /* pieces in all */
  int32_t n;
} gather;

static void gather_pieces(void *context, int64_t index, int32_t worker) {
  (void)worker;
  const gather *g = context;
  const int64_t last = (index + 1) * g->each < g->count ? (index + 1) * g->each : g->count;
  for (int64_t i = index * g->each; i < last; i++)
    memcpy(g->y + i * g->bytes, (const char *)g->parts[i % g->n] + i / g->n * g->bytes,
           (size_t)g->bytes);
}

static tl_status all_gather(tl_comm *comm, const void *x, void *y, int64_t outer, int64_t bytes) {
  thread_comm *c = (thread_comm *)comm;
  gather g = {.parts = c->parts, .y = y, .bytes = bytes, .n = comm->size};
  TL_TRY(tl_threads_publish(c, x, y));
  g.count = outer * comm->size;
  g.each = bytes < CHUNK_BYTES ? CHUNK_BYTES / (bytes + 1) + 1 : 1;
  if (bytes > 0) run(comm, (g.count + g.each - 1) / g.each, gather_pieces, &g);
  comm->moved += (comm->size - 1) * outer * bytes;
  return tl_threads_barrier(comm);
}

static tl_status broadcast(tl_comm *comm, const void *x, void *y, int64_t bytes, int32_t root) {
  thread_comm *c = (thread_comm *)comm;
  TL_TRY(tl_threads_publish(c, x, y));
  if (c->parts[root] != y && bytes > 0) memmove(y, c->parts[root], (size_t)bytes);
  return tl_threads_barrier(comm);
}

static channel *find_channel(const tl_threads *t, int32_t source, int32_t target, int32_t number) {
  for (channel *c = t->channels; c != NULL; c = c->next)
    if (c->source == source && c->target == target && c->number == number) return c;
  return NULL;
}

static tl_status no_channel(int32_t source, int32_t target, int32_t number) {
  return tl_fail(TL_COMM, "there is no channel %d from rank %d to rank %d", number, source, target);
}

static tl_status send(tl_comm *comm, int32_t peer, int32_t number, const void *x, int64_t bytes) {
  const thread_comm *c = (thread_comm *)comm;
  const channel *found = find_channel(c->threads, c->rank, comm->ranks[peer], number);
  if (found == NULL) return no_channel(c->rank, comm->ranks[peer], number);
  comm->moved += bytes;
  return tl_mailbox_send(found->mailbox, x, bytes);
}

static tl_status recv(tl_comm *comm, int32_t peer, int32_t number, void *x, int64_t bytes) {
  const thread_comm *c = (thread_comm *)comm;
  const channel *found = find_channel(c->threads, comm->ranks[peer], c->rank, number);
  if (found == NULL) return no_channel(comm->ranks[peer], c->rank, number);
  comm->moved += bytes;
  return tl_mailbox_recv(found->mailbox, x, bytes);
}

static void comm_close(tl_comm *comm) {
  thread_comm *c = (thread_comm *)comm;
  tl_memory_free(c->whole);
  free(c->parts);
  free(c);
}

static const tl_comm_kind thread_kind = {
    .path = TL_PATH_PEER,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_reduce = all_reduce,
    .all_reduce_max = all_reduce_max,
    .all_reduce_count = all_reduce_count,
    .broadcast = broadcast,
    .exchange = tl_threads_exchange,
    .barrier = tl_threads_barrier,
    .send = send,
    .recv = recv,
    .close = comm_close,
};

tl_status tl_threads_open(tl_world *world, int32_t look_on, tl_threads **out) {
  tl_threads *t = calloc(1, sizeof *t);
  if (t == NULL) return tl_fail(TL_MEMORY, "no room for the thread transport");
  t->world = world, t->look_on = look_on;
  *out = t;
  return TL_OK;
}

static void free_group(group *g) {
  tl_gate_close(&g->gate);
  free(g->members);
  free(g->ranks);
  free(g);
}

void tl_threads_close(tl_threads *t) {
  if (t == NULL) return;
  for (group *g = t->groups, *next; g != NULL; g = next) {
    next = g->next;
    free_group(g);
  }
  for (channel *c = t->channels, *next; c != NULL; c = next) {
    next = c->next;
    tl_mailbox_close(c->mailbox);
    free(c);
  }
  free(t);
}

static tl_status make_group(tl_threads *t, const char *name, const int32_t *ranks, int32_t size,
                            group **out) {
  const size_t bytes = (size_t)size * sizeof *ranks;
  group *g = calloc(1, sizeof *g);
  if (g == NULL) return tl_fail(TL_MEMORY, "no room for group %s", name);
  g->members = calloc((size_t)size, sizeof *g->members);
  g->ranks = malloc(bytes);
  if (g->members == NULL || g->ranks == NULL) {
    free(g->members);
    free(g->ranks);
    free(g);
    return tl_fail(TL_MEMORY, "no room for group %s of %d ranks", name, size);
  }
  snprintf(g->name, sizeof g->name, "%s", name);
  memcpy(g->ranks, ranks, bytes);
  g->size = size;
  tl_gate_open(t->world, &g->gate);
  g->next = t->groups;
  t->groups = g;
  *out = g;
  return TL_OK;
}

static tl_status find_group(tl_threads *t, const char *name, const int32_t *ranks, int32_t size,
                            group **out) {
  for (group *g = t->groups; g != NULL; g = g->next)
    if (strcmp(g->name, name) == 0 && g->size == size &&
        memcmp(g->ranks, ranks, (size_t)size * sizeof *ranks) == 0) {
      *out = g;
      return TL_OK;
    }
  return make_group(t, name, ranks, size, out);
}

tl_status tl_threads_group(tl_threads *t, const char *name, const int32_t *ranks, int32_t size,
                           int32_t position, tl_team *team, tl_comm **out) {
  group *g = NULL;
  TL_TRY(find_group(t, name, ranks, size, &g));
  thread_comm *c = calloc(1, sizeof *c);
  if (c == NULL) return tl_fail(TL_MEMORY, "no room for group %s", name);
  tl_status status = TL_OK;
  c->base = (tl_comm){.kind = &thread_kind, .ranks = g->ranks, .size = size};
  c->base.position = position, c->base.team = team;
  c->threads = t, c->world = t->world, c->group = g, c->rank = ranks[position];
  c->parts = calloc((size_t)size, sizeof *c->parts);
  if (c->parts == NULL) TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room for group %s", name), done);
  if (size > 1) TL_TRY_GOTO(status, tl_memory_alloc(TL_MEMORY_COMM, WHOLE_BYTES, &c->whole), done);
  *out = &c->base, c = NULL;
done:
  if (c != NULL) comm_close(&c->base);
  return status;
}

tl_status tl_threads_channel(tl_threads *t, int32_t source, int32_t target, int32_t number,
                             int64_t bytes) {
  if (find_channel(t, source, target, number) != NULL)
    return tl_fail(TL_ARGUMENT, "channel %d from rank %d to rank %d is open", number, source,
                   target);
  channel *c = calloc(1, sizeof *c);
  if (c == NULL) return tl_fail(TL_MEMORY, "no room for channel %d", number);
  const tl_status status = tl_mailbox_open(t->world, source, target, bytes, &c->mailbox);
  if (status != TL_OK) {
    free(c);
    return status;
  }
  c->source = source, c->target = target, c->number = number;
  c->next = t->channels;
  t->channels = c;
  return TL_OK;
}
