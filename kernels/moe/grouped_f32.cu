/* grouped_f32.cu - grouped.cuh with f32 factors. */
#include "../gemm/gemm_f32.cuh"
#include "grouped.cuh"

template <Product P, int size>
__device__ __forceinline__ void run(const tl_grouped_args &k) {
  typedef Block<P, size> B;
  __shared__ __align__(16) typename B::Slot a[2], b[2];
  __shared__ tl_gemm_args g;
  each_tile<P, size, 4>(k, g, [&](const Tile &tile) { B::compute(g, tile, a, b); });
}

// The launcher knows tiles and threads by these names: grouped_cuda.c.
#define KERNEL(name, product)                              \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) \
      name(const __grid_constant__ tl_grouped_args k) {    \
    run<product, 64>(k);                                   \
  }
KERNEL(grouped_linear_f32, LINEAR)
KERNEL(grouped_grad_input_f32, GRAD_INPUT)
KERNEL(grouped_grad_weight_f32, SEGMENTS)

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_fill(const __grid_constant__ tl_grouped_fill_args k) {
  const int64_t left = k.stride - k.used, i = int64_t(blockIdx.x) * THREADS + threadIdx.x;
  if (i < left * k.experts) k.stack[i / left * k.stride + k.used + i % left] = 0.0f;
}
