/* optimizer_check.c - what adamw and init refuse. Host twin and launcher ask here, so both say the
** same. */
#include "../rows.h"
#include "optimizer.h"

tl_status tl_adamw_check(const tl_call *call, int32_t scalar_count) {
  const char *op = "adamw";
  const int64_t count = tl_view_count(&call->in[0]);
  static const char *const names[] = {"weight", "m", "v", "master"};
  const int32_t masters = call->out_count > 3 && call->out[3].data != NULL;
  TL_TRY(tl_expect(op, "grad", &call->in[0], TL_KIND_F32, count));
  TL_TRY(tl_expect(op, "control", &call->in[1], TL_KIND_F32, 2));
  for (int32_t i = 0; i < 3 + masters; i++) {
    TL_TRY(tl_expect(op, names[i], &call->out[i], i == 0 ? TL_KIND_FLOAT : TL_KIND_F32, count));
  }
  return tl_expect_range(op, "scalar_first", call->ints[0], 0, scalar_count - 3);
}

tl_status tl_init_check(const tl_call *call) {
  const tl_view *y = &call->out[0];
  const int64_t *ints = call->ints, columns = tl_view_row(y);
  TL_TRY(tl_expect("init", "y", y, TL_KIND_FLOAT, y->shape[0] * columns));
  TL_TRY(tl_expect_range("init", "kind", ints[0], 0, 2));
  TL_TRY(tl_expect_range("init", "row_first", ints[2], 0, INT64_MAX / 2));
  return tl_expect_range("init", "col_first", ints[3], 0, ints[4] - columns);
}

tl_status tl_set_state_check(const tl_call *call) {
  const int64_t count = tl_view_count(&call->in[0]);
  TL_TRY(tl_expect("set_state", "value", &call->in[0], TL_KIND_F32, count));
  TL_TRY(tl_expect("set_state", "control", &call->in[1], TL_KIND_F32, 2));
  return tl_expect("set_state", "state", &call->out[0], TL_KIND_F32, count);
}
