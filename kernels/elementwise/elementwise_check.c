/* elementwise_check.c - what the elementwise operators refuse. Host twin and launcher ask here, so
** both say the same. */
#include "../rows.h"
#include "elementwise.h"

enum {
#define UNARY(number, name, function) KIND_##name = number,
#include "unary.def"
#undef UNARY
  UNARY_KINDS
};

/* Operands of one shape, f32 or bf16: `ins` inputs and `outs` outputs, named in this order. */
static tl_status same(const char *op, const tl_call *call, const char *const *names, int32_t ins,
                      int32_t outs) {
  const int64_t count = tl_view_count(&call->in[0]);
  for (int32_t i = 0; i < ins; i++)
    TL_TRY(tl_expect(op, names[i], &call->in[i], TL_KIND_FLOAT, count));
  for (int32_t i = 0; i < outs; i++)
    TL_TRY(tl_expect(op, names[ins + i], &call->out[i], TL_KIND_FLOAT, count));
  return TL_OK;
}

tl_status tl_swiglu_check(const tl_call *call) {
  static const char *const names[] = {"gate", "up", "y"};
  return same("swiglu", call, names, 2, 1);
}

tl_status tl_swiglu_grad_check(const tl_call *call) {
  static const char *const names[] = {"dy", "gate", "up", "dgate", "dup"};
  return same("swiglu_grad", call, names, 3, 2);
}

tl_status tl_unary_check(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  TL_TRY(tl_expect_range("unary", "kind", call->ints[0], 0, UNARY_KINDS - 1));
  return same("unary", call, names, 1, 1);
}

tl_status tl_unary_grad_check(const tl_call *call) {
  static const char *const names[] = {"dy", "x", "dx"};
  TL_TRY(tl_expect_range("unary_grad", "kind", call->ints[0], 0, UNARY_KINDS - 1));
  return same("unary_grad", call, names, 2, 1);
}

