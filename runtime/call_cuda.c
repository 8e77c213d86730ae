/* call_cuda.c - copies operands to a GPU and back around one launch. */
#include "call_cuda.h"

#include "../kernels/gemm/gemm_provider.h"

#include <string.h>

#include "../kernels/moe/moe.h"

typedef struct operands {
  tl_view views[TL_CALL_OPERANDS_MAX]; /* inputs, then outputs, with device addresses */
  const void *host[TL_CALL_OPERANDS_MAX];
  int32_t owned[TL_CALL_OPERANDS_MAX];
  int32_t count;
} operands;

static tl_status check(tl_cuda *cuda, int error, const char *what) {
  return tl_cuda_check(tl_cuda_calls(cuda), error, what);
}

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

/* The device memory of an operand that was seen before, or new memory with its contents. */
static tl_status add_operand(tl_cuda *cuda, operands *o, const tl_view *view) {
  const int32_t i = o->count++;
  o->views[i] = *view;
  o->host[i] = view->data;
  if (view->data == NULL) return TL_OK;
  for (int32_t k = 0; k < i; k++)
    if (o->host[k] == view->data && tl_view_bytes(&o->views[k]) == tl_view_bytes(view)) {
      o->views[i].data = o->views[k].data;
      return TL_OK;
    }
  TL_TRY(tl_cuda_alloc(cuda, tl_view_bytes(view), &o->views[i].data));
  o->owned[i] = 1;
  return check(cuda,
               tl_cuda_calls(cuda)->copy_in(address(o->views[i].data), view->data,
                                            (size_t)tl_view_bytes(view), tl_cuda_stream(cuda)),
               "copy in");
}

static tl_status add_all(tl_cuda *cuda, operands *o, const tl_call *call) {
  if (call->in_count + call->out_count > TL_CALL_OPERANDS_MAX)
    return tl_fail(TL_ARGUMENT, "%d operands; there is room for %d",
                   call->in_count + call->out_count, TL_CALL_OPERANDS_MAX);
  for (int32_t i = 0; i < call->in_count; i++) TL_TRY(add_operand(cuda, o, &call->in[i]));
  for (int32_t i = 0; i < call->out_count; i++) TL_TRY(add_operand(cuda, o, &call->out[i]));
  return TL_OK;
}

static tl_status copy_step(tl_cuda *cuda, const tl_step *step, void *to) {
  static _Thread_local tl_device_step d;
  d = (tl_device_step){.step = step->step, .seed = step->seed, .sample_base = step->sample_base};
  if (step->scalar_count > TL_DEVICE_SCALARS_MAX)
    return tl_fail(TL_ARGUMENT, "%d scalars; there is room for %d", step->scalar_count,
                   TL_DEVICE_SCALARS_MAX);
  memcpy(d.scalars, step->scalars, (size_t)step->scalar_count * sizeof(float));
  return check(cuda, tl_cuda_calls(cuda)->copy_in(address(to), &d, sizeof d, tl_cuda_stream(cuda)),
               "copy of the step");
}

static tl_status copy_back(tl_cuda *cuda, const operands *o, int32_t first) {
  for (int32_t i = first; i < o->count; i++) {
    if (o->host[i] == NULL) continue;
    TL_TRY(check(
        cuda,
        tl_cuda_calls(cuda)->copy_out((void *)(uintptr_t)o->host[i], address(o->views[i].data),
                                      (size_t)tl_view_bytes(&o->views[i]), tl_cuda_stream(cuda)),
        "copy out"));
  }
  TL_TRY(tl_cuda_queue_look(cuda));
  TL_TRY(check(cuda, tl_cuda_calls(cuda)->stream_wait(tl_cuda_stream(cuda)), "waiting"));
  return tl_route_found(tl_cuda_looked(cuda));
}

/* A graph of `repeats` runs, as a captured step would hold them: the host's part is not timed. */
static tl_status capture_repeats(tl_cuda *cuda, tl_op op, const tl_call *queued, int32_t repeats,
                                 void **out) {
  const tl_cuda_api *api = tl_cuda_calls(cuda);
  void *stream = tl_cuda_stream(cuda), *graph = NULL;
  TL_TRY(check(cuda, api->capture_begin(stream, TL_CUDA_CAPTURE_RELAXED), "capture"));
  tl_status status = TL_OK;
  for (int32_t i = 0; i < repeats && status == TL_OK; i++) status = tl_ops[op].cuda(queued);
  const int error = api->capture_end(stream, &graph);
  if (status == TL_OK) status = check(cuda, error, "end of capture");
  if (status == TL_OK) status = check(cuda, api->graph_build(out, graph, 0), "graph");
  if (graph != NULL) api->graph_free(graph);
  return status;
}

