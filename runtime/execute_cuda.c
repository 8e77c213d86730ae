/* execute_cuda.c - queues the instructions of a section, or replays them. */
#include "execute_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../kernels/comm/comm_args.h"
#include "../kernels/gemm/gemm_provider.h"
#include "../kernels/moe/moe.h"
#include "exchange_cuda.h"
#include "execute_inner.h"
#include "lanes_cuda.h"
#include "memory.h"
#include "nvtx.h"
#include "passes_cuda.h"
#include "staging_cuda.h"
#include "trace_cuda.h"
#include "uses.h"

enum {
  LOOK_NS = 20000, /* between two looks at a device that may wait for a peer */
  FEW_CALLS = 3    /* of a section that is queued: what begins a step, a pass, a choice */
};

struct tl_gpu {
  tl_cuda *cuda;
  const tl_program *program;
  tl_gpu_comm *comm; /* NULL: the program does not communicate */
  tl_lanes *lanes;
  tl_passes *passes;
  tl_carrier *carrier; /* NULL: nothing large was copied yet */
  void *arena, *step;  /* device memory */
  tl_device_step *host_step;
  tl_staging *staging;
  tl_gpu_trace *trace; /* NULL: none, or one whose operands the host takes */
  int32_t routes;      /* 1: kernels may find something wrong with data */
  void *graphs[TL_SECTIONS], *traced_graphs[TL_SECTIONS];
  int32_t runs[TL_SECTIONS], traced_runs[TL_SECTIONS];
  int32_t calls[TL_SECTIONS]; /* of the captured section */
  int32_t follows;            /* 1: kernels that came before the section may still run */
};

#define TRY_CUDA(g, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((g)->cuda), tl_cuda_calls((g)->cuda)->call, what))

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static int32_t has_op(const tl_program *p, tl_op op) {
  for (int32_t i = 0; i < p->instruction_count; i++)
    if (p->instructions[i].op == op) return 1;
  return 0;
}

static tl_status open_gpu(tl_gpu *gpu, int32_t ordinal, int32_t poison,
                          const tl_cuda_blocks *blocks) {
  void *pinned;
  TL_TRY(tl_execute_kernels(gpu->program));
  gpu->routes = has_op(gpu->program, TL_OP_route) || has_op(gpu->program, TL_OP_route_table);
  TL_TRY(tl_cuda_open(ordinal, &gpu->cuda));
  tl_cuda_set_blocks(gpu->cuda, blocks);
  TL_TRY(tl_lanes_open(gpu->cuda, gpu->program, &gpu->lanes));
  TL_TRY(tl_passes_open(gpu->cuda, gpu->program, &gpu->passes));
  TL_TRY(tl_staging_open(gpu->cuda, gpu->program, &gpu->staging));
  TL_TRY(tl_cuda_alloc(gpu->cuda, gpu->program->arena_bytes, &gpu->arena));
  tl_memory_note(TL_MEMORY_ARENA, gpu->program->arena_bytes);
  TL_TRY(tl_cuda_alloc(gpu->cuda, sizeof(tl_device_step) + 64, &gpu->step)); /* and a word */
  TRY_CUDA(gpu, "pinned memory",
           host_alloc(&pinned, sizeof(tl_device_step), TL_CUDA_HOST_PORTABLE));
  gpu->host_step = pinned;
  if (poison >= 0) TL_TRY(tl_gpu_fill(gpu, gpu->arena, gpu->program->arena_bytes, poison));
  return TL_OK;
}

tl_status tl_gpu_open(const tl_program *program, int32_t ordinal, int32_t poison,
                      const tl_cuda_blocks *blocks, tl_gpu **out) {
  tl_gpu *gpu = calloc(1, sizeof *gpu);
  if (gpu == NULL) return tl_fail(TL_MEMORY, "no room for a rank");
  gpu->program = program;
  const tl_status status = open_gpu(gpu, ordinal, poison, blocks);
  if (status != TL_OK) return tl_gpu_close(gpu), status;
  return *out = gpu, TL_OK;
}

