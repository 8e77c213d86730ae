/* gemm_host.c - the three products: shapes checked, then pointers and strides of each run of k.
** Launchers for a GPU start from the same description. */
#include "gemm_core.h"

static int64_t leaf_border(int64_t count, int64_t leaves, int64_t i) { return count * i / leaves; }

/* From element `index` on. */
static const void *at(const tl_view *view, int64_t index) {
  return (const char *)view->data + index * tl_dtype_bytes(view->dtype);
}

static tl_status check_leaves(const char *op, int64_t leaves) {
  if (leaves >= 1 && leaves <= TL_GEMM_LEAVES_MAX && (leaves & (leaves - 1)) == 0) return TL_OK;
  return tl_fail(TL_ARGUMENT, "%s: leaves %lld; expected a power of two from 1 to %d", op,
                 (long long)leaves, TL_GEMM_LEAVES_MAX);
}

/* `view` is (rows, columns) of `dtype`. */
static tl_status check_matrix(const char *op, const char *name, const tl_view *view, int64_t rows,
                              int64_t columns, tl_dtype dtype) {
  if (view->data == NULL || view->dims < 1)
    return tl_fail(TL_ARGUMENT, "%s: %s is absent", op, name);
  if (view->dtype != dtype)
    return tl_fail(TL_DTYPE, "%s: %s is %s, but the other factor is %s", op, name,
                   tl_dtype_name(view->dtype), tl_dtype_name(dtype));
  if (view->shape[0] != rows || tl_view_row(view) != columns)
    return tl_fail(TL_SHAPE, "%s: %s is %lld x %lld; expected %lld x %lld", op, name,
                   (long long)view->shape[0], (long long)tl_view_row(view), (long long)rows,
                   (long long)columns);
  return TL_OK;
}

static tl_status check_factor(const char *op, const char *name, const tl_view *view) {
  if (view->data == NULL || view->dims < 1)
    return tl_fail(TL_ARGUMENT, "%s: %s is absent", op, name);
  if (view->dtype != TL_F32 && view->dtype != TL_BF16)
    return tl_fail(TL_DTYPE, "%s: %s is %s; expected f32 or bf16", op, name,
                   tl_dtype_name(view->dtype));
  return TL_OK;
}

/* Outputs may have a dtype of their own. */
static tl_status check_output(const char *op, const char *name, const tl_view *view, int64_t rows,
                              int64_t columns) {
  TL_TRY(check_factor(op, name, view));
  return check_matrix(op, name, view, rows, columns, view->dtype);
}

static tl_status check_counts(const char *op, const tl_call *call, int64_t in, int64_t out,
                              int64_t ints) {
  if (call->in_count == in && call->out_count == out && call->int_count == ints) return TL_OK;
  return tl_fail(TL_ARGUMENT, "%s: %d inputs, %d outputs, %d ints; expected %lld, %lld, %lld", op,
                 call->in_count, call->out_count, call->int_count, (long long)in, (long long)out,
                 (long long)ints);
}

/* ---- linear: A = x, B = weight_part, k runs along the rows of both ---- */

static void linear_run(const tl_gemm *g, int32_t part, int64_t leaf, int64_t run,
                       tl_gemm_run *out) {
  const tl_view *x = &g->call->in[0], *weight = &g->call->in[1 + part];
  const int64_t width = tl_view_row(x), first = leaf_border(width, g->leaves, leaf);
  (void)run;
  out->a = (tl_gemm_source){at(x, first), width, 1, 0};
  out->b = (tl_gemm_source){at(weight, first), width, 1, 0};
  if (g->in_panels)
    out->b = (tl_gemm_source){at(weight, first * TL_PANEL), 1, TL_PANEL, width * TL_PANEL};
  out->count = leaf_border(width, g->leaves, leaf + 1) - first;
}

/* The weight of a part, and how many features it has: those of y where it is in panels. */
static tl_status check_weight(const char *op, const tl_call *call, int64_t part,
                              int64_t *features) {
  const tl_view *x = &call->in[0], *weight = &call->in[1 + part], *y = &call->out[part];
  const int64_t width = tl_view_row(x);
  TL_TRY(check_factor(op, "weight", weight));
  *features = weight->shape[0];
  if (!tl_is_panels(weight, width))
    return check_matrix(op, "weight", weight, weight->shape[0], width, x->dtype);
  if (call->cuda != NULL)
    return tl_fail(TL_ARGUMENT, "%s: a weight in panels, which the host alone has", op);
  TL_TRY(check_factor(op, "y", y));
  *features = tl_view_row(y);
  return check_matrix(op, "weight", weight, tl_panels_of(*features), width * TL_PANEL, x->dtype);
}

