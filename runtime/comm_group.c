/* comm_group.c - rank threads that sleep until there is a collective to run. */
#include "comm_group.h"

#include <assert.h>
#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_threads.h"

enum { LIMIT_S = 10 };

typedef struct member {
  tl_comm_group *group;
  tl_comm *comm;
  pthread_t thread;
  tl_status status; /* of the last collective */
  char error[TL_ERROR_BYTES];
} member;

struct tl_comm_group {
  tl_world *world;
  tl_threads *threads;
  int32_t count, started;
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t begin, end;
  const tl_comm_job *job;
  int64_t turn;    /* collectives begun */
  int32_t running; /* members that have not ended it */
  int32_t closing;
  member list[];
};

static const char *const names[] = {
#define COMM(name) #name,
#include "comm.def"
#undef COMM
};

const char *tl_collective_name(tl_collective kind) { return names[kind]; }

tl_status tl_collective_find(const char *name, tl_collective *out) {
  for (int i = 0; i < TL_COLLECTIVES; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (tl_collective)i;
      return TL_OK;
    }
  return tl_fail(TL_ARGUMENT,
                 "no collective %s; there are all_gather, reduce_scatter, all_reduce, "
                 "all_reduce_max, all_reduce_count, broadcast, barrier",
                 name);
}

static tl_status call(const tl_comm_job *j, tl_comm *comm) {
  if (j->kind == TL_COMM_barrier) return tl_comm_barrier(comm);
  const tl_view *x = &j->x[comm->position], *y = &j->y[comm->position];
  const int64_t count = tl_view_count(x), bytes = tl_view_bytes(x);
  switch (j->kind) {
    case TL_COMM_all_gather:
      return tl_comm_all_gather(comm, x->data, y->data, j->outer, bytes / j->outer);
    case TL_COMM_reduce_scatter:
      return tl_comm_reduce_scatter(comm, x->data, y->data, j->outer, tl_view_count(y) / j->outer);
    case TL_COMM_all_reduce: return tl_comm_all_reduce(comm, x->data, y->data, count);
    case TL_COMM_all_reduce_max: return tl_comm_all_reduce_max(comm, x->data, y->data, count);
    case TL_COMM_all_reduce_count: return tl_comm_all_reduce_count(comm, x->data, y->data, count);
    default: return tl_comm_broadcast(comm, x->data, y->data, bytes, j->root);
  }
}

static tl_status check(const tl_comm_job *j) {
  if (j->kind == TL_COMM_barrier) return TL_OK;
  const tl_dtype free = j->x[0].dtype;
  const tl_dtype dtype = j->kind == TL_COMM_all_gather || j->kind == TL_COMM_broadcast ? free
                         : j->kind == TL_COMM_all_reduce_count                         ? TL_I64
                                                                                       : TL_F32;
  const int64_t x = tl_view_count(&j->x[0]);
  const int64_t y = j->kind == TL_COMM_all_gather       ? x * j->ranks
                    : j->kind == TL_COMM_reduce_scatter ? x / j->ranks
                                                        : x;
  if (j->outer < 1 || (x < y ? x : y) % j->outer != 0 ||
      (j->kind == TL_COMM_reduce_scatter && y * j->ranks != x))
    return tl_fail(TL_SHAPE, "%lld elements do not fit %d ranks and outer %lld", (long long)x,
                   j->ranks, (long long)j->outer);
  for (int32_t i = 0; i < j->ranks; i++) {
    if (j->x[i].dtype != dtype || j->y[i].dtype != dtype)
      return tl_fail(TL_DTYPE, "rank %d has %s and %s, must have %s", i,
                     tl_dtype_name(j->x[i].dtype), tl_dtype_name(j->y[i].dtype),
                     tl_dtype_name(dtype));
    if (tl_view_count(&j->x[i]) != x || tl_view_count(&j->y[i]) != y)
      return tl_fail(TL_SHAPE, "rank %d gives %lld elements and gets %lld, must be %lld and %lld",
                     i, (long long)tl_view_count(&j->x[i]), (long long)tl_view_count(&j->y[i]),
                     (long long)x, (long long)y);
  }
  return TL_OK;
}

/* Runs the collective; a failure ends it for all. */
static void take_part(member *m, const tl_comm_job *job) {
  m->status = call(job, m->comm);
  if (m->status == TL_OK) return;
  snprintf(m->error, sizeof m->error, "%s", tl_last_error());
  tl_world_abort(m->group->world, m->comm->position, m->status, m->error);
}

