/* gemm_hopper.cu - linear on sm_90a: gemm_hopper.cuh. Leaves, columns, blocks of a cluster, slots,
** numbers of waiting leaves in registers, bytes of a warpgroup's buffer. */
#include "gemm_hopper.cuh"

KERNEL(linear_hopper_256, LINEAR, 1, 256, 2, 3, 0, 32768)
KERNEL(linear_hopper_256_2, LINEAR, 2, 256, 2, 3, 48, 40960)
KERNEL(linear_hopper_128, LINEAR, 1, 128, 2, 5, 0, 16384)
KERNEL(linear_hopper_128_4, LINEAR, 4, 128, 2, 5, 128, 16384)
KERNEL(linear_hopper_128_8, LINEAR, 8, 128, 2, 5, 128, 32768)
