/* comm_once.c - a world that lives for one collective. */
#include "comm_once.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_threads.h"

enum { LIMIT_S = 10 };

typedef struct once {
  const tl_comm_job *job;
  tl_comm *comm;
  pthread_t thread;
  tl_status status;
  char error[TL_ERROR_BYTES];
} once;

tl_status tl_collective_find(const char *name, tl_collective *out) {
  static const char *const names[] = {
#define COMM(name) #name,
#include "comm.def"
#undef COMM
  };
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

static void *once_main(void *argument) {
  once *o = argument;
  o->status = call(o->job, o->comm);
  if (o->status != TL_OK) snprintf(o->error, sizeof o->error, "%s", tl_last_error());
  return NULL;
}

static void describe(void *context, int32_t rank, int32_t instruction, char *out, size_t bytes) {
  (void)context, (void)rank, (void)instruction;
  snprintf(out, bytes, "its only collective");
}

static tl_status check(const tl_comm_job *j) {
  if (j->ranks < 1) return tl_fail(TL_ARGUMENT, "a collective over %d ranks", j->ranks);
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

static tl_status open_group(tl_threads *threads, once *list, const tl_comm_job *j) {
  int32_t *ranks = malloc((size_t)j->ranks * sizeof *ranks);
  tl_status status = TL_OK;
  if (ranks == NULL) return tl_fail(TL_MEMORY, "no room for %d ranks", j->ranks);
  for (int32_t i = 0; i < j->ranks; i++) ranks[i] = i;
  for (int32_t i = 0; i < j->ranks && status == TL_OK; i++) {
    list[i].job = j;
    status = tl_threads_group(threads, "all", ranks, j->ranks, i, NULL, &list[i].comm);
  }
  free(ranks);
  return status;
}

/* Starts all threads, or ends those that are already waiting for one that could not be started. */
static tl_status run_threads(tl_world *world, once *list, int32_t count) {
  tl_status status = TL_OK;
  int32_t started = 0;
  for (; started < count; started++)
    if (pthread_create(&list[started].thread, NULL, once_main, &list[started]) != 0) {
      status = tl_fail(TL_MEMORY, "the thread of rank %d cannot be started", started);
      tl_world_abort(world, started, tl_last_error());
      break;
    }
  for (int32_t i = 0; i < started; i++) pthread_join(list[i].thread, NULL);
  for (int32_t i = 0; i < count && status == TL_OK; i++)
    if (list[i].status != TL_OK) status = tl_fail(list[i].status, "rank %d: %s", i, list[i].error);
  return status;
}

tl_status tl_comm_once(const tl_comm_job *job) {
  tl_world *world = NULL;
  tl_threads *threads = NULL;
  tl_status status = TL_OK;
  TL_TRY(check(job));
  once *list = calloc((size_t)job->ranks, sizeof *list);
  if (list == NULL) return tl_fail(TL_MEMORY, "no room for %d ranks", job->ranks);
  TL_TRY_GOTO(status, tl_world_open(job->ranks, describe, NULL, &world), done);
  TL_TRY_GOTO(status, tl_threads_open(world, 0, &threads), done);
  TL_TRY_GOTO(status, open_group(threads, list, job), done);
  tl_world_begin(world, LIMIT_S);
  status = run_threads(world, list, job->ranks);
done:
  for (int32_t i = 0; i < job->ranks; i++) tl_comm_close(list[i].comm);
  tl_threads_close(threads);
  tl_world_close(world);
  free(list);
  return status;
}
