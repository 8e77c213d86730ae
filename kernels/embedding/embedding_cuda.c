/* embedding_cuda.c - queues the kernels of the embedding operators. */
#include "embedding.h"

#include "../launch_cuda.h"

tl_status tl_embedding_args_of(const tl_call *call, tl_embedding_args *out) {
  TL_TRY(tl_embedding_check(call));
  const tl_view *ids = &call->in[0], *table = &call->in[1];
  *out = (tl_embedding_args){.table = tl_array_of(table),
                             .y = tl_array_of(&call->out[0]),
                             .ids = ids->data,
                             .first = call->ints[0],
                             .vocab = table->shape[0],
                             .dim = tl_view_row(table),
                             .tokens = tl_view_count(ids)};
  return TL_OK;
}

tl_status tl_cuda_embedding(const tl_call *call) {
  tl_embedding_args k;
  TL_TRY(tl_embedding_args_of(call, &k));
  return tl_overlap_threads(call->cuda, "embedding_rows", k.tokens * tl_pieces(k.dim), &k);
}

static tl_status launch_grad(tl_cuda *cuda, const tl_embedding_grad_args *k) {
  const int64_t pieces = tl_pieces(k->vocab * k->dim);
  const int64_t clears = k->mode == 0 && pieces > k->vocab ? pieces : k->vocab;
  TL_TRY(tl_launch_threads(cuda, "embedding_grad_clear", clears, k));
  TL_TRY(tl_launch_threads(cuda, "embedding_grad_link", k->count, k));
  const int64_t columns = (k->dim + TL_DEVICE_PARTIALS - 1) / TL_DEVICE_PARTIALS;
  TL_TRY(tl_expect_range("embedding_grad", "columns", k->dim, 0,
                         (int64_t)UINT16_MAX * TL_DEVICE_PARTIALS));
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)k->count, (uint32_t)columns, 1},
        .threads = {TL_DEVICE_THREADS,  1,                 1}
  };
  return tl_cuda_launch(cuda, "embedding_grad_sum", &grid, k);
}

tl_status tl_cuda_embedding_grad(const tl_call *call) {
  TL_TRY(tl_embedding_grad_check(call));
  const tl_view *ids = &call->in[0], *dy = &call->in[1], *table = &call->out[0];
  const int64_t dim = tl_view_row(table), vocab = table->shape[0];
  const int64_t first = call->ints[1], count = call->ints[2] * call->ints[3];
  const int64_t mode = call->ints[4];
  TL_TRY(tl_expect_range("embedding_grad", "ids and rows", vocab + count, 0,
                         TL_CUDA_SCRATCH_BYTES / (int64_t)sizeof(int32_t)));
  int32_t *head = tl_cuda_scratch(call->cuda);
  const tl_embedding_grad_args k = {.dy = tl_array_of(dy),
                                    .table = tl_array_of(table),
                                    .ids = ids->data,
                                    .head = head,
                                    .next = head + vocab,
                                    .first_id = call->ints[0],
                                    .vocab = vocab,
                                    .dim = dim,
                                    .first = first,
                                    .count = count,
                                    .mode = (int32_t)mode};
  return launch_grad(call->cuda, &k);
}

tl_status tl_cuda_position_ids(const tl_call *call) {
  TL_TRY(tl_position_ids_check(call));
  const tl_view *cu = &call->in[0], *ids = &call->out[0];
  const int64_t rows = tl_view_count(ids), entries = tl_view_count(cu);
  const tl_position_ids_args k = {
      .cu = cu->data, .ids = ids->data, .entries = entries, .rows = rows};
  return tl_launch_threads(call->cuda, "position_ids_rows", rows, &k);
}

tl_status tl_cuda_pick_rows(const tl_call *call) {
  TL_TRY(tl_pick_rows_check(call));
  const tl_view *x = &call->in[0];
  const tl_pick_rows_args k = {.x = tl_array_of(x),
                               .y = tl_array_of(&call->out[0]),
                               .rows = call->in[1].data,
                               .all = x->shape[0],
                               .dim = tl_view_row(x),
                               .count = tl_view_count(&call->in[1])};
  return tl_overlap_threads(call->cuda, "pick_rows", k.count * tl_pieces(k.dim), &k);
}
