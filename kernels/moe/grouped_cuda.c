/* grouped_cuda.c - queues the products of the rows of each expert: grouped_hopper.cuh where it fits
** (grouped_hopper.h), else grouped_bf16.cu and grouped_f32.cu. Tiles are free: no choice made here
** changes a bit.
*/
#include "../launch_cuda.h"
#include "grouped_args.h"
#include "grouped_hopper.h"
#include "moe_check.h"

enum {
  TILE = 64,
  DEPTH = 64,
  SLOTS = 4,
  BF16_SHARED = SLOTS * 2 * TILE * DEPTH * 2,
  BLOCKS_EACH = 3
};

typedef struct product {
  const char *f32, *bf16;
  int32_t a_is_along, b_is_along;
} product;

static const product linear = {"grouped_linear_f32", "grouped_linear_bf16", 1, 1};
static const product grad_input = {"grouped_grad_input_f32", "grouped_grad_input_bf16", 1, 0};
static const product grad_weight = {"grouped_grad_weight_f32", "grouped_grad_weight_bf16", 0, 0};

static int32_t is_aligned(const void *data, int64_t stride, tl_dtype dtype) {
  return (uintptr_t)data % 16 == 0 && stride * tl_dtype_bytes(dtype) % 16 == 0;
}

/* `stack`: numbers from expert to expert of b, 0 where all experts share it. */
static tl_gemm_stretch stretch(const tl_view *a, const tl_view *b, int64_t b_stride, int64_t stack,
                               int64_t count) {
  const int64_t a_stride = tl_view_row(a);
  return (tl_gemm_stretch){
      .a = a->data,
      .b = b->data,
      .a_stride = a_stride,
      .b_stride = b_stride,
      .count = count,
      .a_aligned = is_aligned(a->data, a_stride, a->dtype),
      .b_aligned = is_aligned(b->data, b_stride, b->dtype) && is_aligned(NULL, stack, b->dtype)};
}

/* An output of which an expert's begins at a multiple of `apart` numbers. */
static void fill_output(tl_gemm_args *g, const tl_view *out, int64_t columns, int64_t apart) {
  g->columns = columns;
  g->column_tiles = (columns + TILE - 1) / TILE;
  g->out = out->data;
  g->out_is_bf16 = out->dtype == TL_BF16;
  g->pairs = columns % 2 == 0 && apart % 2 == 0 &&
             (uintptr_t)out->data % (2 * tl_dtype_bytes(out->dtype)) == 0;
}

/* As many blocks as run at once, or fewer where even `rows` in the worst order have fewer tiles, or
** where there is no room for more leaves that wait. */
static tl_status launch(tl_cuda *cuda, const product *p, tl_dtype dtype, int64_t rows,
                        const tl_grouped_args *k) {
  int64_t most = (int64_t)tl_cuda_device(cuda)->multiprocessors * BLOCKS_EACH;
  const int64_t waiting = k->product.leaves_log * (int64_t)(TILE * TILE * sizeof(float));
  if (waiting > 0 && TL_CUDA_SCRATCH_BYTES / waiting < most) most = TL_CUDA_SCRATCH_BYTES / waiting;
  const int64_t tiles = (rows / TILE + k->experts) * k->product.column_tiles;
  const tl_cuda_grid grid = {.blocks = {(uint32_t)(tiles < most ? tiles : most)},
                             .threads = {dtype == TL_BF16 ? 128 : 256},
                             .shared = dtype == TL_BF16 ? BF16_SHARED : 0};
  return tl_cuda_launch(cuda, dtype == TL_BF16 ? p->bf16 : p->f32, &grid, k);
}

tl_status tl_cuda_grouped_linear(const tl_call *call) {
  TL_TRY(tl_grouped_linear_check(call));
  const tl_view *x = &call->in[0], *offsets = &call->in[1];
  const int64_t parts = call->ints[0], width = tl_view_row(x);
  int32_t done;
  TL_TRY(tl_grouped_hopper_linear(call, &done));
  if (done) return TL_OK;
  for (int64_t i = 0; i < parts; i++) {
    const tl_view *weight = &call->in[2 + i], *y = &call->out[i];
    tl_grouped_args k = {.offsets = offsets->data,
                         .experts = (int32_t)tl_view_count(offsets) - 1,
                         .stack = {tl_view_row(weight)}};
    k.product.runs = 1;
    k.product.run[0] = stretch(x, weight, width, k.stack[0], width);
    fill_output(&k.product, y, tl_view_row(y), tl_view_row(y));
    TL_TRY(launch(call->cuda, &linear, x->dtype, x->shape[0], &k));
  }
  return TL_OK;
}

tl_status tl_cuda_grouped_linear_grad_input(const tl_call *call) {
  TL_TRY(tl_grouped_linear_grad_input_check(call));
  const int64_t parts = call->ints[0];
  const tl_view *offsets = &call->in[parts], *dx = &call->out[0];
  const int64_t width = tl_view_row(dx);
  int32_t done;
  TL_TRY(tl_grouped_hopper_grad_input(call, &done));
  if (done) return TL_OK;
  tl_grouped_args k = {.offsets = offsets->data, .experts = (int32_t)tl_view_count(offsets) - 1};
  k.product.runs = (int32_t)parts;
  for (int64_t i = 0; i < parts; i++) {
    const tl_view *dy = &call->in[i], *weight = &call->in[parts + 1 + i];
    k.stack[i] = tl_view_row(weight);
    k.product.run[i] = stretch(dy, weight, width, k.stack[i], tl_view_row(dy));
  }
  fill_output(&k.product, dx, width, width);
  return launch(call->cuda, &grad_input, call->in[0].dtype, dx->shape[0], &k);
}

static tl_status clear_fill(tl_cuda *cuda, const tl_view *stack, int64_t used) {
  const tl_grouped_fill_args k = {.stack = stack->data,
                                  .stride = tl_view_row(stack),
                                  .used = used,
                                  .experts = (int32_t)stack->shape[0]};
  if (k.stride == used) return TL_OK;
  return tl_launch_threads(cuda, "grouped_fill", (k.stride - used) * k.experts, &k);
}

tl_status tl_cuda_grouped_linear_grad_weight(const tl_call *call) {
  TL_TRY(tl_grouped_linear_grad_weight_check(call));
  const tl_view *dy = &call->in[0], *x = &call->in[1], *segments = &call->in[2];
  const tl_view *out = &call->out[0];
  const int64_t rows = tl_view_row(dy), columns = tl_view_row(x), stride = tl_view_row(out);
  int32_t done;
  if (call->ints[2] == 0) TL_TRY(clear_fill(call->cuda, out, rows * columns));
  TL_TRY(tl_grouped_hopper_grad_weight(call, &done));
  if (done) return TL_OK;
  tl_grouped_args k = {.offsets = segments->data,
                       .each = tl_view_row(segments),
                       .first = call->ints[0],
                       .stack = {stride},
                       .experts = (int32_t)segments->shape[0]};
  while (INT64_C(1) << k.product.leaves_log < call->ints[3]) k.product.leaves_log++;
  k.product.runs = (int32_t)(call->ints[1] >> k.product.leaves_log);
  k.product.stack = tl_cuda_scratch(call->cuda);
  k.product.span = dy->dtype == TL_BF16 ? 16 : 1;
  k.product.start = (int32_t)call->ints[2];
  k.product.run[0] = stretch(dy, x, columns, 0, 0);
  k.product.run[0].a_stride = rows;
  k.product.rows = rows;
  fill_output(&k.product, out, columns, stride);
  return launch(call->cuda, &grad_weight, dy->dtype, rows * k.experts, &k);
}