void tl_gpu_forget(tl_gpu *gpu) {
  if (gpu == NULL || tl_cuda_enter(gpu->cuda) != TL_OK) return;
  for (int s = 0; s < TL_SECTIONS; s++) {
    if (gpu->graphs[s] != NULL) tl_cuda_calls(gpu->cuda)->graph_close(gpu->graphs[s]);
    if (gpu->traced_graphs[s] != NULL) tl_cuda_calls(gpu->cuda)->graph_close(gpu->traced_graphs[s]);
    gpu->graphs[s] = NULL, gpu->traced_graphs[s] = NULL;
  }
}

void tl_gpu_close(tl_gpu *gpu) {
  if (gpu == NULL) return;
  if (gpu->cuda != NULL && tl_cuda_enter(gpu->cuda) == TL_OK) {
    const tl_cuda_api *api = tl_cuda_calls(gpu->cuda);
    tl_gpu_forget(gpu);
    tl_gpu_trace_close(gpu->trace);
    if (gpu->host_step != NULL) api->host_free(gpu->host_step);
    tl_staging_close(gpu->staging);
    tl_lanes_close(gpu->lanes);
    tl_passes_close(gpu->passes);
    tl_carrier_close(gpu->carrier);
    tl_cuda_free(gpu->cuda, gpu->step);
    if (gpu->arena != NULL) tl_memory_note(TL_MEMORY_ARENA, -gpu->program->arena_bytes);
    tl_cuda_free(gpu->cuda, gpu->arena);
  }
  tl_cuda_close(gpu->cuda);
  free(gpu);
}

int64_t tl_gpu_exchanged(const tl_gpu *gpu, int32_t group, tl_path *path) {
  *path = gpu->comm == NULL ? TL_PATH_PEER : gpu->comm->kind->path;
  return gpu->comm == NULL ? 0 : gpu->comm->kind->exchanged(gpu->comm, group);
}

char *tl_gpu_arena(const tl_gpu *gpu) { return gpu->arena; }
tl_cuda *tl_gpu_cuda(const tl_gpu *gpu) { return gpu->cuda; }
tl_carrier **tl_gpu_carrier(tl_gpu *gpu) { return &gpu->carrier; }
void *tl_gpu_word(const tl_gpu *gpu) { return (char *)gpu->step + sizeof(tl_device_step); }

void tl_gpu_connect(tl_gpu *gpu, tl_gpu_comm *comm) { gpu->comm = comm; }

/* Samples and counts of the whole section, and the numbers of the step. */
static tl_status prepare(tl_gpu *gpu, tl_executor *e, const tl_run *run, const tl_step *step) {
  tl_device_step *d = gpu->host_step;
  d->step = step->step, d->seed = step->seed, d->sample_base = step->sample_base;
  memcpy(d->scalars, step->scalars, (size_t)step->scalar_count * sizeof(float));
  return tl_staging_make(gpu->staging, e, gpu->program->sections[run->section], step);
}

static tl_status queue_message(tl_gpu *gpu, tl_executor *e, int32_t index) {
  const tl_instruction *i = &gpu->program->instructions[index];
  const tl_gpu_message message = {.op = i->op,
                                  .instruction = index,
                                  .ints = gpu->program->ints + i->ints.first,
                                  .int_count = i->ints.count,
                                  .x = i->in.count > 0 ? e->views + i->in.first : NULL,
                                  .y = i->out.count > 0 ? e->views + i->out.first : NULL,
                                  .stream = tl_lanes_stream(gpu->lanes, index)};
  if (gpu->comm == NULL && i->op == TL_OP_exchange)
    return tl_exchange_queue(gpu->cuda, &message, NULL, &(tl_exchange_seat){.ranks = 1});
  if (gpu->comm == NULL)
    return tl_fail(TL_PROGRAM, "%s: this rank has nobody to talk to", tl_ops[i->op].name);
  return gpu->comm->kind->queue(gpu->comm, &message);
}

static tl_call call_of(const tl_gpu *gpu, const tl_executor *e, int32_t index) {
  const tl_program *p = gpu->program;
  const tl_instruction *i = &p->instructions[index];
  return (tl_call){.in = e->views + i->in.first,
                   .out = e->views + i->out.first,
                   .in_count = i->in.count,
                   .out_count = i->out.count,
                   .ints = p->ints + i->ints.first,
                   .int_count = i->ints.count,
                   .floats = p->floats + i->floats.first,
                   .float_count = i->floats.count,
                   .step = gpu->step,
                   .cuda = gpu->cuda,
                   .ahead = gpu->follows ? 0 : tl_uses_ahead(p, index)};
}

