/* ranks.c - opening, running and closing rank threads. */
#define _GNU_SOURCE
#include "ranks.h"

#include <fenv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_threads.h"
#include "cores.h"
#include "execute_cuda.h"
#include "limit.h"
#include "memory.h"
#include "results.h"

typedef struct rank {
  tl_ranks *ranks;
  tl_executor executor;
  tl_comm *comms[TL_GROUPS_MAX];
  tl_feed *feeds;
  pthread_t thread;
  int32_t started;
  tl_status status; /* of the last run */
  char error[TL_ERROR_BYTES];
} rank;

struct tl_ranks {
  tl_world *world;
  tl_threads *transport;
  tl_pool *pool;
  tl_fault *faults;
  tl_limit limit;
  int32_t count, poison;
  tl_placement placement;
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t begin, end;
  int64_t turn;    /* runs begun */
  int32_t running; /* ranks that have not ended the run */
  int32_t closing, lost;
  tl_run run;
  float scalars[TL_SCALARS_MAX];
  rank list[];
};

static tl_status fill(const tl_executor *e, char *at, int64_t bytes, int32_t byte) {
  if (e->gpu != NULL) return tl_gpu_fill(e->gpu, at, bytes, byte);
  memset(at, byte, (size_t)bytes);
  return TL_OK;
}

static tl_status fill_scratch(const tl_ranks *ranks, const tl_executor *e) {
  const tl_bytes *scratch = e->program->scratch;
  for (int32_t i = 0; i < e->program->scratch_count && ranks->poison >= 0; i++)
    TL_TRY(fill(e, e->arena + scratch[i].offset, scratch[i].bytes, ranks->poison));
  return TL_OK;
}

/* Runs the section; a failure ends it on all ranks. */
static void run_section(rank *r) {
  tl_ranks *ranks = r->ranks;
  r->status = fill_scratch(ranks, &r->executor);
  if (r->status == TL_OK) r->status = tl_execute(&r->executor, &ranks->run);
  if (r->status == TL_OK) return;
  snprintf(r->error, sizeof r->error, "%s", tl_last_error());
  tl_world_abort(ranks->world, r->executor.rank, r->error);
}

static void *rank_main(void *argument) {
  rank *r = argument;
  tl_ranks *ranks = r->ranks;
  fesetenv(FE_DFL_ENV); /* nearest even, subnormals kept: its team was opened by another thread */
  if (ranks->poison >= 0 && r->executor.gpu == NULL)
    memset(r->executor.arena, ranks->poison, (size_t)r->executor.program->arena_bytes);
  int64_t seen = 0;
  pthread_mutex_lock(&ranks->mutex);
  if (--ranks->running == 0) pthread_cond_signal(&ranks->end);
  for (;;) {
    while (ranks->turn == seen && !ranks->closing) pthread_cond_wait(&ranks->begin, &ranks->mutex);
    if (ranks->closing) break;
    seen = ranks->turn;
    pthread_mutex_unlock(&ranks->mutex);
    run_section(r);
    pthread_mutex_lock(&ranks->mutex);
    if (--ranks->running == 0) pthread_cond_signal(&ranks->end);
  }
  pthread_mutex_unlock(&ranks->mutex);
  return NULL;
}

/* Where a rank is, for messages of others: reads only what is constant during a run. */
static void describe(void *context, int32_t rank, int32_t instruction, char *out, size_t bytes) {
  const tl_ranks *ranks = context;
  const tl_program *p = ranks->list[rank].executor.program;
  char place[200];
  tl_program_describe(p, instruction, place, sizeof place);
  snprintf(out, bytes, "%s, step %lld, micro-batch %d", place, (long long)ranks->run.step.step + 1,
           p->instructions[instruction].micro);
}

static tl_status open_comms(tl_ranks *ranks, const tl_ranks_options *o) {
  for (int32_t i = 0; i < o->count; i++) {
    const tl_program *p = o->plans[i].program;
    for (int32_t g = 0; g < p->group_count; g++) {
      const tl_rank_group *group = &o->plans[i].groups[g];
      TL_TRY(tl_threads_group(ranks->transport, p->texts[p->group_names[g]], group->ranks,
                              group->size, group->position, ranks->list[i].executor.team,
                              &ranks->list[i].comms[g]));
    }
  }
  return TL_OK;
}

