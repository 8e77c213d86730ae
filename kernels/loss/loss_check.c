/* loss_check.c - what the loss operators refuse. Host twin and launcher ask here, so both say the
** same. */
#include "../rows.h"
#include "loss.h"

/* Rows of logits: the first input, of which `columns` are true ids. */
static tl_status logits(const char *op, const tl_call *call) {
  const tl_view *z = &call->in[0];
  const int64_t width = tl_view_row(z);
  TL_TRY(tl_expect(op, "z", z, TL_KIND_FLOAT, z->shape[0] * width));
  return tl_expect_range(op, "columns", call->ints[0], 0, width);
}

tl_status tl_row_max_check(const tl_call *call) {
  TL_TRY(logits("row_max", call));
  return tl_expect("row_max", "m", &call->out[0], TL_KIND_F32, call->in[0].shape[0]);
}

tl_status tl_row_sum_exp_check(const tl_call *call) {
  const char *op = "row_sum_exp";
  static const char *const names[] = {"s", "zt", "zsum"};
  const int64_t rows = call->in[0].shape[0], width = tl_view_row(&call->in[0]);
  const int64_t leaves = call->ints[2];
  TL_TRY(logits(op, call));
  TL_TRY(tl_expect_range(op, "leaves", leaves, 1, TL_LOSS_LEAVES_MAX));
  if ((leaves & (leaves - 1)) != 0 || width % leaves != 0) {
    return tl_fail(TL_SHAPE, "%s: leaves %lld must be a power of two that divides %lld columns", op,
                   (long long)leaves, (long long)width);
  }
  TL_TRY(tl_expect(op, "m", &call->in[1], TL_KIND_F32, rows));
  TL_TRY(tl_expect(op, "targets", &call->in[2], TL_KIND_I32, rows));
  for (int32_t i = 0; i < 3; i++) TL_TRY(tl_expect(op, names[i], &call->out[i], TL_KIND_F32, rows));
  return TL_OK;
}

tl_status tl_cross_entropy_grad_check(const tl_call *call) {
  const char *op = "cross_entropy_grad";
  const int64_t rows = call->in[0].shape[0];
  TL_TRY(logits(op, call));
  TL_TRY(tl_expect_range(op, "vocab", call->ints[2], 1, INT32_MAX));
  TL_TRY(tl_expect(op, "m", &call->in[1], TL_KIND_F32, rows));
  TL_TRY(tl_expect(op, "s", &call->in[2], TL_KIND_F32, rows));
  TL_TRY(tl_expect(op, "targets", &call->in[3], TL_KIND_I32, rows));
  TL_TRY(tl_expect(op, "dloss", &call->in[4], TL_KIND_F32, rows));
  return tl_expect(op, "dz", &call->out[0], TL_KIND_FLOAT, rows * tl_view_row(&call->in[0]));
}

tl_status tl_logsumexp_grad_check(const tl_call *call) {
  const char *op = "logsumexp_grad";
  const int64_t rows = call->in[0].shape[0];
  TL_TRY(logits(op, call));
  TL_TRY(tl_expect(op, "m", &call->in[1], TL_KIND_F32, rows));
  TL_TRY(tl_expect(op, "s", &call->in[2], TL_KIND_F32, rows));
  TL_TRY(tl_expect(op, "dlse", &call->in[3], TL_KIND_F32, rows));
  return tl_expect(op, "dz", &call->out[0], TL_KIND_FLOAT, rows * tl_view_row(&call->in[0]));
}

tl_status tl_cross_entropy_check(const tl_call *call) {
  const char *op = "cross_entropy";
  const int64_t rows = tl_view_count(&call->out[0]);
  static const char *const names[] = {"m", "s", "zt", "zsum"};
  for (int32_t i = 0; i < 4; i++) TL_TRY(tl_expect(op, names[i], &call->in[i], TL_KIND_F32, rows));
  TL_TRY(tl_expect(op, "targets", &call->in[4], TL_KIND_I32, rows));
  TL_TRY(tl_expect(op, "loss", &call->out[0], TL_KIND_F32, rows));
  TL_TRY(tl_expect_range(op, "vocab", call->ints[0], 1, INT32_MAX));
  return TL_OK;
}

tl_status tl_logsumexp_check(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("logsumexp", "m", &call->in[0], TL_KIND_F32, rows));
  TL_TRY(tl_expect("logsumexp", "s", &call->in[1], TL_KIND_F32, rows));
  return tl_expect("logsumexp", "lse", &call->out[0], TL_KIND_F32, rows);
}

tl_status tl_loss_seed_check(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("loss_seed", "targets", &call->in[0], TL_KIND_I32, rows));
  TL_TRY(tl_expect("loss_seed", "count", &call->in[1], TL_KIND_I64, 1));
  return tl_expect("loss_seed", "dloss", &call->out[0], TL_KIND_F32, rows);
}

tl_status tl_loss_mask_check(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("loss_mask", "loss", &call->in[0], TL_KIND_F32, rows));
  TL_TRY(tl_expect("loss_mask", "targets", &call->in[1], TL_KIND_I32, rows));
  return tl_expect("loss_mask", "y", &call->out[0], TL_KIND_F32, rows);
}

tl_status tl_loss_finish_check(const tl_call *call) {
  TL_TRY(tl_expect("loss_finish", "sum", &call->in[0], TL_KIND_F32, 1));
  TL_TRY(tl_expect("loss_finish", "count", &call->in[1], TL_KIND_I64, 1));
  return tl_expect("loss_finish", "loss", &call->out[0], TL_KIND_F32, 1);
}
