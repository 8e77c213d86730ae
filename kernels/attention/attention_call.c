/* attention_call.c - checks of attention's arguments, and the walk over tiles. */
#include "attention_call.h"

#include <math.h>
#include <string.h>

#include "../math.h"

/* Fails unless `view` is (rows, heads, width) of dtype `wanted`; TL_DTYPE_COUNT: f32 or bf16. */
static tl_status check_view(const char *name, const tl_view *view, int64_t rows, int64_t heads,
                            int64_t width, tl_dtype wanted) {
  if (view->dims != 3 || view->shape[0] != rows || view->shape[1] != heads ||
      view->shape[2] != width) {
    return tl_fail(TL_SHAPE, "attention: %s must be (%lld, %lld, %lld)", name, (long long)rows,
                   (long long)heads, (long long)width);
  }
  if (wanted == TL_DTYPE_COUNT ? view->dtype != TL_F32 && view->dtype != TL_BF16
                               : view->dtype != wanted) {
    return tl_fail(TL_DTYPE, "attention: %s is %s, wanted %s", name, tl_dtype_name(view->dtype),
                   wanted == TL_DTYPE_COUNT ? "f32 or bf16" : tl_dtype_name(wanted));
  }
  return TL_OK;
}

static tl_status check_lse(const tl_view *lse, const tl_attention_sizes *sizes) {
  if (lse->dtype != TL_F32 || lse->dims != 2 || lse->shape[0] != sizes->rows ||
      lse->shape[1] != sizes->heads) {
    return tl_fail(TL_SHAPE, "attention: lse must be (%lld, %lld) f32", (long long)sizes->rows,
                   (long long)sizes->heads);
  }
  return TL_OK;
}

tl_status tl_attention_check_forward(const tl_call *call, const tl_attention_sizes *z) {
  const tl_view *o = &call->out[0];
  TL_TRY(check_view("o", o, z->rows, z->heads, z->value_width, TL_DTYPE_COUNT));
  return check_lse(&call->out[1], z);
}

tl_status tl_attention_check_backward(const tl_call *call, const tl_attention_sizes *z) {
  const tl_view *in = call->in, *out = call->out;
  const int64_t rows = z->rows, group = z->heads / z->kv_heads, leaves = call->ints[3];
  TL_TRY(check_view("o", &in[3], rows, z->heads, z->value_width, TL_DTYPE_COUNT));
  TL_TRY(check_lse(&in[4], z));
  TL_TRY(check_view("do", &in[5], rows, z->heads, z->value_width, z->dtype));
  TL_TRY(check_view("dq", &out[0], rows, z->heads, z->width, TL_DTYPE_COUNT));
  TL_TRY(check_view("dk", &out[1], rows, z->kv_heads, z->width, TL_DTYPE_COUNT));
  TL_TRY(check_view("dv", &out[2], rows, z->kv_heads, z->value_width, TL_DTYPE_COUNT));
  if (leaves < 1 || leaves > TL_ATTENTION_LEAVES_MAX || (leaves & (leaves - 1)) != 0 ||
      group % leaves != 0) {
    return tl_fail(TL_ARGUMENT,
                   "attention: head_leaves is %lld; it is a power of two that divides"
                   " the %lld query heads of a KV head",
                   (long long)leaves, (long long)group);
  }
  return TL_OK;
}

static tl_status check_cu(const tl_view *cu, int64_t rows) {
  const int32_t *entry = cu->data;
  const int64_t count = tl_view_count(cu);
  if (entry[0] != 0) {
    return tl_fail(TL_DATA, "attention: cu_seqlens: entry 0 is %d, must be 0", entry[0]);
  }
  for (int64_t i = 1; i < count; i++) {
    if (entry[i] < entry[i - 1]) {
      return tl_fail(TL_DATA, "attention: cu_seqlens: entry %lld is %d, less than %d", (long long)i,
                     entry[i], entry[i - 1]);
    }
    if (entry[i] > rows) {
      return tl_fail(TL_DATA, "attention: cu_seqlens: entry %lld is %d, but there are %lld rows",
                     (long long)i, entry[i], (long long)rows);
    }
  }
  return TL_OK;
}

static tl_status check_numbers(const tl_attention_sizes *sizes) {
  const int64_t step = sizes->dtype == TL_BF16 ? 16 : 8;
  if (sizes->window < 0) {
    return tl_fail(TL_ARGUMENT, "attention: window is %lld; it is 0 (none) or a number of keys",
                   (long long)sizes->window);
  }
  if (sizes->kv_block < step || sizes->kv_block > TL_ATTENTION_BLOCK_MAX ||
      sizes->kv_block % step != 0) {
    return tl_fail(TL_ARGUMENT, "attention: kv_block is %lld; it is a multiple of %lld up to %d",
                   (long long)sizes->kv_block, (long long)step, TL_ATTENTION_BLOCK_MAX);
  }
  if (sizes->split < sizes->kv_block || sizes->split % sizes->kv_block != 0) {
    return tl_fail(TL_ARGUMENT, "attention: split is %lld; it is a multiple of kv_block %lld",
                   (long long)sizes->split, (long long)sizes->kv_block);
  }
  if (!(sizes->scale > 0.0f) || isinf(sizes->scale)) {
    return tl_fail(TL_ARGUMENT, "attention: scale is %g; it is a positive number",
                   (double)sizes->scale);
  }
  return TL_OK;
}

