/* embedding_check.c - what the embedding operators refuse. Host twin and launcher ask here, so both
** say the same. */
#include "../rows.h"
#include "embedding.h"

int64_t tl_embedding_dim(const tl_call *call) {
  const tl_view *table = &call->in[1], *y = &call->out[0];
  const int64_t wide = tl_view_row(table), dim = wide / TL_PANEL;
  const int64_t tokens = tl_view_count(&call->in[0]);
  return tl_is_panels(table, dim) && tl_view_count(y) == tokens * dim ? dim : wide;
}

tl_status tl_embedding_check(const tl_call *call) {
  const tl_view *ids = &call->in[0], *table = &call->in[1];
  const int64_t tokens = tl_view_count(ids), dim = tl_embedding_dim(call);
  TL_TRY(tl_expect("embedding", "ids", ids, TL_KIND_I32, tokens));
  if (call->cuda != NULL && dim != tl_view_row(table))
    return tl_fail(TL_ARGUMENT, "embedding: a table in panels, which the host alone has");
  TL_TRY(
      tl_expect("embedding", "table", table, TL_KIND_FLOAT, table->shape[0] * tl_view_row(table)));
  return tl_expect("embedding", "y", &call->out[0], TL_KIND_FLOAT, tokens * dim);
}

tl_status tl_embedding_grad_check(const tl_call *call) {
  const char *op = "embedding_grad";
  const tl_view *ids = &call->in[0], *table = &call->out[0];
  const int64_t tokens = tl_view_count(ids), dim = tl_view_row(table);
  const int64_t first = call->ints[1], count = call->ints[2] * call->ints[3];
  const int64_t mode = call->ints[4];
  TL_TRY(tl_expect_range(op, "mode", mode, 0, 2));
  TL_TRY(tl_expect(op, "ids", ids, TL_KIND_I32, tokens));
  TL_TRY(tl_expect(op, "dy", &call->in[1], TL_KIND_FLOAT, tokens * dim));
  TL_TRY(tl_expect(op, "dtable", table, TL_KIND_F32, table->shape[0] * dim));
  TL_TRY(tl_expect_range(op, "first", first, 0, tokens));
  TL_TRY(tl_expect_range(op, "samples * length", count, 0, tokens - first));
  if (mode != 2) return TL_OK;
  return tl_expect_range(op, "rows of one block", count, 0, TL_EMBEDDING_BLOCK_ROWS_MAX);
}

tl_status tl_position_ids_check(const tl_call *call) {
  const tl_view *cu = &call->in[0], *ids = &call->out[0];
  const int64_t entries = tl_view_count(cu);
  TL_TRY(tl_expect("position_ids", "ids", ids, TL_KIND_I32, tl_view_count(ids)));
  TL_TRY(tl_expect("position_ids", "cu_seqlens", cu, TL_KIND_I32, entries));
  return tl_expect_range("position_ids", "entries of cu_seqlens", entries, 1, INT32_MAX);
}

tl_status tl_pick_rows_check(const tl_call *call) {
  const char *op = "pick_rows";
  const tl_view *x = &call->in[0], *rows = &call->in[1], *y = &call->out[0];
  const int64_t dim = tl_view_row(x), count = tl_view_count(rows);
  TL_TRY(tl_expect(op, "x", x, TL_KIND_FLOAT, x->shape[0] * dim));
  TL_TRY(tl_expect(op, "rows", rows, TL_KIND_I32, count));
  TL_TRY(tl_expect(op, "y", y, TL_KIND_FLOAT, count * dim));
  if (y->dtype == x->dtype) return TL_OK;
  return tl_fail(TL_DTYPE, "%s: x is %s and y %s", op, tl_dtype_name(x->dtype),
                 tl_dtype_name(y->dtype));
}