/* Samples that a data instruction asks for must be in the global batch of its source. */
static tl_status check_feeds(const tl_ranks_options *o, int32_t i) {
  const tl_program *p = o->plans[i].program;
  for (int32_t k = 0; k < p->instruction_count; k++) {
    char place[256];
    if (!(tl_ops[p->instructions[k].op].traits & TL_TRAIT_DATA)) continue;
    tl_program_describe(p, k, place, sizeof place);
    const int64_t source = tl_program_int(p, k, "source", -1);
    if (source < 0 || source >= o->feed_count)
      return tl_fail(TL_PROGRAM, "rank %d: %s: source %lld; there are %d", i, place,
                     (long long)source, o->feed_count);
    const tl_feed *feed = &o->feeds[(int64_t)i * o->feed_count + source];
    const int64_t first = feed->sample_base + tl_program_int(p, k, "first", 0);
    const int64_t samples = tl_program_int(p, k, "samples", 0);
    if (feed->data == NULL)
      return tl_fail(TL_PROGRAM, "rank %d: %s: source %lld is not there", i, place,
                     (long long)source);
    if (first < 0 || first > feed->samples - samples)
      return tl_fail(TL_PROGRAM, "rank %d: %s: samples %lld to %lld of a global batch of %lld", i,
                     place, (long long)first, (long long)(first + samples - 1),
                     (long long)feed->samples);
  }
  return TL_OK;
}

/* In host memory, or on the rank's GPU. */
static tl_status open_arena(rank *r, const tl_ranks_options *o, int32_t i) {
  const tl_program *p = o->plans[i].program;
  void *arena;
  if (o->gpu_first >= 0) {
    TL_TRY(tl_gpu_open(p, o->gpu_first + i, o->poison, &r->executor.gpu));
    r->executor.arena = tl_gpu_arena(r->executor.gpu);
    return TL_OK;
  }
  TL_TRY(tl_memory_alloc(TL_MEMORY_ARENA, p->arena_bytes, &arena));
  r->executor.arena = arena;
  return TL_OK;
}

static tl_status open_rank(tl_ranks *ranks, const tl_ranks_options *o, int32_t i) {
  rank *r = &ranks->list[i];
  const tl_program *p = o->plans[i].program;
  const size_t feeds = (size_t)o->feed_count;
  r->ranks = ranks;
  r->executor = (tl_executor){.program = p, .comms = r->comms, .world = ranks->world};
  r->executor.rank = i, r->executor.ranks = o->count;
  r->executor.sample_base = o->sample_bases[i];
  r->executor.faults = ranks->faults, r->executor.fault_count = o->fault_count;
  r->executor.delay_us = o->delay_us;
  TL_TRY(open_arena(r, o, i));
  r->feeds = calloc(feeds + 1, sizeof *r->feeds);
  r->executor.views = calloc((size_t)p->operand_count + 1, sizeof *r->executor.views);
  if (r->feeds == NULL || r->executor.views == NULL)
    return tl_fail(TL_MEMORY, "no room for rank %d", i);
  if (feeds > 0) memcpy(r->feeds, o->feeds + (size_t)i * feeds, feeds * sizeof *r->feeds);
  r->executor.feeds = r->feeds;
  tl_executor_resolve(&r->executor);
  return tl_team_open(ranks->pool, &r->executor.team);
}

/* Returns when all of them sleep. They inherit the mask, so signals stay with the caller. */
static tl_status start_threads(tl_ranks *ranks) {
  sigset_t all, before;
  tl_status status = TL_OK;
  ranks->running = ranks->count;
  sigfillset(&all);
  sigdelset(&all, SIGBUS); /* a fault of the rank itself; files.c answers it */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int32_t i = 0; i < ranks->count; i++) {
    if (pthread_create(&ranks->list[i].thread, NULL, rank_main, &ranks->list[i]) != 0)
      TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "the thread of rank %d cannot be started", i), done);
    ranks->list[i].started = 1;
    tl_cores_name(ranks->list[i].thread, "rank", i);
    if (ranks->placement.pinned) TL_TRY_GOTO(status, tl_cores_pin(ranks->list[i].thread, i), done);
  }
  pthread_mutex_lock(&ranks->mutex);
  while (ranks->running > 0) pthread_cond_wait(&ranks->end, &ranks->mutex);
  pthread_mutex_unlock(&ranks->mutex);
done:
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return status;
}

