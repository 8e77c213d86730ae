/* cache_check.c - what the operators of the cache refuse. */
#include "cache.h"

#include "../attention/attention.h"
#include "../rows.h"

static tl_status check_list(const char *op, const char *name, const tl_view *view, int64_t rows) {
  TL_TRY(tl_expect(op, name, view, TL_KIND_I32, rows));
  if (view->dims == 1) return TL_OK;
  return tl_fail(TL_SHAPE, "%s: %s must be a list", op, name);
}

static tl_status check_shape(const char *op, const char *name, const tl_view *view, int32_t dims,
                             const int64_t *shape, tl_dtype dtype) {
  if (view->dtype != dtype)
    return tl_fail(TL_DTYPE, "%s: %s is %s, expected %s", op, name, tl_dtype_name(view->dtype),
                   tl_dtype_name(dtype));
  int fits = view->dims == dims;
  for (int32_t i = 0; i < dims && fits; i++) fits = view->shape[i] == shape[i];
  if (fits) return TL_OK;
  return tl_fail(TL_SHAPE, "%s: %s must be (%lld, %lld, %lld%s)", op, name, (long long)shape[0],
                 (long long)shape[1], (long long)shape[2], dims == 3 ? "" : ", ..");
}

/* Pools, lists and table; their sizes. */
static tl_status check_pools(const char *op, const tl_view *keys, const tl_view *values,
                             const tl_view *lists, tl_cache_sizes *out) {
  const tl_view *table = &lists[2];
  if (keys->dims != 4 || values->dims != 4)
    return tl_fail(TL_SHAPE, "%s: keys and values must have four dims", op);
  if (keys->dtype != TL_F32 && keys->dtype != TL_BF16)
    return tl_fail(TL_DTYPE, "%s: keys are %s, wanted f32 or bf16", op, tl_dtype_name(keys->dtype));
  out->pages = keys->shape[0], out->kv_heads = keys->shape[1];
  out->width = keys->shape[2], out->page = keys->shape[3];
  out->value_width = values->shape[3], out->dtype = keys->dtype;
  TL_TRY(tl_expect_range(op, "width", out->width, 1, TL_ATTENTION_WIDTH_MAX));
  TL_TRY(tl_expect_range(op, "value width", out->value_width, 1, TL_ATTENTION_WIDTH_MAX));
  TL_TRY(tl_expect_range(op, "positions of a page", out->page, 1, INT32_MAX));
  const int64_t shape[4] = {out->pages, out->page, out->kv_heads, out->value_width};
  TL_TRY(check_shape(op, "values", values, 4, shape, out->dtype));
  TL_TRY(check_list(op, "requests", &lists[0], out->rows));
  TL_TRY(check_list(op, "positions", &lists[1], out->rows));
  TL_TRY(tl_expect(op, "table", table, TL_KIND_I32, tl_view_count(table)));
  if (table->dims != 2) return tl_fail(TL_SHAPE, "%s: table must be (requests, pages)", op);
  out->requests = table->shape[0], out->pages_max = table->shape[1];
  out->request = lists[0].data, out->position = lists[1].data, out->table = table->data;
  return TL_OK;
}

tl_status tl_cache_write_check(const tl_call *call, tl_cache_sizes *out) {
  const char *op = "cache_write";
  *out = (tl_cache_sizes){.rows = call->in[0].dims == 3 ? call->in[0].shape[0] : 0};
  TL_TRY(check_pools(op, &call->out[0], &call->out[1], &call->in[2], out));
  const int64_t k[3] = {out->rows, out->kv_heads, out->width};
  const int64_t v[3] = {out->rows, out->kv_heads, out->value_width};
  TL_TRY(check_shape(op, "k", &call->in[0], 3, k, out->dtype));
  return check_shape(op, "v", &call->in[1], 3, v, out->dtype);
}

static tl_status check_numbers(const char *op, const tl_call *call, tl_dtype dtype) {
  const int64_t window = call->ints[0], block = call->ints[1], split = call->ints[2];
  const int64_t unit = dtype == TL_BF16 ? 16 : 8;
  const float scale = call->floats[0];
  if (window < 0) return tl_fail(TL_ARGUMENT, "%s: window is %lld", op, (long long)window);
  if (block < unit || block > TL_ATTENTION_BLOCK_MAX || block % unit != 0)
    return tl_fail(TL_ARGUMENT, "%s: kv_block is %lld; multiples of %lld up to %d", op,
                   (long long)block, (long long)unit, TL_ATTENTION_BLOCK_MAX);
  if (split < block || split % block != 0)
    return tl_fail(TL_ARGUMENT, "%s: split is %lld; multiples of kv_block %lld", op,
                   (long long)split, (long long)block);
  if (!(scale > 0.0f && scale <= 0x1.fffffep+127f))
    return tl_fail(TL_ARGUMENT, "%s: scale is %g", op, (double)scale);
  return TL_OK;
}

tl_status tl_attention_cached_check(const tl_call *call, tl_cache_sizes *out) {
  const char *op = "attention_cached";
  const tl_view *q = &call->in[0], *o = &call->out[0];
  if (q->dims != 3) return tl_fail(TL_SHAPE, "%s: q must be (rows, heads, width)", op);
  *out = (tl_cache_sizes){.rows = q->shape[0]};
  TL_TRY(check_pools(op, &call->in[1], &call->in[2], &call->in[3], out));
  const int64_t heads = q->shape[1];
  if (heads < 1 || out->kv_heads < 1 || heads % out->kv_heads != 0)
    return tl_fail(TL_SHAPE, "%s: %lld KV heads do not divide %lld query heads", op,
                   (long long)out->kv_heads, (long long)heads);
  const int64_t shape[3] = {out->rows, heads, out->width};
  const int64_t result[3] = {out->rows, heads, out->value_width};
  TL_TRY(check_shape(op, "q", q, 3, shape, out->dtype));
  TL_TRY(tl_expect(op, "o", o, TL_KIND_FLOAT, tl_view_count(o)));
  TL_TRY(check_shape(op, "o", o, 3, result, o->dtype));
  return check_numbers(op, call, out->dtype);
}

static tl_status check_page(const char *op, const tl_cache_sizes *z, int64_t row, int64_t entry) {
  const int32_t page = z->table[z->request[row] * z->pages_max + entry];
  if (page >= 0 && page < z->pages) return TL_OK;
  return tl_fail(TL_ARGUMENT, "%s: row %lld: entry %lld of request %d is page %d; there are %lld",
                 op, (long long)row, (long long)entry, z->request[row], page, (long long)z->pages);
}

tl_status tl_cache_check_rows(const char *op, const tl_cache_sizes *z, int all) {
  for (int64_t row = 0; row < z->rows; row++) {
    if (z->request[row] < 0) continue;
    if (z->request[row] >= z->requests)
      return tl_fail(TL_ARGUMENT, "%s: row %lld: request %d; there are %lld", op, (long long)row,
                     z->request[row], (long long)z->requests);
    if (z->position[row] < 0 || z->position[row] >= z->pages_max * z->page)
      return tl_fail(TL_ARGUMENT, "%s: row %lld: position %d; a request has %lld", op,
                     (long long)row, z->position[row], (long long)(z->pages_max * z->page));
    const int64_t last = z->position[row] / z->page;
    for (int64_t entry = all ? 0 : last; entry <= last; entry++)
      TL_TRY(check_page(op, z, row, entry));
  }
  return TL_OK;
}