tl_status tl_gemm_of_linear(const tl_call *call, tl_gemm *gemm) {
  const char *op = "linear";
  if (call->int_count != 3 || call->ints[0] < 1)
    return tl_fail(TL_ARGUMENT, "%s: expected parts (1 or more), biases, leaves", op);
  const int64_t parts = call->ints[0], biases = call->ints[1] != 0;
  TL_TRY(check_counts(op, call, 1 + parts * (1 + biases), parts, 3));
  TL_TRY(check_leaves(op, call->ints[2]));
  const tl_view *x = &call->in[0];
  TL_TRY(check_factor(op, "x", x));
  const int64_t width = tl_view_row(x);
  for (int64_t i = 0; i < parts; i++) {
    int64_t features;
    TL_TRY(check_weight(op, call, i, &features));
    if (tl_is_panels(&call->in[1 + i], width) != tl_is_panels(&call->in[1], width))
      return tl_fail(TL_SHAPE, "%s: all weights are in panels, or none is", op);
    TL_TRY(check_output(op, "y", &call->out[i], x->shape[0], features));
    if (biases) TL_TRY(check_output(op, "bias", &call->in[1 + parts + i], features, 1));
  }
  *gemm = (tl_gemm){.rows = x->shape[0],
                    .parts = (int32_t)parts,
                    .out = call->out,
                    .bias = biases ? &call->in[1 + parts] : NULL,
                    .in_panels = tl_is_panels(&call->in[1], width),
                    .leaves = call->ints[2],
                    .runs = 1,
                    .run = linear_run,
                    .call = call,
                    .dtype = x->dtype};
  return TL_OK;
}

tl_status tl_host_linear(const tl_call *call) {
  tl_gemm gemm;
  TL_TRY(tl_gemm_of_linear(call, &gemm));
  tl_gemm_compute(&gemm, call->team);
  return TL_OK;
}

/* ---- linear_grad_input: A = dy_i, B = weight_i read down its columns; run i is part i ---- */

static void grad_input_run(const tl_gemm *g, int32_t part, int64_t leaf, int64_t run,
                           tl_gemm_run *out) {
  const int64_t parts = g->call->ints[0], *range = &g->call->ints[2 + 2 * run];
  const tl_view *grad = &g->call->in[run], *weight = &g->call->in[parts + run];
  const int64_t begin = leaf_border(range[1], g->leaves, leaf), first = range[0] + begin;
  const int64_t features = tl_view_row(grad), width = tl_view_row(weight);
  (void)part;
  out->a = (tl_gemm_source){at(grad, first), features, 1, 0};
  out->b = (tl_gemm_source){at(weight, first * width), 1, width, 0};
  out->count = leaf_border(range[1], g->leaves, leaf + 1) - begin;
}

tl_status tl_gemm_of_linear_grad_input(const tl_call *call, tl_gemm *gemm) {
  const char *op = "linear_grad_input";
  if (call->int_count < 2 || call->ints[0] < 1)
    return tl_fail(TL_ARGUMENT, "%s: expected parts (1 or more), leaves, ranges", op);
  const int64_t parts = call->ints[0];
  TL_TRY(check_counts(op, call, 2 * parts, 1, 2 + 2 * parts));
  TL_TRY(check_leaves(op, call->ints[1]));
  const tl_view *dx = &call->out[0];
  TL_TRY(check_factor(op, "dx", dx));
  TL_TRY(check_factor(op, "dy", &call->in[0]));
  for (int64_t i = 0; i < parts; i++) {
    const tl_view *grad = &call->in[i], *weight = &call->in[parts + i];
    const tl_dtype dtype = call->in[0].dtype;
    const int64_t first = call->ints[2 + 2 * i], count = call->ints[3 + 2 * i];
    TL_TRY(check_matrix(op, "dy", grad, dx->shape[0], tl_view_row(grad), dtype));
    TL_TRY(check_matrix(op, "weight", weight, tl_view_row(grad), tl_view_row(dx), dtype));
    if (first < 0 || count < 0 || first + count > tl_view_row(grad))
      return tl_fail(TL_ARGUMENT, "%s: part %lld: features %lld .. %lld of %lld", op, (long long)i,
                     (long long)first, (long long)(first + count - 1),
                     (long long)tl_view_row(grad));
  }
  *gemm = (tl_gemm){.rows = dx->shape[0],
                    .parts = 1,
                    .out = dx,
                    .leaves = call->ints[1],
                    .runs = parts,
                    .run = grad_input_run,
                    .call = call,
                    .dtype = call->in[0].dtype};
  return TL_OK;
}