static tl_status open_all(tl_ranks *ranks, const tl_ranks_options *o, const tl_channel *channels,
                          int32_t channel_count) {
  const int32_t helpers = o->cores > o->count ? o->cores - o->count : 0;
  if (o->fault_count > 0) {
    ranks->faults = malloc((size_t)o->fault_count * sizeof *ranks->faults);
    if (ranks->faults == NULL) return tl_fail(TL_MEMORY, "no room for faults");
    memcpy(ranks->faults, o->faults, (size_t)o->fault_count * sizeof *ranks->faults);
  }
  TL_TRY(tl_world_open(o->count, describe, ranks, &ranks->world));
  TL_TRY(tl_cores_place(o->count + helpers, &ranks->placement));
  if (o->gpu_first >= 0) ranks->placement.pinned = 0; /* it only queues, near its GPU at best */
  const tl_placement *p = &ranks->placement;
  TL_TRY(tl_threads_open(ranks->world, p->look_on, &ranks->transport));
  TL_TRY(tl_pool_open(helpers, p->pinned ? o->count : -1, p->look_on, &ranks->pool));
  for (int32_t i = 0; i < o->count; i++) {
    TL_TRY(check_feeds(o, i));
    TL_TRY(open_rank(ranks, o, i));
  }
  TL_TRY(open_comms(ranks, o));
  for (int32_t i = 0; i < channel_count; i++)
    TL_TRY(tl_threads_channel(ranks->transport, channels[i].source, channels[i].target,
                              channels[i].number, channels[i].bytes_max));
  return start_threads(ranks);
}

tl_status tl_ranks_open(const tl_ranks_options *o, tl_ranks **out) {
  tl_channel *channels = NULL;
  int32_t channel_count = 0;
  tl_status status = TL_OK;
  TL_TRY(tl_ranks_verify(o->plans, o->count, &channels, &channel_count));
  tl_ranks *ranks = calloc(1, sizeof *ranks + (size_t)o->count * sizeof ranks->list[0]);
  if (ranks == NULL) TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room for ranks"), done);
  ranks->count = o->count, ranks->poison = o->poison;
  ranks->run.step.seed = o->seed;
  ranks->limit = (tl_limit){.timeout_s = o->timeout_s, .start_s = o->start_s};
  pthread_mutex_init(&ranks->mutex, NULL);
  pthread_cond_init(&ranks->begin, NULL);
  pthread_cond_init(&ranks->end, NULL);
  TL_TRY_GOTO(status, open_all(ranks, o, channels, channel_count), done);
  *out = ranks, ranks = NULL;
done:
  tl_ranks_close(ranks);
  free(channels);
  return status;
}

static void close_rank(rank *r) {
  for (int32_t g = 0; g < TL_GROUPS_MAX; g++) tl_comm_close(r->comms[g]);
  tl_team_close(r->executor.team);
  if (r->executor.gpu == NULL) tl_memory_free(r->executor.arena);
  tl_gpu_close(r->executor.gpu);
  tl_trace_close(r->executor.trace); /* the GPU's part of it is closed */
  free(r->executor.views);
  free(r->feeds);
}

void tl_ranks_close(tl_ranks *ranks) {
  if (ranks == NULL) return;
  pthread_mutex_lock(&ranks->mutex);
  ranks->closing = 1;
  pthread_cond_broadcast(&ranks->begin);
  pthread_mutex_unlock(&ranks->mutex);
  for (int32_t i = 0; i < ranks->count && !ranks->lost; i++)
    if (ranks->list[i].started) pthread_join(ranks->list[i].thread, NULL);
  if (ranks->lost) return;
  for (int32_t i = 0; i < ranks->count; i++) close_rank(&ranks->list[i]);
  tl_pool_close(ranks->pool);
  tl_threads_close(ranks->transport);
  tl_world_close(ranks->world);
  free(ranks->faults);
  pthread_cond_destroy(&ranks->end);
  pthread_cond_destroy(&ranks->begin);
  pthread_mutex_destroy(&ranks->mutex);
  free(ranks);
}

/* Waits for all ranks; after an abort only as long as a silent rank is waited for. */
static void wait_for_ranks(tl_ranks *ranks, double limit_s) {
  int64_t aborted_ns = 0;
  while (ranks->running > 0) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&ranks->end, &ranks->mutex, &until);
    if (!tl_world_aborted(ranks->world)) continue;
    if (aborted_ns == 0) aborted_ns = tl_now_ns();
    if ((double)(tl_now_ns() - aborted_ns) / 1e9 > limit_s + 1) break;
  }
  ranks->lost = ranks->running > 0;
}

static tl_status failure(const tl_ranks *ranks) {
  int32_t rank;
  const char *text = tl_world_error(ranks->world, &rank);
  const tl_status status = ranks->lost ? TL_COMM : ranks->list[rank].status;
  return tl_fail(status, "%s%s", text, ranks->lost ? "; it never came back" : "");
}

