/* soon.cuh - weights of a product that comes soon, fetched into the second-level cache by kernels that
** wait themselves: memory would lie idle meanwhile. */
#ifndef TL_SOON_CUH
#define TL_SOON_CUH

#include "soon_args.h"

// By all threads of the grid, 128 bytes each at a time.
static __device__ __forceinline__ void fetch_soon(const tl_soon_args &s) {
  const int32_t threads = gridDim.x * blockDim.x;
  for (int32_t part = 0; part < s.parts; part++) {
    const char *from = (const char *)s.data[part] + s.first * 128;
    for (int32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < s.rows[part] * s.lines; i += threads)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + (int64_t)(i / s.lines) * s.stride +
                                                    i % s.lines * 128));
  }
}

#endif
