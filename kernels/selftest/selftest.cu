// selftest.cu - exp2 of a block of inputs, and single tensor-core steps: see selftest.h.
#include "../../runtime/random.h"
#include "../gemm/tile.cuh"
#include "../math.h"
#include "selftest_args.h"

enum { THREADS = 256, INPUTS = 1 << 20 };

// A block of the grid takes a block of inputs.
extern "C" __global__ void __launch_bounds__(THREADS) selftest_exp2(tl_selftest_args a) {
  __shared__ uint64_t sums[THREADS];
  const uint32_t first = uint32_t(a.first + blockIdx.x) * uint32_t(INPUTS);
  uint64_t sum = 0;
  for (uint32_t i = threadIdx.x; i < INPUTS; i += THREADS) {
    const uint32_t x = first + i;
    sum += tl_mix64(uint64_t(x) << 32 | __float_as_uint(tl_exp2(__uint_as_float(x))));
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int step = THREADS / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) a.sums[blockIdx.x] = sums[0];
}

static __device__ uint32_t pair(uint16_t low, uint16_t high) {
  return uint32_t(low) | uint32_t(high) << 16;
}

// A warp takes a tile; fragments as in tile.cuh.
extern "C" __global__ void __launch_bounds__(32) selftest_steps(tl_selftest_args s) {
  const int64_t tile = blockIdx.x;
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  const uint16_t *a = s.a + tile * 256, *b = s.b + tile * 128;
  const float *c = s.c + tile * 128;
  uint32_t left[4], right[2];
  for (int i = 0; i < 4; i++) {
    const uint16_t *at = a + (g + i % 2 * 8) * 16 + i / 2 * 8 + 2 * t;
    left[i] = pair(at[0], at[1]);
  }
  for (int i = 0; i < 2; i++) {
    const uint16_t *at = b + (i * 8 + 2 * t) * 8 + g;
    right[i] = pair(at[0], at[8]);
  }
  float sum[4];
  for (int i = 0; i < 4; i++) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  step(sum, left, right);
  for (int i = 0; i < 4; i++) s.d[tile * 128 + (g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
