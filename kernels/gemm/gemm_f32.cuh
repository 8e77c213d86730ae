/* gemm_f32.cuh - the three products of f32 factors: a chain of fmaf over ascending k.
**
** A block of 256 threads owns a square tile of outputs, a thread a grid of each x each of them. 16
** positions of k at a time pass through shared memory as [k][row] and [k][column]; while a block of
** k is multiplied, the next one is on its way to registers.
**
**              4 columns   4 columns          thread (y, x) of 16 x 16, each = 8:
**     4 rows     ####        ####             rows 4 y .. and 64 + 4 y ..
**     4 rows     ####        ####             columns 4 x .. and 64 + 4 x ..
**
** A chain takes exactly the positions that exist: a product of zeros would turn -0 into +0.
*/
#ifndef TL_GEMM_F32_CUH
#define TL_GEMM_F32_CUH

#include "gemm_device.cuh"

enum { DEPTH = 16, THREADS = 256 };

template <Product P, int size>
struct Block {
  static constexpr int each = size / 16;                 // outputs of a thread, per direction
  static constexpr int copies = size * DEPTH / THREADS;  // numbers of a factor that a thread moves
  static constexpr int stride = size + 4;                // of shared memory
  typedef float Slot[DEPTH][stride];

  // Where copy i of this thread belongs: k and the row (column) of the tile.
  template <bool along>
  static __device__ __forceinline__ int copy_k(int i) {
    return along ? threadIdx.x % DEPTH : threadIdx.x / size + i * (THREADS / size);
  }
  template <bool along>
  static __device__ __forceinline__ int copy_row(int i) {
    return along ? threadIdx.x / DEPTH + i * (THREADS / DEPTH) : threadIdx.x % size;
  }

  template <bool is_a>
  static __device__ __forceinline__ void load(const tl_gemm_args &g, const Place &at, int64_t first,
                                              float *value) {
    constexpr bool along = is_a ? a_is_along<P> : b_is_along<P>;
    const int64_t limit = is_a ? g.rows : g.columns;
    const bool whole = at.offset + DEPTH <= share_of<P>(g, at.leaf, at.run).count;
#pragma unroll
    for (int i = 0; i < copies; i++) {
      const int64_t row = first + copy_row<along>(i);
      Place p = at;
      bool inside = row < limit;
      if (whole)
        p.offset += copy_k<along>(i);
      else
        inside = look_ahead<P>(g, at, copy_k<along>(i), p) && inside;
      value[i] = 0.0f;
      if (!inside) continue;
      const tl_gemm_stretch &s = stretch_of<P>(g, p.run);
      const int64_t k = share_of<P>(g, p.leaf, p.run).first + p.offset;
      const int64_t s_stride = is_a ? s.a_stride : s.b_stride;
      value[i] =
          ((const float *)(is_a ? s.a : s.b))[along ? row * s_stride + k : k * s_stride + row];
    }
  }

  template <bool along>
  static __device__ __forceinline__ void put(const float *value, Slot &slot) {
#pragma unroll
    for (int i = 0; i < copies; i++) slot[copy_k<along>(i)][copy_row<along>(i)] = value[i];
  }

  static __device__ __forceinline__ void multiply(const Slot &a, const Slot &b, int k,
                                                  float (*sum)[each]) {
    const int y = threadIdx.x / 16, x = threadIdx.x % 16;
    float u[each], v[each];
#pragma unroll
    for (int i = 0; i < each; i += 4) {
      const float4 p = *(const float4 *)&a[k][4 * y + i * 16];
      const float4 q = *(const float4 *)&b[k][4 * x + i * 16];
      u[i] = p.x, u[i + 1] = p.y, u[i + 2] = p.z, u[i + 3] = p.w;
      v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
    }
#pragma unroll
    for (int i = 0; i < each; i++)
#pragma unroll
      for (int j = 0; j < each; j++) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
  }

  // Output i of a thread in one direction: 4 neighbours, then 64 on.
  static __device__ __forceinline__ int64_t output(int64_t first, int thread, int i) {
    return first + 4 * thread + i % 4 + i / 4 * 64;
  }

  static __device__ __forceinline__ void start(const tl_gemm_args &g, const Tile &tile,
                                               float (*sum)[each]) {
#pragma unroll
    for (int i = 0; i < each; i++)
#pragma unroll
      for (int j = 0; j < each; j++)
        sum[i][j] = start_of(g, output(tile.row, threadIdx.x / 16, i),
                             output(tile.column, threadIdx.x % 16, j));
  }

  static __device__ __forceinline__ void store(const tl_gemm_args &g, const Tile &tile,
                                               float (*sum)[each]) {
#pragma unroll
    for (int i = 0; i < each; i++)
#pragma unroll
      for (int j = 0; j < each; j += 2)
        store_two(g, output(tile.row, threadIdx.x / 16, i),
                  output(tile.column, threadIdx.x % 16, j), sum[i][j], sum[i][j + 1]);
  }

  static __device__ __forceinline__ void compute(const tl_gemm_args &g, const Tile &tile, Slot *a,
                                                 Slot *b) {
    const int leaves = 1 << g.leaves_log;
    float sum[each][each], next_a[copies], next_b[copies];
    Place ahead = begin_leaf<P>(g, 0);
    int slot = 0;
    if (ahead.left > 0) {
      load<true>(g, ahead, tile.row, next_a);
      load<false>(g, ahead, tile.column, next_b);
    }
#pragma unroll 1
    for (int leaf = 0; leaf < leaves; leaf++) {
      start(g, tile, sum);
#pragma unroll 1
      for (int64_t left = positions_of<P>(g, leaf); left > 0; left -= DEPTH, slot ^= 1) {
        put<a_is_along<P>>(next_a, a[slot]);
        put<b_is_along<P>>(next_b, b[slot]);
        __syncthreads();  // also: all have read the other slot
        advance<P>(g, ahead, DEPTH);
        if (ahead.left > 0) {
          load<true>(g, ahead, tile.row, next_a);
          load<false>(g, ahead, tile.column, next_b);
        }
        if (left >= DEPTH) {
#pragma unroll
          for (int k = 0; k < DEPTH; k++) multiply(a[slot], b[slot], k, sum);
        } else {
#pragma unroll 1
          for (int k = 0; k < int(left); k++) multiply(a[slot], b[slot], k, sum);
        }
      }
      if (leaves > 1) fold<each * each, THREADS>(g, leaf, &sum[0][0]);
    }
    store(g, tile, sum);
    __syncthreads();  // the next tile may write both slots
  }

  static __device__ __forceinline__ void run(const tl_gemm_args &g) {
    __shared__ __align__(16) Slot a[2], b[2];
    const int64_t tiles = g.row_tiles * g.column_tiles;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x)
      compute(g, find_tile(g, i, size, size), a, b);
  }
};

#endif
