/* sampling_check.c - what sample and follow refuse before they read a number. */
#include "../rows.h"
#include "sampling.h"

tl_status tl_sample_check(const tl_call *call) {
  const char *op = "sample";
  const tl_view *z = &call->in[0];
  const int64_t rows = z->dims > 0 ? z->shape[0] : 0;
  if (z->dims != 2) return tl_fail(TL_SHAPE, "%s: z must be (rows, columns)", op);
  TL_TRY(tl_expect(op, "z", z, TL_KIND_F32, tl_view_count(z)));
  TL_TRY(tl_expect(op, "next", &call->in[1], TL_KIND_I32, rows));
  TL_TRY(tl_expect(op, "controls", &call->in[2], TL_KIND_F32, 2 * rows));
  TL_TRY(tl_expect(op, "draws", &call->in[3], TL_KIND_I32, 6 * rows));
  TL_TRY(tl_expect(op, "ids", &call->out[0], TL_KIND_I32, rows));
  TL_TRY(tl_expect_range(op, "columns", call->ints[0], 1, z->shape[1]));
  return tl_expect_range(op, "columns", call->ints[0], 1, TL_SAMPLE_COLUMNS_MAX);
}

tl_status tl_follow_check(const tl_call *call) {
  const char *op = "follow";
  const int64_t rows = tl_view_count(&call->in[0]);
  TL_TRY(tl_expect(op, "fed", &call->in[0], TL_KIND_I32, rows));
  TL_TRY(tl_expect(op, "made", &call->in[1], TL_KIND_I32, tl_view_count(&call->in[1])));
  return tl_expect(op, "ids", &call->out[0], TL_KIND_I32, rows);
}
