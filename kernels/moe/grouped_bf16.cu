/* grouped_bf16.cu - grouped.cuh with bf16 factors, where grouped_hopper.cuh does not fit. */
#include "../gemm/gemm_bf16.cuh"
#include "grouped.cuh"

template <Product P>
__device__ __forceinline__ void run(const tl_grouped_args &k) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ tl_gemm_args g;
  const uint32_t ring = shared_address(shared);
  each_tile<P, 64, 2>(
      k, g, [&](const Tile &tile) { Block<P, 64, 64, 32, 32, 4>::compute(g, tile, ring); });
}

// The launcher knows tiles, threads and shared memory by these names: grouped_cuda.c.
#define KERNEL(name, product)                           \
  extern "C" __global__ void __launch_bounds__(128, 3)  \
      name(const __grid_constant__ tl_grouped_args k) { \
    run<product>(k);                                    \
  }
KERNEL(grouped_linear_bf16, LINEAR)
KERNEL(grouped_grad_input_bf16, GRAD_INPUT)
KERNEL(grouped_grad_weight_bf16, SEGMENTS)
