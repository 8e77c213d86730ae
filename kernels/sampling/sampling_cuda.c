/* sampling_cuda.c - queues the kernels of sample, a block a row, and of follow. */
#include "../launch_cuda.h"
#include "sampling.h"

_Static_assert(TL_SAMPLE_COLUMNS_MAX <= TL_SAMPLE_BLOCK * TL_SAMPLE_BLOCKS_MAX, "a row's blocks");

tl_status tl_sample_args_of(const tl_call *call, tl_sample_args *out) {
  const tl_view *z = &call->in[0];
  const int64_t rows = z->shape[0], columns = (call->ints[0] + 3) / 4 * 4;
  const int64_t bytes = columns * TL_SAMPLE_COLUMN_BYTES, most = TL_CUDA_SCRATCH_BYTES / bytes;
  TL_TRY(tl_expect_range("sample", "rows", rows, 0, INT32_MAX));
  TL_TRY(tl_expect_range("sample", "width of a row", z->shape[1], 1, INT32_MAX));
  *out = (tl_sample_args){.z = z->data,
                          .next = call->in[1].data,
                          .controls = call->in[2].data,
                          .draws = call->in[3].data,
                          .ids = call->out[0].data,
                          .scratch = tl_cuda_scratch(call->cuda),
                          .scratch_bytes = bytes,
                          .rows = (int32_t)rows,
                          .width = (int32_t)z->shape[1],
                          .columns = (int32_t)call->ints[0],
                          .places = (int32_t)(rows < most ? rows : most)};
  return TL_OK;
}

tl_status tl_cuda_sample(const tl_call *call) {
  tl_sample_args k;
  TL_TRY(tl_sample_check(call));
  TL_TRY(tl_sample_args_of(call, &k));
  return tl_launch(call->cuda, "sample_rows", k.rows, TL_SAMPLE_THREADS, 1, &k);
}

tl_status tl_follow_args_of(const tl_call *call, tl_follow_args *out) {
  TL_TRY(tl_follow_check(call));
  const int64_t rows = tl_view_count(&call->in[0]), made = tl_view_count(&call->in[1]);
  TL_TRY(tl_expect_range("follow", "rows", rows, 0, INT32_MAX));
  TL_TRY(tl_expect_range("follow", "rows made", made, 0, INT32_MAX));
  *out = (tl_follow_args){.fed = call->in[0].data,
                          .made = call->in[1].data,
                          .ids = call->out[0].data,
                          .rows = (int32_t)rows,
                          .made_rows = (int32_t)made};
  return TL_OK;
}

tl_status tl_cuda_follow(const tl_call *call) {
  tl_follow_args k;
  TL_TRY(tl_follow_args_of(call, &k));
  return tl_overlap_threads(call->cuda, "follow_rows", k.rows, &k);
}
