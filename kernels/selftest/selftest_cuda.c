/* selftest_cuda.c - the self-test on a GPU: copies in, one kernel, copies out. It waits. */
#include "selftest.h"

#include "../launch_cuda.h"
#include "selftest_args.h"

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status copy_in(tl_cuda *cuda, const void *from, int64_t bytes, void **out) {
  TL_TRY(tl_cuda_alloc(cuda, bytes, out));
  return tl_cuda_check(
      tl_cuda_calls(cuda),
      tl_cuda_calls(cuda)->copy_in(address(*out), from, (size_t)bytes, tl_cuda_stream(cuda)),
      "copy in");
}

static tl_status copy_out(tl_cuda *cuda, const void *from, int64_t bytes, void *to) {
  const tl_cuda_api *api = tl_cuda_calls(cuda);
  TL_TRY(tl_cuda_check(api, api->copy_out(to, address(from), (size_t)bytes, tl_cuda_stream(cuda)),
                       "copy out"));
  return tl_cuda_check(api, api->stream_wait(tl_cuda_stream(cuda)), "waiting for the GPU");
}

tl_status tl_selftest_exp2_cuda(tl_cuda *cuda, int32_t first, int32_t count, uint64_t *sums) {
  const int64_t bytes = (int64_t)count * (int64_t)sizeof *sums;
  tl_status status = TL_OK;
  void *device = NULL;
  TL_TRY(tl_cuda_enter(cuda));
  TL_TRY(tl_cuda_alloc(cuda, bytes, &device));
  const tl_selftest_args a = {.sums = device, .first = first};
  TL_TRY_GOTO(status, tl_launch_blocks(cuda, "selftest_exp2", count, TL_DEVICE_THREADS, &a), done);
  TL_TRY_GOTO(status, copy_out(cuda, device, bytes, sums), done);
done:
  tl_cuda_free(cuda, device);
  return status;
}

tl_status tl_selftest_steps_cuda(tl_cuda *cuda, const uint16_t *a, const uint16_t *b,
                                 const float *c, int32_t tiles, float *d) {
  const int64_t outputs = (int64_t)tiles * TL_SELFTEST_TILE;
  tl_status status = TL_OK;
  void *left = NULL, *right = NULL, *start = NULL, *result = NULL;
  TL_TRY(tl_cuda_enter(cuda));
  TL_TRY_GOTO(status, copy_in(cuda, a, outputs * 4, &left), done);
  TL_TRY_GOTO(status, copy_in(cuda, b, outputs * 2, &right), done);
  TL_TRY_GOTO(status, copy_in(cuda, c, outputs * 4, &start), done);
  TL_TRY_GOTO(status, tl_cuda_alloc(cuda, outputs * 4, &result), done);
  const tl_selftest_args s = {.a = left, .b = right, .c = start, .d = result, .tiles = tiles};
  TL_TRY_GOTO(status, tl_launch_blocks(cuda, "selftest_steps", tiles, TL_DEVICE_WARP, &s), done);
  TL_TRY_GOTO(status, copy_out(cuda, result, outputs * 4, d), done);
done:
  tl_cuda_free(cuda, left);
  tl_cuda_free(cuda, right);
  tl_cuda_free(cuda, start);
  tl_cuda_free(cuda, result);
  return status;
}
