/* reduce_cuda.c - checks the operands of sum_tokens and fold and queues their kernels. */
#include "reduce.h"

#include "../launch_cuda.h"
#include "reduce_args.h"

enum { FOLD_ROWS_MAX = 1 << 22 };

/* Sums of the blocks of some columns; `parts` of a row were normalized apart. */
static tl_status launch_blocks(tl_cuda *cuda, const tl_sum_tokens_args *k, int64_t parts,
                               int64_t rows) {
  const int64_t threads = rows * tl_pieces(k->columns);
  const int64_t blocks = (threads + TL_TOKEN_THREADS - 1) / TL_TOKEN_THREADS;
  const tl_sum_parts_args apart = {.sums = *k, .parts = parts, .width = k->dim / parts};
  if (parts > 1)
    return tl_launch_blocks(cuda, "sum_tokens_parts", blocks, TL_TOKEN_THREADS, &apart);
  return tl_launch_blocks(cuda, "sum_tokens_blocks", blocks, TL_TOKEN_THREADS, k);
}

/* As many columns at a time as the sums of blocks have room for. */
static tl_status launch_sums(tl_cuda *cuda, tl_sum_tokens_args *k, int64_t parts) {
  const int64_t longest = (k->length + k->runs - 1) / k->runs;
  k->blocks = (longest + TL_TOKEN_BLOCK - 1) / TL_TOKEN_BLOCK;
  const int64_t rows = k->runs * k->samples * k->blocks;
  int64_t room = TL_CUDA_SCRATCH_BYTES / (int64_t)sizeof(float) / (rows > 0 ? rows : 1);
  TL_TRY(tl_expect_range("sum_tokens", "blocks of 64 rows", rows, 0,
                         TL_CUDA_SCRATCH_BYTES / (int64_t)sizeof(float)));
  if (room > TL_DEVICE_PIECE) room -= room % TL_DEVICE_PIECE;
  for (int64_t column = 0; column < k->dim; column += room) {
    k->column_first = column;
    k->columns = k->dim - column < room ? k->dim - column : room;
    TL_TRY(launch_blocks(cuda, k, parts, rows));
    const int64_t groups = (k->columns + TL_DEVICE_WARP - 1) / TL_DEVICE_WARP;
    TL_TRY(tl_overlap_threads(cuda, "sum_tokens_chain", k->runs * groups * TL_DEVICE_THREADS, k));
  }
  return TL_OK;
}

tl_status tl_cuda_sum_tokens(const tl_call *call) {
  const char *op = "sum_tokens";
  const tl_view *dy = &call->in[0], *x = &call->in[1], *acc = &call->out[0];
  const int64_t *ints = call->ints, count = tl_view_count(dy), sums = tl_view_count(acc);
  tl_sum_tokens_args k = {
      .dy = tl_array_of(dy),
      .partial = {.data = tl_cuda_scratch(call->cuda), .aligned = 1},
      .acc = acc->data,
      .kind = (int32_t)ints[0],
      .first = ints[1],
      .samples = ints[2],
      .length = ints[3],
      .runs = ints[4],
      .mode = (int32_t)ints[5]
  };
  TL_TRY(tl_expect_range(op, "kind", ints[0], 0, 3));
  TL_TRY(tl_expect_range(op, "mode", ints[5], 0, 1));
  TL_TRY(tl_expect_range(op, "runs", k.runs, 1, sums));
  k.dim = sums / k.runs;
  TL_TRY(tl_expect(op, "acc", acc, TL_KIND_F32, k.runs * k.dim));
  TL_TRY(tl_expect(op, "dy", dy, TL_KIND_FLOAT, count / k.dim * k.dim));
  TL_TRY(tl_expect_range(op, "first", k.first, 0, count / k.dim));
  TL_TRY(tl_expect_range(op, "samples * length", k.samples * k.length, 0, count / k.dim - k.first));
  if (k.kind >= 1) TL_TRY(tl_expect(op, "x", x, TL_KIND_FLOAT, count));
  int64_t parts;
  TL_TRY(tl_sum_tokens_parts(call, count / k.dim, k.dim, &parts));
  if (k.kind >= 1) k.x = tl_array_of(x);
  if (k.kind >= 2) k.rstd = call->in[2].data;
  if (k.kind == 3) k.mean = call->in[3].data;
  return launch_sums(call->cuda, &k, parts);
}

tl_status tl_cuda_fold(const tl_call *call) {
  const tl_view *x = &call->in[0];
  const tl_fold_args k = {.x = tl_array_of(x),
                          .y = tl_array_of(&call->out[0]),
                          .n = x->shape[0],
                          .dim = tl_view_row(x)};
  if (k.n < 1 || (k.n & (k.n - 1)) != 0 || k.n > FOLD_ROWS_MAX) {
    return tl_fail(TL_SHAPE, "fold: x has %lld rows, must be a power of two", (long long)k.n);
  }
  TL_TRY(tl_expect("fold", "x", x, TL_KIND_FLOAT, k.n * k.dim));
  TL_TRY(tl_expect("fold", "y", &call->out[0], TL_KIND_FLOAT, k.dim));
  return tl_launch_threads(call->cuda, "fold_columns", k.dim, &k);
}