tl_status tl_host_linear_grad_input(const tl_call *call) {
  tl_gemm gemm;
  TL_TRY(tl_gemm_of_linear_grad_input(call, &gemm));
  tl_gemm_compute(&gemm, call->team);
  return TL_OK;
}

/* ---- linear_grad_weight: A = dy read down its columns, B = x too; run i is piece i ---- */

static void grad_weight_run(const tl_gemm *g, int32_t part, int64_t leaf, int64_t run,
                            tl_gemm_run *out) {
  const tl_view *grad = &g->call->in[0], *x = &g->call->in[1];
  const int64_t first = g->call->ints[0], length = g->call->ints[2];
  const int64_t row = first + (leaf * g->runs + run) * g->call->ints[3];
  const int64_t features = tl_view_row(grad), width = tl_view_row(x);
  (void)part;
  out->a = (tl_gemm_source){at(grad, row * features), 1, features, 0};
  out->b = (tl_gemm_source){at(x, row * width), 1, width, 0};
  out->count = length;
}

tl_status tl_gemm_of_linear_grad_weight(const tl_call *call, tl_gemm *gemm) {
  const char *op = "linear_grad_weight";
  static const tl_gemm_start starts[] = {TL_GEMM_ZERO, TL_GEMM_RESUME, TL_GEMM_ADD};
  TL_TRY(check_counts(op, call, 2, 1, 6));
  const tl_view *grad = &call->in[0], *x = &call->in[1], *out = &call->out[0];
  const int64_t first = call->ints[0], samples = call->ints[1], length = call->ints[2];
  const int64_t stride = call->ints[3], mode = call->ints[4], leaves = call->ints[5];
  TL_TRY(check_factor(op, "dy", grad));
  TL_TRY(check_matrix(op, "x", x, grad->shape[0], tl_view_row(x), grad->dtype));
  TL_TRY(check_output(op, "dweight", out, tl_view_row(grad), tl_view_row(x)));
  if (out->dtype != TL_F32)
    return tl_fail(TL_DTYPE, "%s: dweight is %s; expected f32", op, tl_dtype_name(out->dtype));
  if (first < 0 || samples < 0 || length < 0 || stride < length ||
      (samples > 0 && first + (samples - 1) * stride + length > grad->shape[0]))
    return tl_fail(TL_ARGUMENT, "%s: rows from %lld, %lld pieces of %lld every %lld, of %lld rows",
                   op, (long long)first, (long long)samples, (long long)length, (long long)stride,
                   (long long)grad->shape[0]);
  if (mode < 0 || mode > 2)
    return tl_fail(TL_ARGUMENT, "%s: mode %lld; expected 0, 1 or 2", op, (long long)mode);
  TL_TRY(check_leaves(op, leaves));
  if (samples % leaves != 0 || (mode == 1 && leaves > 1))
    return tl_fail(TL_ARGUMENT,
                   "%s: %lld pieces, mode %lld, in %lld leaves; leaves have equally many pieces, "
                   "and a chain that resumes is one",
                   op, (long long)samples, (long long)mode, (long long)leaves);
  *gemm = (tl_gemm){.rows = tl_view_row(grad),
                    .parts = 1,
                    .out = out,
                    .leaves = leaves,
                    .runs = length == 0 ? 0 : samples / leaves,
                    .run_is_padded = 1,
                    .start = starts[mode],
                    .run = grad_weight_run,
                    .call = call,
                    .dtype = grad->dtype};
  return TL_OK;
}

tl_status tl_host_linear_grad_weight(const tl_call *call) {
  tl_gemm gemm;
  TL_TRY(tl_gemm_of_linear_grad_weight(call, &gemm));
  tl_gemm_compute(&gemm, call->team);
  return TL_OK;
}
