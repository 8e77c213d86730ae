/* moe_rows_cuda.c - queues the kernels that take, combine and work on rows of experts. */
#include "../launch_cuda.h"
#include "moe_args.h"
#include "moe_check.h"

enum { BLOCKS_EACH = 8 /* of a multiprocessor, striding over the rows that there are */ };

/* Blocks for at most `items` of which a block has `each` at a time. */
static tl_status launch(tl_cuda *cuda, const char *kernel, int64_t items, int64_t each,
                        const void *args) {
  const int64_t most = (int64_t)tl_cuda_device(cuda)->multiprocessors * BLOCKS_EACH;
  const int64_t blocks = (items + each - 1) / each;
  return tl_launch_blocks(cuda, kernel, blocks < most ? blocks : most, TL_DEVICE_THREADS, args);
}

/* The power of two of threads that have a piece each, at most `most`. */
static int32_t lanes_for(int64_t pieces, int32_t most) {
  int32_t lanes = 1;
  while (lanes < most && lanes < pieces) lanes *= 2;
  return lanes;
}

tl_status tl_cuda_take_rows(const tl_call *call) {
  const tl_view *x = &call->in[0], *rows = &call->out[0];
  TL_TRY(tl_take_rows_check(call));
  const int64_t bytes = tl_view_row(x) * tl_dtype_bytes(x->dtype);
  const uint64_t all =
      (uint64_t)(uintptr_t)x->data | (uint64_t)(uintptr_t)rows->data | (uint64_t)bytes;
  const int32_t word = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 2;
  const tl_take_args k = {.x = x->data,
                          .rows = rows->data,
                          .order = call->in[1].data,
                          .starts = call->in[2].data,
                          .room = rows->shape[0],
                          .words = bytes / word,
                          .per = (int32_t)call->ints[0],
                          .first = (int32_t)call->ints[1],
                          .last = (int32_t)call->ints[2],
                          .word = word,
                          .lanes = lanes_for(bytes / word, TL_DEVICE_WARP)};
  const char *kernel = word == 16 ? "take_rows_16" : word == 4 ? "take_rows_4" : "take_rows_2";
  return launch(call->cuda, kernel, k.room, TL_DEVICE_THREADS / k.lanes, &k);
}

static tl_array array_or_none(const tl_view *view) {
  return view->data == NULL ? (tl_array){0} : tl_array_of(view);
}

tl_status tl_cuda_combine(const tl_call *call) {
  const tl_view *y = &call->out[0];
  TL_TRY(tl_combine_check(call));
  const tl_combine_args k = {
      .rows = tl_array_of(&call->in[0]),
      .shared = array_or_none(&call->in[3]),
      .y = tl_array_of(y),
      .place = call->in[1].data,
      .weight = call->in[2].data,
      .tokens = y->shape[0],
      .width = tl_view_row(y),
      .slots = (int32_t)tl_view_row(&call->in[1]),
      .lanes = lanes_for(tl_pieces(tl_view_row(y)), TL_DEVICE_THREADS),
  };
  return launch(call->cuda, "combine_rows", k.tokens, TL_DEVICE_THREADS / k.lanes, &k);
}

static tl_expert_rows_args rows_args(const tl_call *call, int32_t offsets) {
  const tl_view *at = &call->in[offsets];
  return (tl_expert_rows_args){.rows = (const int32_t *)at->data + tl_view_count(at) - 1,
                               .room = call->in[0].shape[0],
                               .width = tl_view_row(&call->in[0])};
}

tl_status tl_cuda_expert_swiglu(const tl_call *call) {
  TL_TRY(tl_expert_rows_check("expert_swiglu", call, 2, 1));
  tl_expert_rows_args k = rows_args(call, 2);
  k.a = tl_array_of(&call->in[0]), k.b = tl_array_of(&call->in[1]);
  k.out = tl_array_of(&call->out[0]);
  return launch(call->cuda, "expert_swiglu_rows", tl_pieces(k.room * k.width), TL_DEVICE_THREADS,
                &k);
}

tl_status tl_cuda_expert_swiglu_grad(const tl_call *call) {
  TL_TRY(tl_expert_rows_check("expert_swiglu_grad", call, 3, 2));
  tl_expert_rows_args k = rows_args(call, 3);
  k.a = tl_array_of(&call->in[0]), k.b = tl_array_of(&call->in[1]);
  k.c = tl_array_of(&call->in[2]);
  k.out = tl_array_of(&call->out[0]), k.out2 = tl_array_of(&call->out[1]);
  return launch(call->cuda, "expert_swiglu_grad_rows", tl_pieces(k.room * k.width),
                TL_DEVICE_THREADS, &k);
}

tl_status tl_cuda_expert_scale_grad(const tl_call *call) {
  const tl_view *dy = &call->in[0], *offsets = &call->in[3];
  TL_TRY(tl_expert_scale_grad_check(call));
  const tl_scale_grad_args k = {
      .dy = tl_array_of(dy),
      .out = tl_array_of(&call->in[1]),
      .dout = tl_array_of(&call->out[0]),
      .weight = call->in[2].data,
      .dweight = call->out[1].data,
      .rows = (const int32_t *)offsets->data + tl_view_count(offsets) - 1,
      .room = dy->shape[0],
      .width = tl_view_row(dy),
      .lanes = tl_row_lanes(tl_view_row(dy)),
  };
  return launch(call->cuda, "expert_scale_grad_rows", k.room, TL_DEVICE_THREADS / k.lanes, &k);
}
