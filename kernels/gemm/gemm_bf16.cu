/* gemm_bf16.cu - the three products of bf16 factors, in all tiles: gemm_bf16.cuh. */
#include "gemm_bf16.cuh"

// The launcher knows tiles, threads and shared memory by these names: gemm_cuda.c.
#define KERNEL(name, blocks, ...)                           \
  extern "C" __global__ void __launch_bounds__(128, blocks) \
      name(const __grid_constant__ tl_gemm_args g) {        \
    Block<__VA_ARGS__>::run(g);                             \
  }
KERNEL(linear_bf16_128, 2, LINEAR, 128, 128, 64, 64, 3)
KERNEL(linear_bf16_64, 3, LINEAR, 64, 64, 32, 32, 4)
KERNEL(linear_bf16_16, 3, LINEAR, 16, 64, 16, 16, 6)
KERNEL(linear_grad_input_bf16_128, 2, GRAD_INPUT, 128, 128, 64, 64, 3)
KERNEL(linear_grad_input_bf16_64, 3, GRAD_INPUT, 64, 64, 32, 32, 4)
KERNEL(linear_grad_input_bf16_16, 3, GRAD_INPUT, 16, 64, 16, 16, 6)
KERNEL(linear_grad_weight_bf16_128, 2, GRAD_WEIGHT, 128, 128, 64, 64, 3)
KERNEL(linear_grad_weight_bf16_64, 3, GRAD_WEIGHT, 64, 64, 32, 32, 4)
