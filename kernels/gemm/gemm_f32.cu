/* gemm_f32.cu - the three products of f32 factors, in all tiles: gemm_f32.cuh. */
#include "gemm_f32.cuh"

// The launcher knows tiles and threads by these names: gemm_cuda.c.
#define KERNEL(name, blocks, ...)                               \
  extern "C" __global__ void __launch_bounds__(THREADS, blocks) \
      name(const __grid_constant__ tl_gemm_args g) {            \
    Block<__VA_ARGS__>::run(g);                                 \
  }
KERNEL(linear_f32_128, 1, LINEAR, 128)
KERNEL(linear_f32_64, 3, LINEAR, 64)
KERNEL(linear_grad_input_f32_128, 1, GRAD_INPUT, 128)
KERNEL(linear_grad_input_f32_64, 3, GRAD_INPUT, 64)
KERNEL(linear_grad_weight_f32_128, 1, GRAD_WEIGHT, 128)
KERNEL(linear_grad_weight_f32_64, 3, GRAD_WEIGHT, 64)