static tl_status check_shapes(const tl_call *call, tl_attention_sizes *out) {
  const tl_view *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
  if (q->dims != 3 || k->dims != 3 || v->dims != 3) {
    return tl_fail(TL_SHAPE, "attention: q, k and v must be (rows, heads, width)");
  }
  out->rows = q->shape[0], out->heads = q->shape[1], out->width = q->shape[2];
  out->kv_heads = k->shape[1], out->value_width = v->shape[2], out->dtype = q->dtype;
  if (out->heads < 1 || out->kv_heads < 1 || out->heads % out->kv_heads != 0) {
    return tl_fail(TL_SHAPE, "attention: %lld KV heads do not divide %lld query heads",
                   (long long)out->kv_heads, (long long)out->heads);
  }
  if (out->width < 1 || out->width > TL_ATTENTION_WIDTH_MAX || out->value_width < 1 ||
      out->value_width > TL_ATTENTION_WIDTH_MAX) {
    return tl_fail(TL_SHAPE, "attention: head widths are %lld (q, k) and %lld (v); from 1 to %d",
                   (long long)out->width, (long long)out->value_width, TL_ATTENTION_WIDTH_MAX);
  }
  TL_TRY(check_view("q", q, out->rows, out->heads, out->width, TL_DTYPE_COUNT));
  TL_TRY(check_view("k", k, out->rows, out->kv_heads, out->width, out->dtype));
  return check_view("v", v, out->rows, out->kv_heads, out->value_width, out->dtype);
}

tl_status tl_attention_describe(const tl_call *call, const tl_view *cu, tl_attention_sizes *out) {
  *out = (tl_attention_sizes){
      .cu = cu->data,
      .segments = tl_view_count(cu) - 1,
      .window = call->ints[0],
      .kv_block = call->ints[1],
      .split = call->ints[2],
      .scale = call->floats[0],
      .factor = call->floats[0] * TL_LOG2E,
  };
  TL_TRY(check_shapes(call, out));
  TL_TRY(check_numbers(out));
  if (cu->dtype != TL_I32) {
    return tl_fail(TL_DTYPE, "attention: cu_seqlens is %s, wanted i32", tl_dtype_name(cu->dtype));
  }
  if (cu->dims != 1 || out->segments < 0) {
    return tl_fail(TL_SHAPE, "attention: cu_seqlens must be a list of at least one entry");
  }
  return TL_OK;
}

tl_status tl_attention_check(const tl_call *call, const tl_view *cu, tl_attention_sizes *out) {
  TL_TRY(tl_attention_describe(call, cu, out));
  TL_TRY(check_cu(cu, out->rows));
  out->elementwise = tl_tile_elementwise();
  out->used_rows = out->cu[out->segments];
  out->products = out->dtype == TL_BF16 ? tl_products_bf16() : tl_products_f32();
  return TL_OK;
}

typedef struct walk {
  const tl_attention_sizes *sizes;
  int64_t heads, chunks;
  tl_attention_visit visit;
  void *context;
} walk;

/* The last segment that begins at or before `row`, which some segment holds: it is that one. */
static int64_t segment_of(const tl_attention_sizes *sizes, int64_t row) {
  int64_t low = 0, high = sizes->segments;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (sizes->cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

static void visit_chunk(void *context, int64_t index, int32_t worker) {
  const walk *w = context;
  const tl_attention_sizes *sizes = w->sizes;
  const int64_t chunk = w->chunks - 1 - index / w->heads;
  int64_t row = chunk * TL_TILE, end = row + TL_TILE;
  if (end > sizes->used_rows) end = sizes->used_rows;
  while (row < end) {
    const int64_t segment = segment_of(sizes, row);
    tl_attention_tile tile = {.start = sizes->cu[segment], .head = index % w->heads};
    tile.worker = worker;
    tile.length = sizes->cu[segment + 1] - tile.start;
    tile.offset = (row - tile.start + TL_TILE - 1) / TL_TILE * TL_TILE;
    tile.count = tile.length - tile.offset;
    row = tile.start + tile.offset; /* where the next tile begins */
    if (tile.count <= 0) {
      row = tile.start + tile.length;
    } else if (row < end) {
      if (tile.count > TL_TILE) tile.count = TL_TILE;
      w->visit(w->context, &tile);
      row += tile.count;
    }
  }
}

void tl_attention_for(tl_team *team, const tl_attention_sizes *sizes, int64_t heads,
                      tl_attention_visit visit, void *context) {
  walk w = {sizes, heads, (sizes->used_rows + TL_TILE - 1) / TL_TILE, visit, context};
  tl_team_for(team, w.chunks * heads, visit_chunk, &w);
}

tl_rows tl_attention_rows(const tl_view *view, int64_t row, int64_t head) {
  const int64_t stride = view->shape[1] * view->shape[2];
  const int64_t first = row * stride + head * view->shape[2];
  return (tl_rows){(const char *)view->data + first * tl_dtype_bytes(view->dtype), stride};
}

void tl_attention_store(const tl_tile_row *acc, const tl_attention_tile *tile, float factor,
                        const tl_view *out) {
  const tl_rows rows = tl_attention_rows(out, tile->start + tile->offset, tile->head);
  const int64_t width = out->shape[2];
  if (out->dtype == TL_F32) {
    float *first = (float *)rows.data;
    tl_tile_elementwise()->unpack(acc, tile->count, width, factor, first, rows.stride);
    return;
  }
  for (int64_t lane = 0; lane < tile->count; lane++) {
    uint16_t *row = (uint16_t *)rows.data + lane * rows.stride;
    for (int64_t i = 0; i < width; i++) row[i] = tl_bf16_from_f32(factor * acc[i][lane]);
  }
}

void tl_attention_clear(const tl_view *view, int64_t first) {
  const int64_t before = first * tl_view_row(view) * tl_dtype_bytes(view->dtype);
  memset((char *)view->data + before, 0, (size_t)(tl_view_bytes(view) - before));
}