/* The graph once to warm up, then between two events. */
static tl_status time_repeats(tl_cuda *cuda, tl_op op, const tl_call *queued, int32_t repeats,
                              float *ms) {
  const tl_cuda_api *api = tl_cuda_calls(cuda);
  void *stream = tl_cuda_stream(cuda), *start = NULL, *stop = NULL, *graph = NULL;
  tl_status status = TL_OK;
  TL_TRY_GOTO(status, check(cuda, api->event_create(&start, 0), "event"), done);
  TL_TRY_GOTO(status, check(cuda, api->event_create(&stop, 0), "event"), done);
  TL_TRY_GOTO(status, capture_repeats(cuda, op, queued, repeats, &graph), done);
  TL_TRY_GOTO(status, check(cuda, api->graph_launch(graph, stream), "replay"), done);
  TL_TRY_GOTO(status, check(cuda, api->event_record(start, stream), "event"), done);
  TL_TRY_GOTO(status, check(cuda, api->graph_launch(graph, stream), "replay"), done);
  TL_TRY_GOTO(status, check(cuda, api->event_record(stop, stream), "event"), done);
  TL_TRY_GOTO(status, check(cuda, api->event_wait(stop), "waiting for the GPU"), done);
  TL_TRY_GOTO(status, check(cuda, api->event_ms(ms, start, stop), "time"), done);
  *ms /= (float)repeats;
done:
  if (start != NULL) api->event_destroy(start);
  if (stop != NULL) api->event_destroy(stop);
  if (graph != NULL) api->graph_close(graph);
  return status;
}

tl_status tl_call_in_place(tl_cuda *cuda, tl_op op, const tl_call *call) {
  void *step = NULL;
  tl_status status = TL_OK;
  tl_call queued = *call;
  if (tl_ops[op].cuda == NULL)
    return tl_fail(TL_DEVICE, "operator %s has no GPU kernel", tl_ops[op].name);
  TL_TRY(tl_cuda_enter(cuda));
  TL_TRY(tl_cuda_alloc(cuda, sizeof(tl_device_step), &step));
  TL_TRY_GOTO(status, copy_step(cuda, call->step, step), done);
  queued.step = step, queued.team = NULL, queued.cuda = cuda;
  TL_TRY_GOTO(status, tl_ops[op].cuda(&queued), done);
  TL_TRY_GOTO(
      status,
      check(cuda, tl_cuda_calls(cuda)->stream_wait(tl_cuda_stream(cuda)), "waiting for the GPU"),
      done);
done:
  tl_cuda_free(cuda, step);
  return status;
}

tl_status tl_call_on_gpu(tl_cuda *cuda, tl_op op, const tl_call *call, int32_t repeats, float *ms) {
  operands o = {.count = 0};
  void *step = NULL;
  tl_status status = TL_OK;
  tl_call queued = *call;
  if (tl_ops[op].cuda == NULL)
    return tl_fail(TL_DEVICE, "operator %s has no GPU kernel", tl_ops[op].name);
  TL_TRY_GOTO(status, tl_cuda_enter(cuda), done);
  TL_TRY_GOTO(status, tl_cuda_alloc(cuda, sizeof(tl_device_step), &step), done);
  TL_TRY_GOTO(status, copy_step(cuda, call->step, step), done);
  TL_TRY_GOTO(status, add_all(cuda, &o, call), done);
  queued.in = o.views, queued.out = o.views + call->in_count;
  queued.step = step, queued.team = NULL, queued.cuda = cuda;
  TL_TRY_GOTO(status, tl_gemm_prepare(op, &queued), done);
  TL_TRY_GOTO(status, tl_ops[op].cuda(&queued), done);
  if (repeats > 0) TL_TRY_GOTO(status, time_repeats(cuda, op, &queued, repeats, ms), done);
  TL_TRY_GOTO(status, copy_back(cuda, &o, call->in_count), done);
done:
  for (int32_t i = 0; i < o.count; i++)
    if (o.owned[i]) tl_cuda_free(cuda, o.views[i].data);
  tl_cuda_free(cuda, step);
  return status;
}