tl_status tl_ranks_run(tl_ranks *ranks, const tl_run *run, tl_results *out) {
  const uint64_t seed = ranks->run.step.seed;
  if (tl_world_aborted(ranks->world))
    return tl_fail(TL_COMM, "these ranks have failed before and cannot go on");
  if (run->step.scalar_count > TL_SCALARS_MAX)
    return tl_fail(TL_ARGUMENT, "%d scalars; there is room for %d", run->step.scalar_count,
                   TL_SCALARS_MAX);
  const double limit_s = tl_limit_of(&ranks->limit, run->section);
  const int64_t start = tl_now_ns();
  pthread_mutex_lock(&ranks->mutex);
  ranks->run = *run;
  ranks->run.step.seed = seed;
  if (run->step.scalar_count > 0)
    memcpy(ranks->scalars, run->step.scalars, (size_t)run->step.scalar_count * sizeof(float));
  ranks->run.step.scalars = ranks->scalars;
  tl_world_begin(ranks->world, limit_s);
  ranks->running = ranks->count;
  ranks->turn++;
  pthread_cond_broadcast(&ranks->begin);
  wait_for_ranks(ranks, limit_s);
  pthread_mutex_unlock(&ranks->mutex);
  if (tl_world_aborted(ranks->world)) return failure(ranks);
  const int64_t ns = tl_now_ns() - start;
  tl_limit_note(&ranks->limit, run->section, ns);
  *out = (tl_results){.ms = (double)ns / 1e6};
  return tl_results_read(ranks, run->section, out);
}

/* The place of a tensor in the rank's arena: an address of its device. */
static tl_status place_of(const tl_ranks *ranks, int32_t rank, int32_t tensor, tl_view *out) {
  if (rank < 0 || rank >= ranks->count)
    return tl_fail(TL_ARGUMENT, "rank %d; there are %d", rank, ranks->count);
  const tl_executor *e = &ranks->list[rank].executor;
  if (tensor < 0 || tensor >= e->program->place_count)
    return tl_fail(TL_ARGUMENT, "tensor %d; rank %d has %d", tensor, rank, e->program->place_count);
  *out = e->program->places[tensor].view;
  out->data = e->arena + e->program->places[tensor].offset;
  return TL_OK;
}

tl_status tl_ranks_view(const tl_ranks *ranks, int32_t rank, int32_t tensor, tl_view *out) {
  TL_TRY(place_of(ranks, rank, tensor, out));
  out->data = NULL;
  return TL_OK;
}

tl_status tl_ranks_read(const tl_ranks *ranks, int32_t rank, int32_t tensor, void *to) {
  tl_view from;
  TL_TRY(place_of(ranks, rank, tensor, &from));
  tl_gpu *gpu = ranks->list[rank].executor.gpu;
  if (gpu != NULL) return tl_gpu_read(gpu, from.data, tl_view_bytes(&from), to);
  memcpy(to, from.data, (size_t)tl_view_bytes(&from));
  return TL_OK;
}

tl_status tl_ranks_write(const tl_ranks *ranks, int32_t rank, int32_t tensor, const void *from) {
  tl_view to;
  TL_TRY(place_of(ranks, rank, tensor, &to));
  tl_gpu *gpu = ranks->list[rank].executor.gpu;
  if (gpu != NULL) return tl_gpu_write(gpu, to.data, tl_view_bytes(&to), from);
  memcpy(to.data, from, (size_t)tl_view_bytes(&to));
  return TL_OK;
}

int32_t tl_ranks_count(const tl_ranks *ranks) { return ranks->count; }

const tl_program *tl_ranks_program(const tl_ranks *ranks, int32_t rank) {
  return ranks->list[rank].executor.program;
}

tl_status tl_ranks_trace(tl_ranks *ranks, const tl_trace_options *options) {
  for (int32_t i = 0; i < ranks->count; i++) {
    tl_executor *e = &ranks->list[i].executor;
    if (e->gpu != NULL) TL_TRY(tl_gpu_set_trace(e->gpu, NULL));
    tl_trace_close(e->trace);
    e->trace = NULL;
    if (options == NULL) continue;
    tl_trace_options own = options[i];
    own.sample_base = e->sample_base;
    TL_TRY(tl_trace_open(e->program, &own, &e->trace));
    if (e->gpu != NULL) TL_TRY(tl_gpu_set_trace(e->gpu, e->trace));
  }
  return TL_OK;
}

const tl_trace *tl_ranks_traced(const tl_ranks *ranks, int32_t rank) {
  return ranks->list[rank].executor.trace;
}
