/* square_sum_cuda.c - checks the operands of square_sum and grad_norm and queues their kernels. */
#include "../launch_cuda.h"
#include "reduce.h"
#include "reduce_args.h"

enum { SCRATCH_FLOATS = TL_CUDA_SCRATCH_BYTES / 4 };

/* Chunks into scratch, then every slot; parts 0 leaves only zeros. */
static tl_status launch_squares(tl_cuda *cuda, const tl_square_sum_args *k) {
  TL_TRY(
      tl_launch_blocks(cuda, "square_sum_chunks", k->parts * k->chunks_each, TL_DEVICE_THREADS, k));
  return tl_launch_threads(cuda, "square_sum_chain", k->slot_count * TL_DEVICE_WARP, k);
}

tl_status tl_cuda_square_sum(const tl_call *call) {
  const char *op = "square_sum";
  const tl_view *g = &call->in[0], *slots = &call->out[0];
  const int64_t axis = call->ints[0], count = tl_view_count(slots);
  tl_square_sum_args k = {.g = tl_array_of(g),
                          .chunks = tl_cuda_scratch(call->cuda),
                          .slots = slots->data,
                          .outer = 1,
                          .inner = 1,
                          .begin = call->ints[1],
                          .extent = call->ints[2],
                          .parts = call->ints[3],
                          .slot_first = call->ints[4],
                          .slot_count = count};
  TL_TRY(tl_expect_range(op, "axis", axis, 0, g->dims - 1));
  k.length = g->shape[axis];
  TL_TRY(tl_expect(op, "g", g, TL_KIND_FLOAT, tl_view_count(g)));
  TL_TRY(tl_expect(op, "slots", slots, TL_KIND_F32, count));
  TL_TRY(tl_expect_range(op, "slot_first", k.slot_first, 0, count));
  TL_TRY(tl_expect_range(op, "parts", k.parts, 0, count - k.slot_first));
  if (k.parts == 0) return launch_squares(call->cuda, &k);
  TL_TRY(tl_expect_range(op, "begin", k.begin, 0, k.length));
  TL_TRY(tl_expect_range(op, "extent", k.extent, 0, k.length - k.begin));
  for (int32_t i = 0; i < g->dims; i++) {
    if (i < axis) k.outer *= g->shape[i];
    if (i > axis) k.inner *= g->shape[i];
  }
  const int64_t largest = k.outer * ((k.extent + k.parts - 1) / k.parts) * k.inner;
  k.chunks_each = (largest + TL_SQUARE_CHUNK - 1) / TL_SQUARE_CHUNK;
  TL_TRY(tl_expect_range(op, "chunks", k.parts * k.chunks_each, 0, SCRATCH_FLOATS));
  return launch_squares(call->cuda, &k);
}

tl_status tl_cuda_square_sum_rows(const tl_call *call) {
  const char *op = "square_sum_rows";
  const tl_view *g = &call->in[0], *slots = &call->out[0];
  const int64_t width = tl_view_row(g);
  tl_square_rows_args k = {
      .sums = {.g = tl_array_of(g),
               .chunks = tl_cuda_scratch(call->cuda),
               .slots = slots->data,
               .outer = 1,
               .length = g->shape[0],
               .inner = width,
               .chunks_each = (width + TL_SQUARE_CHUNK - 1) / TL_SQUARE_CHUNK,
               .slot_count = tl_view_count(slots)}
  };
  TL_TRY(tl_square_sum_rows_check(call));
  TL_TRY(tl_expect_range(op, "chunks", TL_SQUARE_ROWS * k.sums.chunks_each, 0, SCRATCH_FLOATS));
  for (int64_t first = 0; first < g->shape[0]; first += TL_SQUARE_ROWS) {
    const int64_t left = g->shape[0] - first;
    k.sums.begin = first, k.sums.parts = left < TL_SQUARE_ROWS ? left : TL_SQUARE_ROWS;
    k.sums.extent = k.sums.parts;
    for (int64_t i = 0; i < k.sums.parts; i++) k.place[i] = (int32_t)call->ints[first + i];
    const int64_t chunks = k.sums.parts * k.sums.chunks_each;
    TL_TRY(tl_launch_blocks(call->cuda, "square_sum_chunks", chunks, TL_DEVICE_THREADS, &k.sums));
    TL_TRY(tl_launch_threads(call->cuda, "square_sum_places", k.sums.parts * TL_DEVICE_WARP, &k));
  }
  return TL_OK;
}

/* --- grad_norm -------------------------------------------------------------------------------- */

/* Slots of each tensor, a power of two; their number in all. */
static tl_status check_counts(const tl_call *call, int64_t *sum) {
  *sum = 0;
  for (int32_t i = 0; i < call->int_count; i++) {
    const int64_t count = call->ints[i];
    TL_TRY(tl_expect_range("grad_norm", "counts", count, 1, 1 << 20));
    if ((count & (count - 1)) != 0) {
      return tl_fail(TL_ARGUMENT, "grad_norm: tensor %d has %lld slots, must be a power of two", i,
                     (long long)count);
    }
    *sum += count;
  }
  return TL_OK;
}

tl_status tl_cuda_grad_norm(const tl_call *call) {
  const char *op = "grad_norm";
  int64_t sum;
  TL_TRY(check_counts(call, &sum));
  TL_TRY(tl_expect(op, "slots", &call->in[0], TL_KIND_F32, sum));
  TL_TRY(tl_expect(op, "count", &call->in[1], TL_KIND_I64, 1));
  TL_TRY(tl_expect(op, "loss", &call->in[2], TL_KIND_F32, 1));
  TL_TRY(tl_expect(op, "norm", &call->out[0], TL_KIND_F32, 1));
  TL_TRY(tl_expect(op, "control", &call->out[1], TL_KIND_F32, 2));
  TL_TRY(tl_expect_range(op, "slots", sum, 0, SCRATCH_FLOATS - TL_NORM_TREES));
  tl_grad_norm_args k = {.slots = call->in[0].data,
                         .count = call->in[1].data,
                         .loss = call->in[2].data,
                         .norm = call->out[0].data,
                         .control = call->out[1].data,
                         .scratch = tl_cuda_scratch(call->cuda),
                         .clip = call->floats[0]};
  int32_t at = 0;
  do {
    const int64_t first = k.slot_first;
    int64_t slots = 0;
    for (k.tensors = 0; k.tensors < TL_NORM_TENSORS_MAX && at + k.tensors < call->int_count;
         k.tensors++) {
      const int64_t count = call->ints[at + k.tensors];
      k.levels[k.tensors] = (uint8_t)__builtin_ctzll((unsigned long long)count);
      slots += count;
    }
    k.is_first = at == 0;
    at += k.tensors;
    k.is_last = at == call->int_count;
    TL_TRY(tl_launch_blocks(call->cuda, "grad_norm_block", 1, TL_NORM_THREADS, &k));
    k.slot_first = first + slots;
  } while (at < call->int_count);
  return TL_OK;
}
