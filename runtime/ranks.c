/* ranks.c - runs sections on rank threads, reads and writes their tensors. */
#define _GNU_SOURCE
#include "ranks.h"

#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash_team.h"
#include "ranks_inner.h"
#include "results.h"

enum { NAME_NS = 1000000000 };

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

/* A transport that fails seldom knows who is gone. The job's connections do, a moment later: then
** it is their message that counts, the first. */
static void wait_for_name(const tl_ranks *ranks) {
  const int64_t start = tl_now_ns();
  while (!tl_world_aborted(ranks->world) && tl_now_ns() - start < NAME_NS)
    nanosleep(&(struct timespec){.tv_nsec = NAME_NS / 100}, NULL);
}

/* Runs the section; a failure ends it on all ranks. */
static void run_section(tl_rank *r) {
  tl_ranks *ranks = r->ranks;
  const tl_run *run = &ranks->run;
  r->status = fill_scratch(ranks, &r->executor);
  tl_fresh_end(&r->executor, &r->fresh); /* of the run before */
  if (r->status == TL_OK && run->fresh)
    r->status = tl_fresh_begin(&r->executor, run->section, &r->fresh);
  if (r->status == TL_OK) r->status = tl_execute(&r->executor, run);
  if (r->status == TL_OK && ranks->processes != NULL)
    r->status = tl_processes_finish(ranks->processes);
  if (r->status == TL_OK) return;
  snprintf(r->error, sizeof r->error, "%s", tl_last_error());
  if (r->status == TL_LOST && ranks->job != NULL) wait_for_name(ranks);
  tl_world_abort(ranks->world, r->executor.rank, r->status, r->error);
}

void *tl_rank_main(void *argument) {
  tl_rank *r = argument;
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
  const tl_status status = ranks->lost ? TL_LOST : tl_world_status(ranks->world);
  return tl_fail(status, "%s%s", text, ranks->lost ? "; it never came back" : "");
}

int32_t tl_ranks_here(const tl_ranks *ranks, int32_t rank) {
  return rank >= ranks->first && rank < ranks->first + ranks->local;
}

tl_status tl_ranks_run_here(tl_ranks *ranks, const tl_run *run, double limit_s) {
  const uint64_t seed = ranks->run.step.seed;
  pthread_mutex_lock(&ranks->mutex);
  ranks->run = *run;
  ranks->run.step.seed = seed;
  if (run->step.scalar_count > 0)
    memcpy(ranks->scalars, run->step.scalars, (size_t)run->step.scalar_count * sizeof(float));
  ranks->run.step.scalars = ranks->scalars;
  tl_world_begin(ranks->world, limit_s);
  ranks->running = ranks->local;
  ranks->turn++;
  pthread_cond_broadcast(&ranks->begin);
  wait_for_ranks(ranks, limit_s);
  pthread_mutex_unlock(&ranks->mutex);
  return tl_world_aborted(ranks->world) ? failure(ranks) : TL_OK;
}

tl_status tl_ranks_run(tl_ranks *ranks, const tl_run *run, tl_results *out) {
  if (tl_world_aborted(ranks->world))
    return tl_fail(TL_COMM, "these ranks have failed before and cannot go on");
  if (run->step.scalar_count > TL_SCALARS_MAX)
    return tl_fail(TL_ARGUMENT, "%d scalars; there is room for %d", run->step.scalar_count,
                   TL_SCALARS_MAX);
  const double limit_s = tl_limit_of(&ranks->limit, run->section);
  const int64_t start = tl_now_ns();
  if (ranks->job != NULL) TL_TRY(tl_remote_run(ranks, run, limit_s));
  TL_TRY(tl_ranks_run_here(ranks, run, limit_s));
  if (ranks->job != NULL && tl_remote_finish(ranks) != TL_OK)
    return tl_world_aborted(ranks->world) ? failure(ranks) : TL_COMM;
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
  out->data = tl_fresh_place(e, &ranks->list[rank].fresh, tensor);
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
  if (!tl_ranks_here(ranks, rank))
    return tl_remote_read((tl_ranks *)(uintptr_t)ranks, rank, tensor, to, tl_view_bytes(&from));
  tl_gpu *gpu = ranks->list[rank].executor.gpu;
  if (gpu != NULL) return tl_gpu_read(gpu, from.data, tl_view_bytes(&from), to);
  memcpy(to, from.data, (size_t)tl_view_bytes(&from));
  return TL_OK;
}

tl_status tl_ranks_write(const tl_ranks *ranks, int32_t rank, int32_t tensor, const void *from) {
  tl_view to;
  TL_TRY(place_of(ranks, rank, tensor, &to));
  if (!tl_ranks_here(ranks, rank))
    return tl_remote_write((tl_ranks *)(uintptr_t)ranks, rank, tensor, from, tl_view_bytes(&to));
  tl_gpu *gpu = ranks->list[rank].executor.gpu;
  if (gpu != NULL) return tl_gpu_write(gpu, to.data, tl_view_bytes(&to), from);
  memcpy(to.data, from, (size_t)tl_view_bytes(&to));
  return TL_OK;
}