tl_status tl_binary_check(const tl_call *call) {
  const tl_view *a = &call->in[0];
  const int64_t count = tl_view_count(a), broadcast = call->ints[1];
  TL_TRY(tl_expect_range("binary", "kind", call->ints[0], 0, 3));
  TL_TRY(tl_expect_range("binary", "broadcast", broadcast, 0, 2));
  const int64_t entries = broadcast == 0 ? count : broadcast == 1 ? tl_view_row(a) : a->shape[0];
  TL_TRY(tl_expect("binary", "a", a, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect("binary", "b", &call->in[1], TL_KIND_FLOAT, entries));
  return tl_expect("binary", "y", &call->out[0], TL_KIND_FLOAT, count);
}

tl_status tl_scale_check(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  return same("scale", call, names, 1, 1);
}

tl_status tl_scale_step_check(const tl_call *call, int32_t scalar_count) {
  const int64_t count = tl_view_count(&call->in[0]);
  TL_TRY(tl_expect("scale_step", "x", &call->in[0], TL_KIND_FLOAT, count));
  TL_TRY(tl_expect("scale_step", "y", &call->out[0], TL_KIND_FLOAT, count));
  return tl_expect_range("scale_step", "scalar", call->ints[0], 0, scalar_count - 1);
}

tl_status tl_cast_check(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  return same("cast", call, names, 1, 1);
}

tl_status tl_fill_check(const tl_call *call) {
  return tl_expect("fill", "y", &call->out[0], TL_KIND_FLOAT, tl_view_count(&call->out[0]));
}

tl_status tl_dropout_check(const tl_call *call) {
  const char *op = "dropout";
  const int64_t *ints = call->ints, count = tl_view_count(&call->in[0]);
  const int64_t length = ints[2], token_first = ints[3], tokens = ints[4];
  const float rate = call->floats[0];
  if (!(rate >= 0.0f && rate < 1.0f)) {
    return tl_fail(TL_ARGUMENT, "%s: rate is %g, must be at least 0 and below 1", op, (double)rate);
  }
  TL_TRY(tl_expect(op, "x", &call->in[0], TL_KIND_FLOAT, count));
  TL_TRY(tl_expect(op, "y", &call->out[0], TL_KIND_FLOAT, count));
  TL_TRY(tl_expect_range(op, "tokens", tokens, 1, length));
  TL_TRY(tl_expect_range(op, "token_first", token_first, 0, length - tokens));
  return tl_expect_range(op, "feature_first", ints[5], 0, ints[6] - tl_view_row(&call->in[0]));
}

tl_status tl_rope_check(const tl_call *call) {
  const tl_view *x = &call->in[0], *cu = &call->in[1], *table = &call->in[2];
  const int64_t count = tl_view_count(x), channels = x->shape[x->dims - 1];
  TL_TRY(tl_expect("rope", "x", x, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect("rope", "y", &call->out[0], TL_KIND_FLOAT, count));
  if (table->dims != 3 || table->shape[2] != 2) {
    return tl_fail(TL_SHAPE, "rope: table must have the shape (positions, pairs, 2)");
  }
  TL_TRY(tl_expect("rope", "table", table, TL_KIND_F32, tl_view_count(table)));
  TL_TRY(tl_expect("rope", "cu_seqlens", cu, TL_KIND_I32, tl_view_count(cu)));
  TL_TRY(tl_expect_range("rope", "entries of cu_seqlens", tl_view_count(cu), 1, INT32_MAX));
  TL_TRY(tl_expect_range("rope", "channels", channels, 1, TL_SPAN));
  return tl_expect_range("rope", "rotated channels", 2 * table->shape[1], 0, channels);
}

tl_status tl_rope_rows_check(const tl_call *call) {
  const char *op = "rope_rows";
  const tl_view *x = &call->in[0], *positions = &call->in[1], *table = &call->in[2];
  const int64_t count = tl_view_count(x), channels = x->shape[x->dims - 1];
  TL_TRY(tl_expect(op, "x", x, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect(op, "y", &call->out[0], TL_KIND_FLOAT, count));
  TL_TRY(tl_expect(op, "positions", positions, TL_KIND_I32, x->shape[0]));
  if (table->dims != 3 || table->shape[2] != 2) {
    return tl_fail(TL_SHAPE, "%s: table must have the shape (positions, pairs, 2)", op);
  }
  TL_TRY(tl_expect(op, "table", table, TL_KIND_F32, tl_view_count(table)));
  TL_TRY(tl_expect_range(op, "channels", channels, 1, TL_SPAN));
  return tl_expect_range(op, "rotated channels", 2 * table->shape[1], 0, channels);
}

tl_status tl_rope_table_check(const tl_call *call) {
  const tl_view *out = &call->out[0];
  const float base = call->floats[0];
  if (out->dims != 3 || out->shape[2] != 2) {
    return tl_fail(TL_SHAPE, "rope_table: table must have the shape (positions, pairs, 2)");
  }
  TL_TRY(tl_expect("rope_table", "table", out, TL_KIND_F32, tl_view_count(out)));
  TL_TRY(tl_expect_range("rope_table", "kind", call->ints[0], 0, 2));
  TL_TRY(tl_expect_range("rope_table", "positions", out->shape[0], 0, 1 << 21));
  TL_TRY(tl_expect_range("rope_table", "pairs", out->shape[1], 0, TL_SPAN));
  if (!(base >= 1.0f && base <= 0x1p+60f)) {
    return tl_fail(TL_ARGUMENT, "rope_table: base is %g, must be 1 to 2^60", (double)base);
  }
  if (call->ints[0] > 0 && !(call->ints[1] > 0 && call->floats[1] >= 1.0f &&
                             call->floats[2] > 0.0f && call->floats[3] > call->floats[2])) {
    return tl_fail(TL_ARGUMENT, "rope_table: %s needs original > 0, factor >= 1, 0 < low < high",
                   call->ints[0] == 1 ? "llama3" : "yarn");
  }
  if (call->ints[0] == 2 && !(base > 1.0f)) {
    return tl_fail(TL_ARGUMENT, "rope_table: yarn needs base above 1, got %g", (double)base);
  }
  if (!(call->floats[4] > 0.0f && call->floats[4] <= 0x1p+60f)) {
    return tl_fail(TL_ARGUMENT, "rope_table: magnitude is %g, must be above 0, at most 2^60",
                   (double)call->floats[4]);
  }
  return TL_OK;
}
