/* ranks_open.c - opens everything that ranks need, starts their threads, and closes it all. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks_inner.h"

/* Where a rank is, for messages of others: reads only what is constant during a run. */
static void describe(void *context, int32_t rank, int32_t instruction, char *out, size_t bytes) {
  const tl_ranks *ranks = context;
  const tl_program *p = ranks->list[rank].executor.program;
  char place[200];
  tl_program_describe(p, instruction, place, sizeof place);
  snprintf(out, bytes, "%s, step %lld, micro-batch %d", place, (long long)ranks->run.step.step + 1,
           p->instructions[instruction].micro);
}

/* One rank's handle on one of its groups, by whichever transport there is. */
static tl_status open_comm(tl_ranks *ranks, int32_t rank, int32_t g, const tl_rank_group *group) {
  tl_executor *e = &ranks->list[rank].executor;
  const char *name = e->program->texts[e->program->group_names[g]];
  if (ranks->peers != NULL) return tl_peers_group(ranks->peers, rank, g, name, group);
  if (ranks->nccl != NULL) return tl_nccl_group(ranks->nccl, g, group);
  if (ranks->processes != NULL)
    return tl_processes_group(ranks->processes, name, group->ranks, group->size, group->position,
                              &e->comms[g]);
  return tl_threads_group(ranks->transport, name, group->ranks, group->size, group->position,
                          e->team, &e->comms[g]);
}

static tl_status open_channel(tl_ranks *ranks, const tl_channel *c) {
  if (ranks->nccl != NULL) return TL_OK; /* it has them all */
  if (ranks->peers != NULL)
    return tl_peers_channel(ranks->peers, c->source, c->target, c->number, c->bytes_max);
  if (ranks->processes == NULL)
    return tl_threads_channel(ranks->transport, c->source, c->target, c->number, c->bytes_max);
  if (!tl_ranks_here(ranks, c->source) && !tl_ranks_here(ranks, c->target)) return TL_OK;
  return tl_processes_channel(ranks->processes, c->source, c->target, c->number, c->bytes_max);
}

static tl_status open_comms(tl_ranks *ranks, const tl_ranks_options *o, const tl_channel *channels,
                            int32_t channel_count) {
  for (int32_t i = ranks->first; i < ranks->first + ranks->local; i++)
    for (int32_t g = 0; g < o->plans[i].program->group_count; g++)
      TL_TRY(open_comm(ranks, i, g, &o->plans[i].groups[g]));
  for (int32_t i = 0; i < channel_count; i++) TL_TRY(open_channel(ranks, &channels[i]));
  return TL_OK;
}

static tl_status open_processes(tl_ranks *ranks, const tl_ranks_options *o) {
  int32_t largest = 1;
  for (int32_t g = 0; g < o->plans[ranks->first].program->group_count; g++) {
    const int32_t size = o->plans[ranks->first].groups[g].size;
    largest = size > largest ? size : largest;
  }
  if (tl_job_mover(ranks->job) == NULL)
    return tl_fail(TL_COMM,
                   "ranks on the host as processes need MPI: start them with mpirun or "
                   "srun; other launchers are for device = \"cuda\"");
  return tl_processes_open(ranks->world, tl_job_mover(ranks->job), ranks->first, largest,
                           &ranks->processes);
}

static tl_status check_gpus(const tl_ranks *ranks, const tl_ranks_options *o) {
  int32_t there = 0;
  TL_TRY(tl_cuda_count(&there));
  if (o->gpu_first + ranks->local <= there) return TL_OK;
  return tl_fail(TL_DEVICE,
                 "%d ranks need a GPU each, from GPU %d on, and this machine has %d: use a layout "
                 "of %d, more machines, or device = \"host\"",
                 ranks->local, o->gpu_first, there,
                 there > o->gpu_first ? there - o->gpu_first : 1);
}

/* Each GPU is there when its rank is; they see each other from here on. */
static tl_status connect_gpus(tl_ranks *ranks, const tl_ranks_options *o,
                              const tl_channel *channels, int32_t channel_count) {
  TL_TRY(tl_peers_open(o->count, &ranks->peers));
  for (int32_t i = 0; i < o->count; i++) {
    tl_cuda *cuda = tl_gpu_cuda(ranks->list[i].executor.gpu);
    TL_TRY(tl_peers_add(ranks->peers, i, cuda));
    TL_TRY(tl_cuda_preload(cuda));
  }
  TL_TRY(open_comms(ranks, o, channels, channel_count));
  TL_TRY(tl_peers_connect(ranks->peers));
  for (int32_t i = 0; i < o->count; i++)
    tl_gpu_connect(ranks->list[i].executor.gpu, tl_peers_end(ranks->peers, i));
  return TL_OK;
}

