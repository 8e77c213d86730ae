/* norm_cuda.c - queues the kernels of the norms. */
#include "../launch_cuda.h"
#include "norm.h"
#include "norm_args.h"

/* Operands of a call; dy, bias and mean are NULL where the operator has none. */
typedef struct norm {
  const tl_view *x, *dy, *gain, *bias, *out, *mean, *rstd;
  float eps;
} norm;

static tl_array array_or_none(const tl_view *view) {
  return view == NULL ? (tl_array){0} : tl_array_of(view);
}

/* Operands that have been checked. */
static tl_status run(const char *kernel, const tl_call *call, const norm *k) {
  const int64_t count = tl_view_count(k->x), dim = tl_view_count(k->gain);
  const tl_norm_args a = {.x = tl_array_of(k->x),
                          .dy = array_or_none(k->dy),
                          .gain = tl_array_of(k->gain),
                          .bias = array_or_none(k->bias),
                          .out = tl_array_of(k->out),
                          .mean = k->mean == NULL ? NULL : k->mean->data,
                          .rstd = k->rstd->data,
                          .rows = count / dim,
                          .dim = dim,
                          .lanes = tl_lanes(dim),
                          .eps = k->eps};
  return tl_overlap_threads(call->cuda, kernel, a.rows * a.lanes, &a);
}

tl_status tl_cuda_rms_norm(const tl_call *call) {
  TL_TRY(tl_rms_norm_check(call));
  const norm k = {.x = &call->in[0],
                  .gain = &call->in[1],
                  .out = &call->out[0],
                  .rstd = &call->out[1],
                  .eps = call->floats[0]};
  return run("rms_norm_rows", call, &k);
}

tl_status tl_cuda_rms_norm_grad(const tl_call *call) {
  TL_TRY(tl_rms_norm_grad_check(call));
  const norm k = {.dy = &call->in[0],
                  .x = &call->in[1],
                  .gain = &call->in[2],
                  .rstd = &call->in[3],
                  .out = &call->out[0]};
  return run("rms_norm_grad_rows", call, &k);
}

tl_status tl_cuda_layer_norm(const tl_call *call) {
  TL_TRY(tl_layer_norm_check(call));
  const norm k = {.x = &call->in[0],
                  .gain = &call->in[1],
                  .bias = &call->in[2],
                  .out = &call->out[0],
                  .mean = &call->out[1],
                  .rstd = &call->out[2],
                  .eps = call->floats[0]};
  return run("layer_norm_rows", call, &k);
}

tl_status tl_cuda_layer_norm_grad(const tl_call *call) {
  TL_TRY(tl_layer_norm_grad_check(call));
  const norm k = {.dy = &call->in[0],
                  .x = &call->in[1],
                  .gain = &call->in[2],
                  .mean = &call->in[3],
                  .rstd = &call->in[4],
                  .out = &call->out[0]};
  return run("layer_norm_grad_rows", call, &k);
}
