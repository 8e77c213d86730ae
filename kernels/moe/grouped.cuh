/* grouped.cuh - the products of gemm_f32.cuh and gemm_bf16.cuh for the rows of each expert.
**
** Blocks stride over the tiles of all experts together. How many rows an expert has is data, so
** each block walks through the offsets and finds its tiles by itself:
**
**   tiles   | expert 0: rows x columns | expert 2 | expert 3 ...     expert 1 has no rows
**   block b   b, b + blocks, b + 2 blocks ...
**
** The product of an expert is a dense one whose description stands in shared memory.
*/
#ifndef TL_GROUPED_CUH
#define TL_GROUPED_CUH

#include "grouped_args.h"

__device__ __forceinline__ const void *moved(const void *data, int64_t numbers, int bytes) {
  return (const char *)data + numbers * bytes;
}

// All threads: the description of one expert's product. `bytes` of a factor's number.
template <Product P>
__device__ __forceinline__ void describe(const tl_grouped_args &k, int expert, int bytes,
                                         tl_gemm_args &g) {
  __syncthreads();  // the last tile is done with it
  if (threadIdx.x == 0) {
    const tl_gemm_args &all = k.product;
    const int out_bytes = all.out_is_bf16 ? 2 : 4;
    g.runs = all.runs, g.span = all.span, g.piece_stride = 0;
    g.leaves_log = all.leaves_log, g.stack = all.stack;
    g.columns = all.columns, g.column_tiles = all.column_tiles, g.start = all.start;
    g.bias = nullptr, g.bias_is_bf16 = 0, g.out_is_bf16 = all.out_is_bf16, g.pairs = all.pairs;
    const int kinds = P == GRAD_INPUT ? all.runs : 1;
    const int64_t first = P == SEGMENTS ? 0 : k.offsets[expert];
    for (int i = 0; i < kinds; i++) {
      g.run[i] = all.run[i];
      if (P == SEGMENTS) continue;
      g.run[i].a = moved(all.run[i].a, first * all.run[i].a_stride, bytes);
      g.run[i].b = moved(all.run[i].b, expert * k.stack[i], bytes);
    }
    g.rows = P == SEGMENTS ? all.rows : k.offsets[expert + 1] - first;
    g.row_tiles = all.row_tiles;
    g.segments = P == SEGMENTS ? k.offsets + expert * k.each + k.first : nullptr;
    g.out =
        (char *)all.out + (P == SEGMENTS ? expert * k.stack[0] : first * all.columns) * out_bytes;
  }
  __syncthreads();
}

// size: rows and columns of a tile; compute(g, tile) does one. bytes: of a factor's number.
template <Product P, int size, int bytes, class Compute>
__device__ __forceinline__ void each_tile(const tl_grouped_args &k, tl_gemm_args &g,
                                          Compute compute) {
  int64_t first = 0, next = blockIdx.x;
#pragma unroll 1
  for (int expert = 0; expert < k.experts; expert++) {
    const int64_t rows = P == SEGMENTS ? k.product.rows : k.offsets[expert + 1] - k.offsets[expert];
    const int64_t row_tiles = (rows + size - 1) / size, tiles = row_tiles * k.product.column_tiles;
    if (next < first + tiles) {
      describe<P>(k, expert, bytes, g);
      if (threadIdx.x == 0) g.row_tiles = row_tiles;
      __syncthreads();
    }
#pragma unroll 1
    for (; next < first + tiles; next += gridDim.x) compute(find_tile(g, next - first, size, size));
    first += tiles;
  }
}

#endif
