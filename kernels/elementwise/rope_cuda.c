/* rope_cuda.c - queues the kernels of rope, rope_rows and rope_table. */
#include "../launch_cuda.h"
#include "elementwise.h"
#include "elementwise_args.h"
#include "rope_cuda.h"

enum { ROPE_THREADS = 128 };

/* Whether rope_whole_rows takes it; its blocks have a row for each warp. */
static int is_whole(const tl_rope_args *r) {
  return !r->interleaved && r->channels == 2 * r->pairs && tl_whole(&r->x, r->pairs) &&
         tl_whole(&r->y, r->pairs) && r->heads * r->pairs < INT32_MAX;
}

static tl_rope_args args_of(const tl_call *call) {
  const tl_view *x = &call->in[0], *table = &call->in[2];
  const int64_t channels = x->shape[x->dims - 1];
  return (tl_rope_args){.x = tl_array_of(x),
                        .y = tl_array_of(&call->out[0]),
                        .table = tl_array_of(table),
                        .positions = table->shape[0],
                        .pairs = table->shape[1],
                        .heads = tl_view_row(x) / channels,
                        .channels = channels,
                        .rows = x->shape[0],
                        .interleaved = call->ints[1] != 0,
                        .sign = call->ints[0] != 0 ? -1.0f : 1.0f};
}

tl_status tl_cuda_rope(const tl_call *call) {
  const int64_t warps = ROPE_THREADS / TL_DEVICE_WARP;
  TL_TRY(tl_rope_check(call));
  tl_rope_args r = args_of(call);
  r.cu = call->in[1].data, r.entries = tl_view_count(&call->in[1]);
  if (is_whole(&r))
    return tl_launch_blocks(call->cuda, "rope_whole_rows", (r.rows + warps - 1) / warps,
                            ROPE_THREADS, &r);
  return tl_launch_blocks(call->cuda, "rope_rows", r.rows, ROPE_THREADS, &r);
}

void tl_rope_rows_args(const tl_call *call, tl_rope_args *out) {
  *out = args_of(call);
  out->placed = call->in[1].data;
}

tl_status tl_cuda_rope_rows(const tl_call *call) {
  TL_TRY(tl_rope_rows_check(call));
  tl_rope_args r;
  tl_rope_rows_args(call, &r);
  return tl_launch(call->cuda, "rope_placed_rows", call->in[0].shape[0], ROPE_THREADS, 1, &r);
}

tl_status tl_cuda_rope_table(const tl_call *call) {
  const tl_view *out = &call->out[0];
  const float base = call->floats[0];
  TL_TRY(tl_rope_table_check(call));
  const tl_rope_table_args t = {
      .table = out->data,
      .positions = out->shape[0],
      .pairs = out->shape[1],
      .rule = {.kind = call->ints[0],
               .original = call->ints[1],
               .base = base,
               .factor = call->floats[1],
               .low = call->floats[2],
               .high = call->floats[3],
               .magnitude = call->floats[4]}
  };
  if (t.positions == 0 || t.pairs == 0) return TL_OK;
  const int64_t columns = (t.pairs + TL_ROPE_TABLE_PAIRS - 1) / TL_ROPE_TABLE_PAIRS;
  const int64_t rows = (t.positions + TL_ROPE_TABLE_POSITIONS - 1) / TL_ROPE_TABLE_POSITIONS;
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)columns, (uint32_t)rows, 1},
        .threads = {TL_DEVICE_THREADS, 1,              1}
  };
  return tl_cuda_launch(call->cuda, "rope_table_tiles", &grid, &t);
}
