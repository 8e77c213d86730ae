/* norm_cuda.c - queues the kernels of the norms. */
#include "../launch_cuda.h"
#include "norm.h"
#include "norm_args.h"

enum { FEW_ROWS = 512 };

/* Operands of a call; dy, bias and mean are NULL where the operator has none. */
typedef struct norm {
  const tl_view *x, *dy, *gain, *bias, *out, *mean, *rstd;
  float eps;
} norm;

static tl_array array_or_none(const tl_view *view) {
  return view == NULL ? (tl_array){0} : tl_array_of(view);
}

/* A kernel that gives rows of up to `width` to warps. */
typedef struct variant {
  int64_t width;
  int32_t threads; /* of a row */
  const char *name;
} variant;

#define ROW(width, groups, spans, warps) {width, TL_DEVICE_WARP * warps, "rms_norm_warps_" #width},
static const variant norm_warps[] = {
    TL_NORM_WARPS(ROW){0, 0, NULL}
};
#undef ROW
#define ROW(width, groups, spans, warps) \
  {width, TL_DEVICE_WARP * warps, "rms_norm_grad_warps_" #width},
static const variant grad_warps[] = {
    TL_NORM_GRAD_WARPS(ROW){0, 0, NULL}
};
#undef ROW

/* NULL where none takes such rows. */
static const variant *warps_of(const tl_norm_args *a) {
  const int has_dy = a->dy.data != NULL;
  if (a->dim <= TL_NORM_WARPS_ABOVE || !tl_whole(&a->x, a->dim) || !tl_whole(&a->out, a->dim) ||
      (has_dy && !tl_whole(&a->dy, a->dim)))
    return NULL;
  for (const variant *v = has_dy ? grad_warps : norm_warps; v->name != NULL; v++)
    if (a->dim <= v->width) return v;
  return NULL;
}

/* Operands that have been checked. `rms`: of the norm without a mean. */
static tl_status run(const char *kernel, const tl_call *call, const norm *k, int rms) {
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
                          .lanes = tl_row_lanes(dim),
                          .eps = k->eps};
  /* Few rows of a step of serving: blocks that begin while x is still made. */
  const int is_few = a.rows <= FEW_ROWS && a.dy.data == NULL && call->ahead >> 1 & 1;
  const variant *warps = rms && !is_few ? warps_of(&a) : NULL;
  if (warps != NULL) return tl_launch_rows(call->cuda, warps->name, a.rows, warps->threads, &a);
  return tl_overlap_threads(call->cuda, kernel, a.rows * a.lanes, &a);
}

tl_status tl_cuda_rms_norm(const tl_call *call) {
  TL_TRY(tl_rms_norm_check(call));
  const norm k = {.x = &call->in[0],
                  .gain = &call->in[1],
                  .out = &call->out[0],
                  .rstd = &call->out[1],
                  .eps = call->floats[0]};
  return run("rms_norm_rows", call, &k, 1);
}

tl_status tl_cuda_rms_norm_grad(const tl_call *call) {
  TL_TRY(tl_rms_norm_grad_check(call));
  const norm k = {.dy = &call->in[0],
                  .x = &call->in[1],
                  .gain = &call->in[2],
                  .rstd = &call->in[3],
                  .out = &call->out[0]};
  return run("rms_norm_grad_rows", call, &k, 1);
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
  return run("layer_norm_rows", call, &k, 0);
}

tl_status tl_cuda_layer_norm_grad(const tl_call *call) {
  TL_TRY(tl_layer_norm_grad_check(call));
  const norm k = {.dy = &call->in[0],
                  .x = &call->in[1],
                  .gain = &call->in[2],
                  .mean = &call->in[3],
                  .rstd = &call->in[4],
                  .out = &call->out[0]};
  return run("layer_norm_grad_rows", call, &k, 0);
}
