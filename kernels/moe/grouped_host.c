/* grouped_host.c - work on the rows of each expert: the products of gemm/ and swiglu, expert by
** expert. Which rows an expert has is data: offsets and segments. */
#include "../elementwise/elementwise.h"
#include "../gemm/gemm_core.h"
#include "../rows.h"
#include "moe_check.h"
#include "score.h"

/* Rows offset[0] .. offset[experts] of at most `room`. */
static tl_status check_offsets(const char *op, const tl_view *offsets, int64_t experts,
                               int64_t room) {
  TL_TRY(tl_expect(op, "offsets", offsets, TL_KIND_I32, experts + 1));
  const int32_t *at = offsets->data;
  for (int64_t e = 0; e <= experts; e++)
    if (at[e] < (e == 0 ? 0 : at[e - 1]) || (e == 0 && at[0] != 0) || at[e] > room)
      return tl_fail(TL_ARGUMENT, "%s: offset %lld is %d; rows %d to %lld are left", op,
                     (long long)e, at[e], e == 0 ? 0 : at[e - 1], (long long)room);
  return TL_OK;
}

/* Rows first .. last - 1 as a matrix. */
static tl_view rows_of(const tl_view *view, int64_t first, int64_t last) {
  tl_view part = *view;
  const int64_t width = tl_view_row(view);
  part.data = (char *)view->data + first * width * tl_dtype_bytes(view->dtype);
  part.dims = 2, part.shape[0] = last - first, part.shape[1] = width;
  return part;
}

/* The (rows, columns) matrix of one expert of a stack. */
static tl_view expert_of(const tl_view *stack, int64_t expert, int64_t rows, int64_t columns) {
  tl_view part = rows_of(stack, expert, expert + 1);
  part.shape[0] = rows, part.shape[1] = columns;
  return part;
}

tl_status tl_host_grouped_linear(const tl_call *call) {
  TL_TRY(tl_grouped_linear_check(call));
  const int64_t parts = call->ints[0];
  const tl_view *x = &call->in[0], *offsets = &call->in[1];
  const int64_t experts = tl_view_count(offsets) - 1, width = tl_view_row(x);
  TL_TRY(check_offsets("grouped_linear", offsets, experts, x->shape[0]));
  const int32_t *at = offsets->data;
  for (int64_t e = 0; e < experts; e++) {
    tl_view in[1 + TL_MOE_PARTS_MAX], out[TL_MOE_PARTS_MAX];
    if (at[e] == at[e + 1]) continue;
    in[0] = rows_of(x, at[e], at[e + 1]);
    for (int64_t i = 0; i < parts; i++) {
      out[i] = rows_of(&call->out[i], at[e], at[e + 1]);
      in[1 + i] = expert_of(&call->in[2 + i], e, tl_view_row(&out[i]), width);
    }
    const int64_t ints[3] = {parts, 0, 1};
    const tl_call one = {.in = in,
                         .out = out,
                         .in_count = (int32_t)(1 + parts),
                         .out_count = (int32_t)parts,
                         .ints = ints,
                         .int_count = 3,
                         .team = call->team};
    TL_TRY(tl_host_linear(&one));
  }
  return TL_OK;
}

tl_status tl_host_grouped_linear_grad_input(const tl_call *call) {
  TL_TRY(tl_grouped_linear_grad_input_check(call));
  const int64_t parts = call->ints[0];
  const tl_view *offsets = &call->in[parts], *dx = &call->out[0];
  const int64_t experts = tl_view_count(offsets) - 1, width = tl_view_row(dx);
  TL_TRY(check_offsets("grouped_linear_grad_input", offsets, experts, dx->shape[0]));
  const int32_t *at = offsets->data;
  for (int64_t e = 0; e < experts; e++) {
    tl_view in[2 * TL_MOE_PARTS_MAX], out = rows_of(dx, at[e], at[e + 1]);
    int64_t ints[2 + 2 * TL_MOE_PARTS_MAX] = {parts, 1};
    if (at[e] == at[e + 1]) continue;
    for (int64_t i = 0; i < parts; i++) {
      in[i] = rows_of(&call->in[i], at[e], at[e + 1]);
      in[parts + i] = expert_of(&call->in[parts + 1 + i], e, tl_view_row(&in[i]), width);
      ints[2 + 2 * i] = 0, ints[3 + 2 * i] = tl_view_row(&in[i]);
    }
    const tl_call one = {.in = in,
                         .out = &out,
                         .in_count = (int32_t)(2 * parts),
                         .out_count = 1,
                         .ints = ints,
                         .int_count = (int32_t)(2 + 2 * parts),
                         .team = call->team};
    TL_TRY(tl_host_linear_grad_input(&one));
  }
  return TL_OK;
}

/* ---- weight gradients: run i of the chain is a segment ---- */

static void segment_run(const tl_gemm *g, int32_t part, int64_t leaf, int64_t run,
                        tl_gemm_run *out) {
  const tl_view *grad = &g->call->in[0], *x = &g->call->in[1];
  /* Of the leaf's first piece of this expert. */
  const int32_t *start = (const int32_t *)g->call->in[2].data + leaf * g->runs;
  const int64_t features = tl_view_row(grad), width = tl_view_row(x);
  const int64_t bytes = tl_dtype_bytes(grad->dtype), row = start[run];
  (void)part;
  out->a = (tl_gemm_source){(const char *)grad->data + row * features * bytes, 1, features, 0};
  out->b = (tl_gemm_source){(const char *)x->data + row * width * bytes, 1, width, 0};
  out->count = start[run + 1] - row;
}

