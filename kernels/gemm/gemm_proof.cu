/* gemm_proof.cu - the numbers of a trial, made and compared where they are: gemm_proof_args.h.
** Speed is no aim but that a trial of gigabytes does not pass through the host. */
#include "gemm_proof_args.h"

#define FOR_ALL(i, count)                                                       \
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < (count); \
       i += int64_t(gridDim.x) * blockDim.x)

extern "C" __global__ void proof_factor(const __grid_constant__ tl_proof_factor f) {
  FOR_ALL(at, f.count * f.depth) {
    const uint32_t bits = tl_proof_factor_at(&f, at);
    if (f.bf16)
      ((uint16_t *)f.out)[at] = uint16_t(bits >> 16);
    else
      ((uint32_t *)f.out)[at] = bits;
  }
}

extern "C" __global__ void proof_output(const __grid_constant__ tl_proof_output o) {
  FOR_ALL(at, o.count) o.out[at] = tl_proof_output_at(at);
}

extern "C" __global__ void proof_compare(const __grid_constant__ tl_proof_outputs o) {
  FOR_ALL(at, o.count) {
    const uint32_t x = o.bf16 ? ((const uint16_t *)o.one)[at] : ((const uint32_t *)o.one)[at];
    const uint32_t y = o.bf16 ? ((const uint16_t *)o.other)[at] : ((const uint32_t *)o.other)[at];
    if (!tl_proof_same(o.bf16, x, y)) *o.differ = 1;
  }
}
