/* heads_check.c - what the operators on heads refuse, and the pieces of their calls. Host twin and
** launcher ask here, so both say and move the same. */
#include "../rows.h"
#include "heads.h"

/* (rows, heads, channels), f32 or bf16. */
static tl_status check_view(const char *op, const char *name, const tl_view *view) {
  if (view->dims != 3) {
    return tl_fail(TL_SHAPE, "%s: %s has %d dims, must be (rows, heads, channels)", op, name,
                   view->dims);
  }
  TL_TRY(tl_expect(op, name, view, TL_KIND_FLOAT, tl_view_count(view)));
  return tl_expect_range(op, "channels", view->shape[2], 1, TL_SPAN);
}

/* The same number of rows, and of heads (or one head for all). */
static tl_status check_alike(const char *op, const char *name, const tl_view *view,
                             const tl_view *whole, int shared) {
  TL_TRY(check_view(op, name, view));
  const int64_t heads = view->shape[1];
  if (view->shape[0] != whole->shape[0] || (heads != whole->shape[1] && !(shared && heads == 1))) {
    return tl_fail(TL_SHAPE, "%s: %s has %lld rows of %lld heads beside %lld of %lld", op, name,
                   (long long)view->shape[0], (long long)heads, (long long)whole->shape[0],
                   (long long)whole->shape[1]);
  }
  return TL_OK;
}

tl_status tl_split_heads_check(const tl_call *call) {
  const char *op = "split_heads";
  const tl_view *x = &call->in[0];
  int64_t end = call->ints[1];
  TL_TRY(check_view(op, "x", x));
  TL_TRY(tl_expect_range(op, "first", end, 0, x->shape[2]));
  for (int32_t i = 0; i < call->out_count; i++) {
    TL_TRY(check_alike(op, "y", &call->out[i], x, 0));
    end += call->out[i].shape[2];
  }
  return tl_expect_range(op, "end of the pieces", end, 0, x->shape[2]);
}

tl_status tl_join_heads_check(const tl_call *call) {
  const char *op = "join_heads";
  const tl_view *y = &call->out[0];
  int64_t end = 0;
  TL_TRY(check_view(op, "y", y));
  for (int32_t i = 0; i < call->in_count; i++) {
    TL_TRY(check_alike(op, "x", &call->in[i], y, 1));
    end += call->in[i].shape[2];
  }
  return tl_expect_range(op, "channels of the pieces", end, y->shape[2], y->shape[2]);
}

tl_status tl_sum_heads_check(const tl_call *call) {
  const char *op = "sum_heads";
  const tl_view *x = &call->in[0], *y = &call->out[0];
  const int64_t first = call->ints[0], leaves = call->ints[1];
  TL_TRY(check_view(op, "x", x));
  const int64_t width = tl_view_row(y);
  if (y->dims < 2) return tl_fail(TL_SHAPE, "%s: y must be (rows, channels)", op);
  TL_TRY(tl_expect(op, "y", y, TL_KIND_FLOAT, x->shape[0] * width));
  TL_TRY(tl_expect_range(op, "first", first, 0, x->shape[2]));
  TL_TRY(tl_expect_range(op, "channels of y", width, 1, x->shape[2] - first));
  TL_TRY(tl_expect_range(op, "leaves", leaves, 1, TL_HEADS_LEAVES_MAX));
  if ((leaves & (leaves - 1)) != 0 || x->shape[1] % leaves != 0) {
    return tl_fail(TL_ARGUMENT,
                   "%s: leaves is %lld, must be a power of two that divides heads %lld", op,
                   (long long)leaves, (long long)x->shape[1]);
  }
  return TL_OK;
}

tl_heads_piece tl_split_heads_piece(const tl_call *call, int32_t i) {
  const tl_view *x = &call->in[0], *y = &call->out[i];
  int64_t first = call->ints[1];
  for (int32_t k = 0; k < i; k++) first += call->out[k].shape[2];
  return (tl_heads_piece){.from = x,
                          .to = y,
                          .rows = x->shape[0],
                          .heads = x->shape[1],
                          .from_heads = x->shape[1],
                          .from_channels = x->shape[2],
                          .from_first = first,
                          .to_channels = y->shape[2],
                          .to_first = 0,
                          .width = y->shape[2]};
}

tl_heads_piece tl_join_heads_piece(const tl_call *call, int32_t i) {
  const tl_view *x = &call->in[i], *y = &call->out[0];
  int64_t first = 0;
  for (int32_t k = 0; k < i; k++) first += call->in[k].shape[2];
  return (tl_heads_piece){.from = x,
                          .to = y,
                          .rows = y->shape[0],
                          .heads = y->shape[1],
                          .from_heads = x->shape[1],
                          .from_channels = x->shape[2],
                          .from_first = 0,
                          .to_channels = y->shape[2],
                          .to_first = first,
                          .width = x->shape[2]};
}