static tl_status queue_kernel(tl_gpu *gpu, tl_executor *e, int32_t index) {
  const tl_call call = call_of(gpu, e, index);
  tl_cuda_set_place(gpu->cuda, index);
  return tl_ops[gpu->program->instructions[index].op].cuda(&call);
}

typedef struct caller {
  const tl_gpu *gpu;
  const tl_executor *executor;
} caller;

static int32_t fused_call(void *context, int32_t index, int32_t end, tl_fused_call *out) {
  const caller *c = context;
  const tl_instruction *i = &c->gpu->program->instructions[index];
  if (tl_lanes_meet(c->gpu->lanes, index)) return 0;
  if (tl_ops[i->op].traits & (TL_TRAIT_DATA | TL_TRAIT_COMM)) return 0;
  *out = (tl_fused_call){.op = i->op, .call = call_of(c->gpu, c->executor, index)};
  tl_uses_note(c->gpu->program, index, end, out);
  return 1;
}

/* Before a section runs for the first time: who multiplies each of its products. */
static tl_status prepare_products(tl_gpu *gpu, tl_executor *e, tl_range all, const tl_step *step) {
  for (int32_t index = all.first; index < all.first + all.count; index++) {
    const tl_call call = call_of(gpu, e, index);
    const tl_status status = tl_gemm_prepare(gpu->program->instructions[index].op, &call);
    if (status != TL_OK) return tl_execute_locate(e, index, step, status);
  }
  return TL_OK;
}

static tl_status wait_with_peers(tl_gpu *gpu, tl_executor *e, void *stream);

/* `faults`, where a test planted some: what they change is changed before the output is hashed. */
static tl_status queue_instruction(tl_gpu *gpu, tl_executor *e, int32_t index,
                                   const tl_run *faults) {
  const int32_t traits = tl_ops[gpu->program->instructions[index].op].traits;
  void *stream = tl_lanes_stream(gpu->lanes, index);
  TL_TRY(tl_lanes_before(gpu->lanes, index));
  if (gpu->trace != NULL) TL_TRY(tl_gpu_trace_before(gpu->trace, index, e->views, stream));
  if (traits & TL_TRAIT_DATA) {
    TL_TRY(tl_staging_queue(gpu->staging, e, index));
  } else if (traits & TL_TRAIT_COMM) {
    TL_TRY(queue_message(gpu, e, index));
  } else {
    TL_TRY(queue_kernel(gpu, e, index));
  }
  if (faults != NULL) TL_TRY(wait_with_peers(gpu, e, stream));
  if (faults != NULL) TL_TRY(tl_execute_faults(e, index, faults->step.step, 1));
  if (gpu->trace != NULL) TL_TRY(tl_gpu_trace_after(gpu->trace, index, e->views, stream));
  return tl_lanes_after(gpu->lanes, index);
}

static tl_status queue_numbers(tl_gpu *gpu) {
  TRY_CUDA(gpu, "numbers of the step",
           copy_in(address(gpu->step), gpu->host_step, sizeof *gpu->host_step,
                   tl_cuda_stream(gpu->cuda)));
  return TL_OK;
}

static tl_status queue_begin(tl_gpu *gpu) {
  if (gpu->trace != NULL) TL_TRY(tl_gpu_trace_begin(gpu->trace));
  return tl_lanes_fork(gpu->lanes);
}

/* Ends what queue_begin began: all streams are joined. */
static tl_status queue_end(tl_gpu *gpu) {
  TL_TRY(tl_lanes_join(gpu->lanes));
  if (gpu->routes) TL_TRY(tl_cuda_queue_look(gpu->cuda));
  if (gpu->trace != NULL) TL_TRY(tl_gpu_trace_end(gpu->trace));
  if (gpu->comm == NULL || gpu->comm->kind->finish == NULL) return TL_OK;
  return gpu->comm->kind->finish(gpu->comm, tl_cuda_stream(gpu->cuda));
}

static tl_status wait_for(tl_gpu *gpu) {
  TRY_CUDA(gpu, "waiting for the GPU", stream_wait(tl_cuda_stream(gpu->cuda)));
  return TL_OK;
}

