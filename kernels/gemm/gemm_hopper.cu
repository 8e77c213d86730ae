/* gemm_hopper.cu - linear on sm_90a, all variants of gemm_hopper.def with large tiles. */
#include "gemm_hopper.cuh"

#define LARGE(leaves, columns, slots, kept, room, cost, dx, dw) \
  KERNEL(linear_hopper_##columns##_##leaves, LINEAR, leaves, columns, 2, slots, kept, room)
#define FEW(...)
#define SPLIT(...)
#include "gemm_hopper.def"