static void *member_main(void *argument) {
  member *m = argument;
  tl_comm_group *g = m->group;
  fesetenv(FE_DFL_ENV); /* nearest even, subnormals kept: folds add */
  pthread_mutex_lock(&g->mutex);
  for (int64_t seen = 0;;) {
    while (g->turn == seen && !g->closing) pthread_cond_wait(&g->begin, &g->mutex);
    if (g->closing) break;
    seen = g->turn;
    const tl_comm_job *job = g->job;
    pthread_mutex_unlock(&g->mutex);
    take_part(m, job);
    pthread_mutex_lock(&g->mutex);
    if (--g->running == 0) pthread_cond_signal(&g->end);
  }
  pthread_mutex_unlock(&g->mutex);
  return NULL;
}

static void describe(void *context, int32_t rank, int32_t instruction, char *out, size_t bytes) {
  (void)context, (void)rank, (void)instruction;
  snprintf(out, bytes, "a collective of the group");
}

static tl_status open_comms(tl_comm_group *g) {
  int32_t *ranks = malloc((size_t)g->count * sizeof *ranks);
  tl_status status = TL_OK;
  if (ranks == NULL) return tl_fail(TL_MEMORY, "no room for %d ranks", g->count);
  for (int32_t i = 0; i < g->count; i++) ranks[i] = i;
  for (int32_t i = 0; i < g->count && status == TL_OK; i++) {
    g->list[i].group = g;
    status = tl_threads_group(g->threads, "all", ranks, g->count, i, NULL, &g->list[i].comm);
  }
  free(ranks);
  return status;
}

/* Signals stay with the caller's thread. */
static tl_status start_threads(tl_comm_group *g) {
  sigset_t all, before;
  tl_status status = TL_OK;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int32_t i = 0; i < g->count && status == TL_OK; i++) {
    if (pthread_create(&g->list[i].thread, NULL, member_main, &g->list[i]) != 0)
      status = tl_fail(TL_MEMORY, "the thread of rank %d cannot be started", i);
    else
      g->started++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return status;
}

tl_status tl_comm_group_open(int32_t ranks, tl_comm_group **out) {
  tl_status status = TL_OK;
  if (ranks < 1 || ranks > TL_COMM_GROUP_MAX)
    return tl_fail(TL_ARGUMENT, "a group of %d ranks, must be 1 to %d", ranks, TL_COMM_GROUP_MAX);
  tl_comm_group *g = calloc(1, sizeof *g + (size_t)ranks * sizeof g->list[0]);
  if (g == NULL) return tl_fail(TL_MEMORY, "no room for %d ranks", ranks);
  g->count = ranks;
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->begin, NULL);
  pthread_cond_init(&g->end, NULL);
  TL_TRY_GOTO(status, tl_world_open(ranks, describe, NULL, &g->world), done);
  TL_TRY_GOTO(status, tl_threads_open(g->world, 0, &g->threads), done);
  TL_TRY_GOTO(status, open_comms(g), done);
  TL_TRY_GOTO(status, start_threads(g), done);
  *out = g, g = NULL;
done:
  tl_comm_group_close(g);
  return status;
}

void tl_comm_group_close(tl_comm_group *g) {
  if (g == NULL) return;
  pthread_mutex_lock(&g->mutex);
  g->closing = 1;
  pthread_cond_broadcast(&g->begin);
  pthread_mutex_unlock(&g->mutex);
  for (int32_t i = 0; i < g->started; i++) pthread_join(g->list[i].thread, NULL);
  for (int32_t i = 0; i < g->count; i++) tl_comm_close(g->list[i].comm);
  tl_threads_close(g->threads);
  tl_world_close(g->world);
  pthread_cond_destroy(&g->end);
  pthread_cond_destroy(&g->begin);
  pthread_mutex_destroy(&g->mutex);
  free(g);
}

int32_t tl_comm_group_ranks(const tl_comm_group *g) { return g->count; }

static tl_status failure(const tl_comm_group *g) {
  int32_t rank;
  const char *text = tl_world_error(g->world, &rank);
  return tl_fail(g->list[rank].status, "rank %d: %s", rank, text);
}

tl_status tl_comm_group_run(tl_comm_group *g, const tl_comm_job *job) {
  assert(job->ranks == g->count);
  TL_TRY(check(job));
  if (tl_world_aborted(g->world))
    return tl_fail(TL_COMM, "this group has failed before and cannot go on: open another one");
  tl_world_begin(g->world, LIMIT_S);
  pthread_mutex_lock(&g->mutex);
  g->job = job;
  g->running = g->count;
  g->turn++;
  pthread_cond_broadcast(&g->begin);
  while (g->running > 0) pthread_cond_wait(&g->end, &g->mutex);
  pthread_mutex_unlock(&g->mutex);
  return tl_world_aborted(g->world) ? failure(g) : TL_OK;
}

tl_status tl_comm_once(const tl_comm_job *job) {
  tl_comm_group *g = NULL;
  TL_TRY(tl_comm_group_open(job->ranks, &g));
  const tl_status status = tl_comm_group_run(g, job);
  tl_comm_group_close(g);
  return status;
}