tl_status tl_ranks_hash(const tl_ranks *ranks, int32_t rank, int32_t tensor,
                        const tl_hash_part *part, uint64_t *out) {
  tl_view of;
  TL_TRY(place_of(ranks, rank, tensor, &of));
  if (part->rows < 1 || part->cols < 1 || part->cols > part->pitch ||
      part->rows > tl_view_count(&of) / part->pitch)
    return tl_fail(TL_ARGUMENT,
                   "hash: rows times cols is more than the tensor has: %lld rows, %lld of %lld "
                   "columns, of %lld elements",
                   (long long)part->rows, (long long)part->cols, (long long)part->pitch,
                   (long long)tl_view_count(&of));
  if (!tl_ranks_here(ranks, rank))
    return tl_remote_hash((tl_ranks *)(uintptr_t)ranks, rank, tensor, part, out);
  const tl_executor *e = &ranks->list[rank].executor;
  if (e->gpu != NULL) return tl_gpu_hash(e->gpu, part, &of, out);
  *out = tl_hash_by_team(e->team, part, of.data, of.dtype);
  return TL_OK;
}

tl_status tl_ranks_result(const tl_ranks *ranks, int32_t rank, tl_result result, void *to) {
  const tl_rank *r = &ranks->list[rank];
  if (tl_ranks_here(ranks, rank))
    return tl_ranks_read(ranks, rank, r->executor.program->results[result], to);
  memcpy(to, r->told.results[result], sizeof r->told.results[result]);
  return TL_OK;
}

int32_t tl_ranks_count(const tl_ranks *ranks) { return ranks->count; }

const tl_program *tl_ranks_program(const tl_ranks *ranks, int32_t rank) {
  return ranks->list[rank].executor.program;
}

tl_status tl_ranks_trace_one(tl_ranks *ranks, int32_t rank, int32_t on,
                             const tl_trace_options *of) {
  tl_executor *e = &ranks->list[rank].executor;
  if (e->gpu != NULL) TL_TRY(tl_gpu_set_trace(e->gpu, NULL));
  tl_trace_close(e->trace);
  e->trace = NULL;
  if (!on) return TL_OK;
  tl_trace_options own = of != NULL ? *of : (tl_trace_options){0};
  own.sample_base = e->sample_base;
  own.elsewhere = !tl_ranks_here(ranks, rank);
  TL_TRY(tl_trace_open(e->program, &own, &e->trace));
  return e->gpu != NULL ? tl_gpu_set_trace(e->gpu, e->trace) : TL_OK;
}

tl_status tl_ranks_trace(tl_ranks *ranks, int32_t on, const tl_trace_options *options) {
  for (int32_t i = 0; i < ranks->count; i++) {
    const tl_trace_options *of = options != NULL ? &options[i] : NULL;
    TL_TRY(tl_ranks_trace_one(ranks, i, on, of));
    if (!tl_ranks_here(ranks, i)) TL_TRY(tl_remote_trace(ranks, i, on, of));
  }
  return TL_OK;
}

const tl_trace *tl_ranks_traced(const tl_ranks *ranks, int32_t rank) {
  return ranks->list[rank].executor.trace;
}

void tl_ranks_memory(const tl_ranks *ranks, int64_t *current, int64_t *peak) {
  for (int kind = 0; kind < TL_MEMORY_COUNT; kind++) {
    current[kind] = tl_memory_current((tl_memory)kind);
    peak[kind] = tl_memory_peak((tl_memory)kind);
    for (int32_t i = 0; i < ranks->count; i++) {
      if (tl_ranks_here(ranks, i)) continue;
      current[kind] += ranks->list[i].told.current[kind];
      peak[kind] += ranks->list[i].told.peak[kind];
    }
  }
}

tl_traffic tl_ranks_traffic(const tl_ranks *ranks, int32_t rank, int32_t group) {
  const tl_traffic none = {
      .moved = -1, .wait_ns = -1, .exchanged = {-1, -1, -1}
  };
  if (rank < 0 || rank >= ranks->count || !tl_ranks_here(ranks, rank)) return none;
  const tl_executor *e = &ranks->list[rank].executor;
  if (group < 0 || group >= e->program->group_count) return none;
  if (e->gpu != NULL) {
    tl_path path;
    tl_traffic rows = {.moved = -1, .wait_ns = -1};
    const int64_t bytes = tl_gpu_exchanged(e->gpu, group, &path);
    rows.exchanged[path] = bytes;
    return rows;
  }
  tl_traffic traffic = {.moved = e->comms[group]->moved};
  traffic.wait_ns = tl_world_waited(e->world, rank, 0);
  for (int path = 0; path < TL_PATH_COUNT; path++)
    traffic.exchanged[path] = e->comms[group]->exchanged[path];
  return traffic;
}