/* Tells the others where the device is; fails when it waits for a rank that is silent. */
static tl_status look_at_peers(tl_gpu *gpu, const tl_executor *e, int32_t *known) {
  int32_t instruction = -1;
  if (tl_world_aborted(e->world)) return tl_world_stopped(e->world);
  const int32_t peer = gpu->comm->kind->waits_for(gpu->comm, &instruction);
  if (instruction >= 0 && instruction != *known) tl_world_at(e->world, e->rank, instruction);
  *known = instruction;
  if (tl_world_patient(e->world, e->rank, peer)) return TL_OK;
  return tl_world_silent(e->world, e->rank, peer);
}

/* Until the stream is empty. With peers the host looks on, because a peer may never come. */
static tl_status wait_with_peers(tl_gpu *gpu, tl_executor *e, void *stream) {
  const tl_cuda_api *api = tl_cuda_calls(gpu->cuda);
  int32_t known = -1;
  if (gpu->comm == NULL) return wait_for(gpu);
  for (;;) {
    const int state = api->stream_query(stream);
    if (state != TL_CUDA_NOT_READY) {
      tl_gate_done(e->world, e->rank);
      return tl_cuda_check(api, state, "waiting for the GPU");
    }
    const tl_status status = look_at_peers(gpu, e, &known);
    if (status != TL_OK) {
      gpu->comm->kind->stop(gpu->comm);
      api->stream_wait(stream);
      return status;
    }
    nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
  }
}

static tl_status queue_delay(tl_gpu *gpu, const tl_executor *e, int32_t index, int64_t step) {
  const tl_peer_delay_args k = {tl_execute_delay(e, index, step)};
  const tl_cuda_grid grid = {
      .blocks = {1, 1, 1},
        .threads = {1, 1, 1}
  };
  return tl_cuda_launch_on(gpu->cuda, tl_lanes_stream(gpu->lanes, index), "peer_delay", &grid, &k);
}

/* Looks at the outputs of one instruction, from a copy. */
static tl_status check_instruction(tl_gpu *gpu, tl_executor *e, int32_t index) {
  const tl_instruction *i = &gpu->program->instructions[index];
  tl_status status = TL_OK;
  for (int32_t k = 0; k < i->out.count && status == TL_OK; k++) {
    tl_view view = e->views[i->out.first + k];
    const int64_t bytes = view.data == NULL ? 0 : tl_view_bytes(&view);
    if (bytes == 0) continue;
    void *copy = malloc((size_t)bytes);
    if (copy == NULL) return tl_fail(TL_MEMORY, "no room to look at an output");
    status = tl_gpu_read(gpu, view.data, bytes, copy);
    view.data = copy;
    if (status == TL_OK) status = tl_execute_check(e, index, k, &view);
    free(copy);
  }
  return status;
}

/* One instruction; `wait`: it is also waited for. */
static tl_status run_one(tl_gpu *gpu, tl_executor *e, int32_t index, const tl_run *run, int wait) {
  if (e->delay_us > 0) TL_TRY(queue_delay(gpu, e, index, run->step.step));
  TL_TRY(tl_execute_faults(e, index, run->step.step, 0));
  TL_TRY(queue_instruction(gpu, e, index, e->fault_count > 0 ? run : NULL));
  if (wait) TL_TRY(wait_with_peers(gpu, e, tl_lanes_stream(gpu->lanes, index)));
  return run->check ? check_instruction(gpu, e, index) : TL_OK;
}

/* For traces: an operand as the host sees it, in `room`. */
static tl_status read_operand(void *context, const tl_view *view, void *room, const void **out) {
  *out = room;
  return tl_gpu_read(context, view->data, tl_view_bytes(view), room);
}

/* One instruction, waited for, whose operands the host hashes and keeps. */
static tl_status run_kept(tl_gpu *gpu, tl_executor *e, int32_t index, const tl_run *run) {
  const tl_trace_source source = {.views = e->views, .read = read_operand, .context = gpu};
  const int64_t launched = tl_cuda_launched(gpu->cuda, NULL);
  tl_trace_record call = {.calls = 1};
  TL_TRY(tl_trace_before(e->trace, &source, index));
  call.start_ns = tl_now_ns();
  TL_TRY(run_one(gpu, e, index, run, 1));
  call.end_ns = tl_now_ns();
  tl_gpu_trace_launch(gpu->cuda, launched, &call);
  tl_trace_note(e->trace, index, &call);
  return tl_trace_after(e->trace, &source, index);
}

