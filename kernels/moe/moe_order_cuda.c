/* moe_order_cuda.c - queues the kernels that count, sort and cut into segments. */
#include "../launch_cuda.h"
#include "moe_args.h"
#include "moe_check.h"

enum { CHUNK = 512 /* slots that one warp sorts, if their table has room */ };

tl_status tl_cuda_expert_counts(const tl_call *call) {
  const tl_view *expert = &call->in[0], *counts = &call->out[0];
  TL_TRY(tl_expert_counts_check(call));
  const int64_t samples = call->ints[0], pieces = call->ints[1], block = call->ints[2];
  const int64_t tokens = expert->shape[0] / samples;
  const int64_t longest = block < tokens + call->ints[3] ? block : tokens + call->ints[3];
  const tl_counts_args k = {
      .expert = expert->data,
      .counts = counts->data,
      .tokens = tokens,
      .samples = samples,
      .pieces = pieces,
      .block = block,
      .token_first = call->ints[3],
      .blocks = (longest + TL_MOE_COUNT_TOKENS - 1) / TL_MOE_COUNT_TOKENS,
      .experts = (int32_t)tl_view_row(counts),
      .slots = (int32_t)tl_view_row(expert),
  };
  TL_TRY(tl_expect_range("expert_counts", "experts", k.experts, 1, TL_MOE_EXPERTS_MAX));
  TL_TRY(tl_launch_threads(call->cuda, "expert_counts_clear", samples * pieces * k.experts, &k));
  return tl_launch_blocks(call->cuda, "expert_counts_add", samples * pieces * k.blocks,
                          TL_DEVICE_THREADS, &k);
}

static tl_status launch_sort(tl_cuda *cuda, const tl_order_args *k) {
  const tl_cuda_grid chunks = {
      .blocks = {(uint32_t)k->chunks},
      .threads = {TL_DEVICE_WARP},
      .shared = (uint32_t)(k->listed * (int64_t)sizeof(int32_t)),
  };
  TL_TRY(tl_cuda_launch(cuda, "expert_order_count", &chunks, k));
  TL_TRY(tl_launch_threads(cuda, "expert_order_scan", (int64_t)k->listed * TL_DEVICE_WARP, k));
  TL_TRY(tl_launch_blocks(cuda, "expert_order_starts", 1, TL_DEVICE_WARP, k));
  return tl_cuda_launch(cuda, "expert_order_scatter", &chunks, k);
}

tl_status tl_cuda_expert_order(const tl_call *call) {
  int32_t place_of[TL_MOE_EXPERTS_MAX];
  int64_t experts;
  TL_TRY(tl_expert_order_check(call, place_of, &experts));
  tl_order_args k = {.expert = call->in[0].data,
                     .place = call->out[0].data,
                     .order = call->out[1].data,
                     .starts = call->out[2].data,
                     .table = tl_cuda_scratch(call->cuda),
                     .count = tl_view_count(&call->in[0]),
                     .chunk = CHUNK,
                     .experts = (int32_t)experts,
                     .listed = call->int_count};
  const int64_t room = TL_CUDA_SCRATCH_BYTES / (int64_t)sizeof(int32_t) / k.listed;
  TL_TRY(tl_expect_range("expert_order", "slots of all tokens", k.count, 1, INT32_MAX));
  while ((k.count + k.chunk - 1) / k.chunk > room) k.chunk *= 2;
  k.chunks = (k.count + k.chunk - 1) / k.chunk;
  for (int64_t e = 0; e < experts; e++) k.place_of[e] = (uint16_t)place_of[e];
  return launch_sort(call->cuda, &k);
}

tl_status tl_cuda_expert_load(const tl_call *call) {
  const tl_view *counts = &call->in[0];
  TL_TRY(tl_expert_load_check(call));
  const tl_load_args k = {.counts = counts->data,
                          .load = call->out[0].data,
                          .rows = counts->shape[0],
                          .experts = (int32_t)tl_view_row(counts),
                          .adds = call->ints[0] == 1};
  return tl_launch_threads(call->cuda, "expert_load_sums", k.experts, &k);
}

tl_status tl_cuda_load_sign(const tl_call *call) {
  TL_TRY(tl_load_sign_check(call));
  const tl_load_args k = {.load = call->in[0].data,
                          .sign = call->out[0].data,
                          .experts = (int32_t)tl_view_count(&call->in[0])};
  return tl_launch_blocks(call->cuda, "load_sign_all", 1, TL_DEVICE_THREADS, &k);
}

tl_status tl_cuda_expert_segments(const tl_call *call) {
  tl_exchange x;
  TL_TRY(tl_expert_segments_check(call, &x));
  TL_TRY(tl_expect_range("expert_segments", "experts of a rank in a wave", x.slots, 1,
                         TL_MOE_EXPERTS_MAX));
  tl_segments_args k = {.counts = x.counts,
                        .offsets = call->out[0].data,
                        .segments = call->out[1].data,
                        .ranks = (int32_t)x.ranks,
                        .share = (int32_t)x.share,
                        .pieces = (int32_t)x.pieces,
                        .experts = (int32_t)x.experts,
                        .slots = (int32_t)x.slots};
  const int64_t *listing = x.listing + (x.wave * x.ranks + call->ints[2]) * x.slots;
  for (int64_t slot = 0; slot < x.slots; slot++) k.expert[slot] = (int16_t)listing[slot];
  return tl_launch_blocks(call->cuda, "expert_segments_all", 1, TL_DEVICE_THREADS, &k);
}