static void clear_fill(const tl_view *stack, int64_t expert, int64_t used) {
  const int64_t all = tl_view_row(stack);
  memset((float *)stack->data + expert * all + used, 0, (size_t)(all - used) * sizeof(float));
}

static tl_status check_segments(const char *op, const tl_view *segments, int64_t room) {
  const int32_t *start = segments->data;
  const int64_t count = tl_view_count(segments);
  TL_TRY(tl_expect(op, "segments", segments, TL_KIND_I32, count));
  for (int64_t i = 0; i < count; i++)
    if (start[i] < (i == 0 ? 0 : start[i - 1]) || start[i] > room)
      return tl_fail(TL_ARGUMENT, "%s: segment %lld starts at row %d of %lld", op, (long long)i,
                     start[i], (long long)room);
  return TL_OK;
}

tl_status tl_host_grouped_linear_grad_weight(const tl_call *call) {
  const char *op = "grouped_linear_grad_weight";
  static const tl_gemm_start starts[] = {TL_GEMM_ZERO, TL_GEMM_RESUME, TL_GEMM_ADD};
  TL_TRY(tl_grouped_linear_grad_weight_check(call));
  const tl_view *grad = &call->in[0], *x = &call->in[1], *segments = &call->in[2];
  const tl_view *out = &call->out[0];
  const int64_t first = call->ints[0], mode = call->ints[2], leaves = call->ints[3];
  const int64_t experts = segments->shape[0], each = tl_view_row(segments);
  const int64_t rows = tl_view_row(grad), columns = tl_view_row(x);
  TL_TRY(check_segments(op, segments, grad->shape[0]));
  for (int64_t e = 0; e < experts; e++) {
    tl_view in[3] = {*grad, *x, *segments}, weight = expert_of(out, e, rows, columns);
    in[2].data = (int32_t *)segments->data + e * each + first;
    const tl_call one = {.in = in};
    const tl_gemm gemm = {.rows = rows,
                          .parts = 1,
                          .out = &weight,
                          .leaves = leaves,
                          .runs = call->ints[1] / leaves,
                          .run_is_padded = 1,
                          .start = starts[mode],
                          .run = segment_run,
                          .call = &one,
                          .dtype = grad->dtype};
    tl_gemm_compute(&gemm, call->team);
    if (mode == 0) clear_fill(out, e, rows * columns);
  }
  return TL_OK;
}

/* ---- elementwise work on the rows that there are ---- */

/* The call with its first `in` inputs and `out` outputs cut to the rows that offsets (the last
** input) says; the host twin of swiglu does the rest. */
static tl_status on_rows(const char *op, const tl_call *call, int32_t in, int32_t out,
                         tl_kernel kernel) {
  tl_view views[4], results[2];
  const tl_view *offsets = &call->in[in];
  const int64_t experts = tl_view_count(offsets) - 1, room = call->in[0].shape[0];
  TL_TRY(tl_expert_rows_check(op, call, in, out));
  TL_TRY(check_offsets(op, offsets, experts, room));
  const int64_t rows = ((const int32_t *)offsets->data)[experts];
  for (int32_t i = 0; i < in + out; i++) {
    const tl_view *v = i < in ? &call->in[i] : &call->out[i - in];
    if (i < in)
      views[i] = rows_of(v, 0, rows);
    else
      results[i - in] = rows_of(v, 0, rows);
  }
  const tl_call one = {
      .in = views, .out = results, .in_count = in, .out_count = out, .team = call->team};
  return kernel(&one);
}

tl_status tl_host_expert_swiglu(const tl_call *call) {
  return on_rows("expert_swiglu", call, 2, 1, tl_host_swiglu);
}

tl_status tl_host_expert_swiglu_grad(const tl_call *call) {
  return on_rows("expert_swiglu_grad", call, 3, 2, tl_host_swiglu_grad);
}

typedef struct scale_grad {
  const tl_view *dy, *out, *dout;
  const float *weight;
  float *dweight;
  int64_t width;
} scale_grad;

static void scale_row(const void *context, int64_t row) {
  const scale_grad *s = context;
  float a[TL_SPAN], b[TL_SPAN], c[TL_SPAN];
  tl_partials p;
  tl_partials_clear(&p);
  for (int64_t at = 0; at < s->width; at += TL_SPAN) {
    const int64_t n = s->width - at < TL_SPAN ? s->width - at : TL_SPAN;
    const int64_t first = row * s->width + at;
    const float *dy = tl_load(s->dy, first, n, a);
    float *dout = tl_place(s->dout, first, c);
    tl_partials_dot(&p, dy, tl_load(s->out, first, n, b), n);
    for (int64_t i = 0; i < n; i++) dout[i] = s->weight[row] * dy[i];
    tl_commit(s->dout, first, n, dout);
  }
  s->dweight[row] = tl_partials_total(&p);
}

tl_status tl_host_expert_scale_grad(const tl_call *call) {
  const char *op = "expert_scale_grad";
  const tl_view *dy = &call->in[0], *out = &call->in[1], *weight = &call->in[2];
  const tl_view *offsets = &call->in[3], *dout = &call->out[0], *dweight = &call->out[1];
  TL_TRY(tl_expert_scale_grad_check(call));
  const int64_t room = dy->shape[0], width = tl_view_row(dy);
  const int64_t experts = tl_view_count(offsets) - 1;
  TL_TRY(check_offsets(op, offsets, experts, room));
  const scale_grad s = {.dy = dy,
                        .out = out,
                        .dout = dout,
                        .weight = weight->data,
                        .dweight = dweight->data,
                        .width = width};
  tl_each_row(call->team, ((const int32_t *)offsets->data)[experts], 2 * width, scale_row, &s);
  return TL_OK;
}
