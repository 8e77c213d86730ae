/* heads_cuda.c - queues the kernels on heads. */
#include "../launch_cuda.h"
#include "heads.h"
#include "heads_args.h"

static tl_status copy(tl_cuda *cuda, const tl_heads_piece *p) {
  const tl_heads_copy_args a = {.from = tl_array_of(p->from),
                                .to = tl_array_of(p->to),
                                .rows = p->rows,
                                .heads = p->heads,
                                .from_heads = p->from_heads,
                                .from_channels = p->from_channels,
                                .from_first = p->from_first,
                                .to_channels = p->to_channels,
                                .to_first = p->to_first,
                                .width = p->width};
  return tl_launch_threads(cuda, "heads_copy", p->rows * p->heads * tl_pieces(p->width), &a);
}

tl_status tl_cuda_split_heads(const tl_call *call) {
  TL_TRY(tl_split_heads_check(call));
  for (int32_t i = 0; i < call->out_count; i++) {
    const tl_heads_piece piece = tl_split_heads_piece(call, i);
    TL_TRY(copy(call->cuda, &piece));
  }
  return TL_OK;
}

tl_status tl_cuda_join_heads(const tl_call *call) {
  TL_TRY(tl_join_heads_check(call));
  for (int32_t i = 0; i < call->in_count; i++) {
    const tl_heads_piece piece = tl_join_heads_piece(call, i);
    TL_TRY(copy(call->cuda, &piece));
  }
  return TL_OK;
}

tl_status tl_cuda_sum_heads(const tl_call *call) {
  const tl_view *x = &call->in[0], *y = &call->out[0];
  TL_TRY(tl_sum_heads_check(call));
  const tl_heads_sum_args a = {.x = tl_array_of(x),
                               .y = tl_array_of(y),
                               .rows = x->shape[0],
                               .heads = x->shape[1],
                               .channels = x->shape[2],
                               .first = call->ints[0],
                               .width = tl_view_row(y),
                               .run = x->shape[1] / call->ints[1]};
  return tl_launch_threads(call->cuda, "heads_sum", a.rows * a.width, &a);
}
