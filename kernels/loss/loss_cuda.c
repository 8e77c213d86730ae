/* loss_cuda.c - checks the operands of the loss operators and queues their kernels. */
#include "loss.h"

#include "../launch_cuda.h"
#include "loss_args.h"

enum { LEAVES_MAX = 1024 };

/* --- Rows of logits --------------------------------------------------------------------------- */

static tl_status logits_of(const char *op, const tl_call *call, int64_t columns,
                           tl_logits_args *out) {
  const tl_view *z = &call->in[0];
  *out = (tl_logits_args){
      .z = tl_array_of(z), .rows = z->shape[0], .width = tl_view_row(z), .columns = columns};
  TL_TRY(tl_expect(op, "z", z, TL_KIND_FLOAT, out->rows * out->width));
  return tl_expect_range(op, "columns", columns, 0, out->width);
}

tl_status tl_cuda_row_max(const tl_call *call) {
  tl_logits_args k;
  TL_TRY(logits_of("row_max", call, call->ints[0], &k));
  TL_TRY(tl_expect("row_max", "m", &call->out[0], TL_KIND_F32, k.rows));
  k.out_m = call->out[0].data;
  k.lanes = tl_lanes(k.width);
  return tl_launch_rows(call->cuda, "row_max_rows", k.rows, k.lanes, &k);
}

tl_status tl_cuda_row_sum_exp(const tl_call *call) {
  const char *op = "row_sum_exp";
  static const char *const names[] = {"s", "zt", "zsum"};
  tl_logits_args k;
  TL_TRY(logits_of(op, call, call->ints[0], &k));
  k.first = call->ints[1];
  k.leaves = call->ints[2];
  TL_TRY(tl_expect_range(op, "leaves", k.leaves, 1, LEAVES_MAX));
  if ((k.leaves & (k.leaves - 1)) != 0 || k.width % k.leaves != 0) {
    return tl_fail(TL_SHAPE, "%s: leaves %lld must be a power of two that divides %lld columns", op,
                   (long long)k.leaves, (long long)k.width);
  }
  TL_TRY(tl_expect(op, "m", &call->in[1], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "targets", &call->in[2], TL_KIND_I32, k.rows));
  for (int32_t i = 0; i < 3; i++)
    TL_TRY(tl_expect(op, names[i], &call->out[i], TL_KIND_F32, k.rows));
  k.m = call->in[1].data;
  k.targets = call->in[2].data;
  k.out_s = call->out[0].data;
  k.out_zt = call->out[1].data;
  k.out_zsum = call->out[2].data;
  k.lanes = tl_lanes(k.width / k.leaves);
  return tl_launch_rows(call->cuda, "row_sum_exp_rows", k.rows, k.lanes, &k);
}

static tl_status launch_grad(const tl_call *call, const tl_logits_args *k) {
  return tl_launch_threads(call->cuda, "logits_grad_elements", k->rows * tl_pieces(k->width), k);
}

tl_status tl_cuda_cross_entropy_grad(const tl_call *call) {
  const char *op = "cross_entropy_grad";
  tl_logits_args k;
  TL_TRY(logits_of(op, call, call->ints[0], &k));
  TL_TRY(tl_expect_range(op, "vocab", call->ints[2], 1, INT32_MAX));
  TL_TRY(tl_expect(op, "m", &call->in[1], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "s", &call->in[2], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "targets", &call->in[3], TL_KIND_I32, k.rows));
  TL_TRY(tl_expect(op, "dloss", &call->in[4], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "dz", &call->out[0], TL_KIND_FLOAT, k.rows * k.width));
  k.m = call->in[1].data;
  k.s = call->in[2].data;
  k.targets = call->in[3].data;
  k.drow = call->in[4].data;
  k.dz = tl_array_of(&call->out[0]);
  k.first = call->ints[1];
  k.vocab = (float)call->ints[2];
  k.smoothing = call->floats[0];
  k.weight = call->floats[1];
  return launch_grad(call, &k);
}