/* One by one: every instruction is waited for when it is looked at or its operands are kept. */
static tl_status run_eagerly(tl_gpu *gpu, tl_executor *e, const tl_run *run, const tl_step *step) {
  const tl_range section = gpu->program->sections[run->section];
  const int kept = e->trace != NULL && gpu->trace == NULL;
  tl_spans spans;
  TL_TRY(queue_numbers(gpu));
  TL_TRY(queue_begin(gpu));
  tl_spans_begin(&spans, gpu->program, run->profile & TL_PROFILE_RANGES, step->step);
  for (int32_t index = section.first; index < section.first + section.count; index++) {
    tl_world_at(e->world, e->rank, index);
    tl_spans_enter(&spans, index);
    const tl_status status =
        kept ? run_kept(gpu, e, index, run) : run_one(gpu, e, index, run, run->check);
    tl_spans_leave(&spans);
    if (status != TL_OK) return tl_spans_end(&spans), tl_execute_locate(e, index, step, status);
  }
  tl_spans_end(&spans);
  TL_TRY(queue_end(gpu));
  return wait_with_peers(gpu, e, tl_cuda_stream(gpu->cuda));
}

/* All instructions, several in one kernel where that can be; *calls: how many were queued. */
static tl_status queue_section(tl_gpu *gpu, tl_executor *e, const tl_run *run, const tl_step *step,
                               int32_t *calls) {
  const tl_range section = gpu->program->sections[run->section];
  caller who = {gpu, e};
  tl_status status = queue_begin(gpu);
  *calls = 0;
  for (int32_t k = 0, done = 0; k < section.count && status == TL_OK; k += done > 0 ? done : 1) {
    const int32_t index = section.first + k;
    if (gpu->trace == NULL) /* else looked at one by one */
      status = tl_passes_queue(gpu->passes, index, section.first + section.count, fused_call, &who,
                               &done);
    if (status == TL_OK && done == 0) status = queue_instruction(gpu, e, index, NULL);
    if (status != TL_OK) tl_execute_locate(e, index, step, status);
    ++*calls;
  }
  return status == TL_OK ? queue_end(gpu) : status;
}

/* Captures the section as a graph; nothing runs. */
static tl_status capture(tl_gpu *gpu, tl_executor *e, const tl_run *run, const tl_step *step,
                         void **out) {
  const tl_cuda_api *api = tl_cuda_calls(gpu->cuda);
  void *graph = NULL;
  caller who = {gpu, e};
  if (gpu->trace == NULL)
    TL_TRY(tl_passes_find(gpu->passes, gpu->program->sections[run->section], fused_call, &who));
  TRY_CUDA(gpu, "capture", capture_begin(tl_cuda_stream(gpu->cuda), TL_CUDA_CAPTURE_RELAXED));
  int32_t calls = 0;
  tl_status status = queue_section(gpu, e, run, step, &calls);
  if (gpu->trace == NULL) gpu->calls[run->section] = calls; /* else nothing is fused */
  const int error = api->capture_end(tl_cuda_stream(gpu->cuda), &graph);
  if (status == TL_OK) status = tl_cuda_check(api, error, "end of capture");
  if (status == TL_OK) status = tl_cuda_check(api, api->graph_build(out, graph, 0), "graph");
  if (graph != NULL) api->graph_free(graph);
  return status;
}

/* Queues the section as a graph; the first time that is made. */
static tl_status replay(tl_gpu *gpu, tl_executor *e, const tl_run *run, const tl_step *step,
                        void **graph) {
  if (*graph == NULL) TL_TRY(capture(gpu, e, run, step, graph));
  TRY_CUDA(gpu, "replay", graph_launch(*graph, tl_cuda_stream(gpu->cuda)));
  return TL_OK;
}