/* The other GPUs are other processes'. */
static tl_status connect_processes(tl_ranks *ranks, const tl_ranks_options *o,
                                   const tl_channel *channels, int32_t channel_count) {
  tl_gpu *gpu = ranks->list[ranks->first].executor.gpu;
  TL_TRY(tl_cuda_preload(tl_gpu_cuda(gpu)));
  TL_TRY(tl_nccl_open(ranks->job, tl_gpu_cuda(gpu), channels, channel_count, &ranks->nccl));
  TL_TRY(open_comms(ranks, o, channels, channel_count));
  TL_TRY(tl_nccl_warm(ranks->nccl));
  tl_gpu_connect(gpu, tl_nccl_end(ranks->nccl));
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

/* Of the launcher's processes on this machine, or of the ranks of this process. */
static int32_t gpu_of(const tl_ranks *ranks, const tl_ranks_options *o, int32_t rank) {
  return o->gpu_first + rank - ranks->first;
}

/* In host memory, or on the rank's GPU. */
static tl_status open_arena(tl_rank *r, const tl_ranks_options *o, int32_t i) {
  const tl_program *p = o->plans[i].program;
  void *arena;
  if (o->gpu_first >= 0) {
    const tl_cuda_blocks blocks = {o->gemm_tile[0], o->gemm_tile[1], o->attention_rows,
                                   o->gemm_provider};
    TL_TRY(tl_gpu_open(p, gpu_of(r->ranks, o, i), o->poison, &blocks, &r->executor.gpu));
    r->executor.arena = tl_gpu_arena(r->executor.gpu);
    return TL_OK;
  }
  TL_TRY(tl_memory_alloc(TL_MEMORY_ARENA, p->arena_bytes, &arena));
  r->executor.arena = arena;
  return TL_OK;
}

static tl_status open_rank(tl_ranks *ranks, const tl_ranks_options *o, int32_t i) {
  tl_rank *r = &ranks->list[i];
  const tl_program *p = o->plans[i].program;
  const size_t feeds = (size_t)o->feed_count;
  r->ranks = ranks;
  r->executor = (tl_executor){.program = p, .comms = r->comms, .world = ranks->world};
  r->executor.rank = i, r->executor.ranks = o->count;
  r->executor.sample_base = o->sample_bases[i];
  r->executor.faults = ranks->faults, r->executor.fault_count = o->fault_count;
  r->executor.delay_us = o->delay_us;
  if (!tl_ranks_here(ranks, i)) return TL_OK;
  TL_TRY(open_arena(r, o, i));
  r->feeds = calloc(feeds + 1, sizeof *r->feeds);
  r->executor.views = calloc((size_t)p->operand_count + 1, sizeof *r->executor.views);
  if (r->feeds == NULL || r->executor.views == NULL)
    return tl_fail(TL_MEMORY, "no room for rank %d", i);
  if (feeds > 0) memcpy(r->feeds, o->feeds + (size_t)i * feeds, feeds * sizeof *r->feeds);
  r->executor.feeds = r->feeds;
  tl_executor_resolve(&r->executor);
  TL_TRY(tl_team_open(ranks->pool, &r->executor.team));
  tl_team_shuffle(r->executor.team,
                  o->shuffle == 0 ? 0 : (uint64_t)o->shuffle * 1000 + (uint64_t)i);
  return TL_OK;
}

/* Returns when all of them sleep. They inherit the mask, so signals stay with the caller. */
static tl_status start_threads(tl_ranks *ranks) {
  sigset_t all, before;
  tl_status status = TL_OK;
  ranks->running = ranks->local;
  sigfillset(&all);
  sigdelset(&all, SIGBUS); /* a fault of the rank itself; files.c answers it */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int32_t i = ranks->first; i < ranks->first + ranks->local; i++) {
    if (pthread_create(&ranks->list[i].thread, NULL, tl_rank_main, &ranks->list[i]) != 0)
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
  const int32_t helpers = o->cores > ranks->local ? o->cores - ranks->local : 0;
  if (o->fault_count > 0) {
    ranks->faults = malloc((size_t)o->fault_count * sizeof *ranks->faults);
    if (ranks->faults == NULL) return tl_fail(TL_MEMORY, "no room for faults");
    memcpy(ranks->faults, o->faults, (size_t)o->fault_count * sizeof *ranks->faults);
  }
  TL_TRY(tl_world_open(o->count, describe, ranks, &ranks->world));
  TL_TRY(tl_cores_place(ranks->local + helpers, &ranks->placement));
  /* a GPU's rank only queues, near its GPU at best; processes do not know each other's places */
  if (o->gpu_first >= 0 || ranks->job != NULL) ranks->placement.pinned = 0;
  const tl_placement *p = &ranks->placement;
  if (ranks->job != NULL) tl_world_trust(ranks->world);
  if (ranks->job == NULL) {
    TL_TRY(tl_threads_open(ranks->world, p->look_on, &ranks->transport));
  } else if (o->gpu_first < 0) {
    TL_TRY(open_processes(ranks, o));
  }
  TL_TRY(tl_pool_open(helpers, p->pinned ? o->count : -1, p->look_on, &ranks->pool));
  if (o->gpu_first >= 0) TL_TRY(check_gpus(ranks, o));
  for (int32_t i = 0; i < o->count; i++) {
    TL_TRY(check_feeds(o, i));
    TL_TRY(open_rank(ranks, o, i));
  }
  if (o->gpu_first < 0) {
    TL_TRY(open_comms(ranks, o, channels, channel_count));
  } else if (ranks->job != NULL) {
    TL_TRY(connect_processes(ranks, o, channels, channel_count));
  } else if (o->count > 1) {
    TL_TRY(connect_gpus(ranks, o, channels, channel_count));
  }
  return start_threads(ranks);
}

tl_status tl_ranks_open(const tl_ranks_options *o, tl_ranks **out) {
  tl_channel *channels = NULL;
  int32_t channel_count = 0;
  tl_status status = TL_OK;
  TL_TRY(tl_ranks_verify(o->plans, o->count, &channels, &channel_count));
  tl_ranks *ranks = calloc(1, sizeof *ranks + (size_t)o->count * sizeof ranks->list[0]);
  if (ranks == NULL) TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room for ranks"), done);
  ranks->count = o->count, ranks->poison = o->poison, ranks->job = o->job;
  ranks->first = o->job != NULL ? tl_job_rank(o->job) : 0;
  ranks->local = o->job != NULL ? 1 : o->count;
  ranks->run.step.seed = o->seed;
  ranks->limit = (tl_limit){.timeout_s = o->timeout_s, .start_s = o->start_s};
  pthread_mutex_init(&ranks->mutex, NULL);
  pthread_cond_init(&ranks->begin, NULL);
  pthread_cond_init(&ranks->end, NULL);
  TL_TRY_GOTO(status, open_all(ranks, o, channels, channel_count), done);
  if (ranks->job != NULL) tl_job_watch(ranks->job, ranks->world);
  *out = ranks, ranks = NULL;
done:
  tl_ranks_close(ranks);
  free(channels);
  return status;
}

static void close_rank(tl_rank *r) {
  for (int32_t g = 0; g < TL_GROUPS_MAX; g++) tl_comm_close(r->comms[g]);
  tl_team_close(r->executor.team);
  tl_fresh_end(&r->executor, &r->fresh);
  if (r->executor.gpu == NULL) tl_memory_free(r->executor.arena);
  tl_gpu_close(r->executor.gpu);
  tl_trace_close(r->executor.trace); /* after the GPU's part of it */
  free(r->executor.views);
  free(r->feeds);
}

void tl_ranks_close(tl_ranks *ranks) {
  if (ranks == NULL) return;
  if (ranks->job != NULL) {
    if (ranks->world != NULL && !tl_world_aborted(ranks->world)) tl_remote_close(ranks);
    tl_job_watch(ranks->job, NULL);
  }
  if (ranks->nccl != NULL && tl_world_aborted(ranks->world)) {
    tl_nccl_end(ranks->nccl)->kind->stop(tl_nccl_end(ranks->nccl));
    ranks->lost = 1; /* NCCL would wait for its peers */
  }
  pthread_mutex_lock(&ranks->mutex);
  ranks->closing = 1;
  pthread_cond_broadcast(&ranks->begin);
  pthread_mutex_unlock(&ranks->mutex);
  for (int32_t i = 0; i < ranks->count && !ranks->lost; i++)
    if (ranks->list[i].started) pthread_join(ranks->list[i].thread, NULL);
  if (ranks->lost) return;
  tl_ranks_end_queue(ranks);
  for (int32_t i = 0; i < ranks->count; i++) tl_gpu_forget(ranks->list[i].executor.gpu);
  tl_peers_close(ranks->peers);
  tl_nccl_close(ranks->nccl);
  for (int32_t i = 0; i < ranks->count; i++) close_rank(&ranks->list[i]);
  tl_pool_close(ranks->pool);
  tl_threads_close(ranks->transport);
  tl_processes_close(ranks->processes);
  tl_world_close(ranks->world);
  free(ranks->faults);
  pthread_cond_destroy(&ranks->end);
  pthread_cond_destroy(&ranks->begin);
  pthread_mutex_destroy(&ranks->mutex);
  free(ranks);
}