tl_status tl_cuda_logsumexp_grad(const tl_call *call) {
  const char *op = "logsumexp_grad";
  tl_logits_args k;
  TL_TRY(logits_of(op, call, call->ints[0], &k));
  TL_TRY(tl_expect(op, "m", &call->in[1], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "s", &call->in[2], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "dlse", &call->in[3], TL_KIND_F32, k.rows));
  TL_TRY(tl_expect(op, "dz", &call->out[0], TL_KIND_FLOAT, k.rows * k.width));
  k.m = call->in[1].data;
  k.s = call->in[2].data;
  k.drow = call->in[3].data;
  k.dz = tl_array_of(&call->out[0]);
  k.vocab = 1.0f;
  return launch_grad(call, &k);
}

/* --- One number for each token ---------------------------------------------------------------- */

tl_status tl_cuda_cross_entropy(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_cross_entropy_check(call));
  const tl_tokens_args k = {.m = call->in[0].data,
                            .s = call->in[1].data,
                            .zt = call->in[2].data,
                            .zsum = call->in[3].data,
                            .targets = call->in[4].data,
                            .out = call->out[0].data,
                            .rows = rows,
                            .vocab = (float)call->ints[0],
                            .smoothing = call->floats[0],
                            .weight = call->floats[1]};
  return tl_launch_threads(call->cuda, "cross_entropy_tokens", rows, &k);
}

tl_status tl_cuda_logsumexp(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("logsumexp", "m", &call->in[0], TL_KIND_F32, rows));
  TL_TRY(tl_expect("logsumexp", "s", &call->in[1], TL_KIND_F32, rows));
  TL_TRY(tl_expect("logsumexp", "lse", &call->out[0], TL_KIND_F32, rows));
  const tl_tokens_args k = {
      .m = call->in[0].data, .s = call->in[1].data, .out = call->out[0].data, .rows = rows};
  return tl_launch_threads(call->cuda, "logsumexp_tokens", rows, &k);
}

tl_status tl_cuda_loss_seed(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("loss_seed", "targets", &call->in[0], TL_KIND_I32, rows));
  TL_TRY(tl_expect("loss_seed", "count", &call->in[1], TL_KIND_I64, 1));
  TL_TRY(tl_expect("loss_seed", "dloss", &call->out[0], TL_KIND_F32, rows));
  const tl_tokens_args k = {.targets = call->in[0].data,
                            .count = call->in[1].data,
                            .out = call->out[0].data,
                            .rows = rows};
  return tl_launch_threads(call->cuda, "loss_seed_tokens", rows, &k);
}

tl_status tl_cuda_loss_mask(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("loss_mask", "loss", &call->in[0], TL_KIND_F32, rows));
  TL_TRY(tl_expect("loss_mask", "targets", &call->in[1], TL_KIND_I32, rows));
  TL_TRY(tl_expect("loss_mask", "y", &call->out[0], TL_KIND_F32, rows));
  const tl_tokens_args k = {.loss = call->in[0].data,
                            .targets = call->in[1].data,
                            .out = call->out[0].data,
                            .rows = rows};
  return tl_launch_threads(call->cuda, "loss_mask_tokens", rows, &k);
}

tl_status tl_cuda_loss_finish(const tl_call *call) {
  TL_TRY(tl_expect("loss_finish", "sum", &call->in[0], TL_KIND_F32, 1));
  TL_TRY(tl_expect("loss_finish", "count", &call->in[1], TL_KIND_I64, 1));
  TL_TRY(tl_expect("loss_finish", "loss", &call->out[0], TL_KIND_F32, 1));
  const tl_tokens_args k = {
      .loss = call->in[0].data, .count = call->in[1].data, .out = call->out[0].data, .rows = 1};
  return tl_launch_blocks(call->cuda, "loss_finish_one", 1, TL_DEVICE_WARP, &k);
}