/* Runs the section; the first time, and whenever the host has to look, one by one. */
static tl_status run_section(tl_gpu *gpu, tl_executor *e, const tl_run *run, const tl_step *step) {
  const int traced = gpu->trace != NULL, kept = e->trace != NULL && !traced;
  int32_t *runs = traced ? &gpu->traced_runs[run->section] : &gpu->runs[run->section];
  tl_cuda_set_apart(gpu->cuda, traced);
  void **graph = traced ? &gpu->traced_graphs[run->section] : &gpu->graphs[run->section];
  if (*runs == 0) TL_TRY(prepare_products(gpu, e, gpu->program->sections[run->section], step));
  if (run->check || run->eager || kept || e->fault_count > 0 || e->delay_us > 0 || *runs == 0) {
    TL_TRY(run_eagerly(gpu, e, run, step));
    ++*runs;
    return TL_OK;
  }
  TL_TRY(queue_numbers(gpu));
  TL_TRY(replay(gpu, e, run, step, graph));
  return wait_with_peers(gpu, e, tl_cuda_stream(gpu->cuda));
}

int32_t tl_gpu_queues(const tl_gpu *gpu) {
  return gpu->comm == NULL && !gpu->routes && !tl_staging_needed(gpu->staging);
}

tl_status tl_gpu_queue(tl_gpu *gpu, tl_executor *e, const tl_run *run, int32_t *queued) {
  const int32_t looks =
      run->check || run->eager || e->trace != NULL || e->fault_count > 0 || e->delay_us > 0;
  *queued = !looks && tl_gpu_queues(gpu) && gpu->runs[run->section] > 0;
  if (!*queued) return TL_OK;
  TL_TRY(tl_cuda_enter(gpu->cuda));
  tl_cuda_set_apart(gpu->cuda, 0);
  int32_t *calls = &gpu->calls[run->section];
  void **graph = &gpu->graphs[run->section];
  if (*graph == NULL) TL_TRY(capture(gpu, e, run, &run->step, graph));
  if (*calls > FEW_CALLS) return replay(gpu, e, run, &run->step, graph);
  /* Behind a graph nothing that came before the section runs any more. Here it may, what brings the
  ** feeds above all, so no kernel reads before its wait; a pass, found when this was captured, does
  ** as it did. */
  gpu->follows = 1;
  const tl_status status = queue_section(gpu, e, run, &run->step, calls);
  gpu->follows = 0;
  return status;
}

/* What kernels found wrong in the section, once it has ended. */
static tl_status check_found(const tl_gpu *gpu, const tl_executor *e, const tl_step *step) {
  if (!gpu->routes) return TL_OK;
  const uint64_t found = tl_cuda_looked(gpu->cuda);
  const tl_status status = tl_route_found(found);
  if (status == TL_OK) return TL_OK;
  return tl_execute_locate(e, (int32_t)(found >> (64 - TL_CUDA_PLACE_BITS)), step, status);
}

tl_status tl_gpu_execute(tl_gpu *gpu, tl_executor *e, const tl_run *run) {
  const tl_range section = gpu->program->sections[run->section];
  tl_step step = run->step;
  step.sample_base = e->sample_base;
  TL_TRY(tl_cuda_enter(gpu->cuda));
  TL_TRY(prepare(gpu, e, run, &step));
  if (run->profile & TL_PROFILE_START) TRY_CUDA(gpu, "profiler", profiler_start());
  const int64_t start = tl_now_ns();
  TL_TRY(run_section(gpu, e, run, &step));
  if (run->profile & TL_PROFILE_STOP) TRY_CUDA(gpu, "profiler", profiler_stop());
  TL_TRY(check_found(gpu, e, &step));
  if (gpu->trace != NULL) tl_gpu_trace_take(gpu->trace, section.first, section.count, start);
  tl_world_at(e->world, e->rank, -1);
  return TL_OK;
}

tl_status tl_gpu_set_trace(tl_gpu *gpu, tl_trace *trace) {
  int64_t kept = 0;
  TL_TRY(tl_cuda_enter(gpu->cuda));
  for (int s = 0; s < TL_SECTIONS; s++) {
    if (gpu->traced_graphs[s] != NULL) tl_cuda_calls(gpu->cuda)->graph_close(gpu->traced_graphs[s]);
    gpu->traced_graphs[s] = NULL, gpu->traced_runs[s] = 0;
  }
  tl_gpu_trace_close(gpu->trace);
  gpu->trace = NULL;
  if (trace != NULL) tl_trace_captured(trace, &kept);
  if (trace == NULL || kept > 0) return TL_OK;
  return tl_gpu_trace_open(gpu->cuda, gpu->program, trace, &gpu->trace);
}
