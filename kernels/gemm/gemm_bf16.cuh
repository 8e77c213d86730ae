/* gemm_bf16.cuh - the three products of bf16 factors: gemm.h says what, gemm_args.h how it comes.
**
** A block owns a tile of outputs and walks all positions of k of all leaves, 64 at a time, through
** a ring of slots in shared memory; copies run ahead of the products.
**
**   slot     A, then B
**   along    [row][64 k]       rows of 128 bytes     k runs along the rows of the factor
**   across   [64 k][column]    rows of 2 width bytes
**
** The 16-byte piece c of row r stands at c ^ (r % 8), so that the 8 rows of an 8 x 8 matrix lie in
** different banks. Positions with nothing in them are zeros in both factors: such a step, or part
** of one, changes no bit of a sum. A leaf without positions has no step at all.
*/
#ifndef TL_GEMM_BF16_CUH
#define TL_GEMM_BF16_CUH

#include "gemm_device.cuh"
#include "tile.cuh"

enum { DEPTH = 64 };  // positions of k in a slot

// ---- from global memory to a slot ----

// One factor: rows (columns) first .. of `limit`.
struct Factor {
  int64_t first, limit;
};

template <Product P, bool is_a>
__device__ __forceinline__ const uint16_t *data_of(const tl_gemm_stretch &s) {
  return (const uint16_t *)(is_a ? s.a : s.b);
}

// 8 numbers, of which each may be absent.
template <class Get>
__device__ __forceinline__ void gather(uint32_t to, Get get) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) words[i] = get(2 * i) | uint32_t(get(2 * i + 1)) << 16;
  store_shared(to, words);
}

__device__ __forceinline__ int bytes_within(int64_t numbers) {
  return numbers >= 8 ? 16 : numbers > 0 ? int(numbers) * 2 : 0;
}

template <Product P, bool is_a, int width, int threads>
__device__ __forceinline__ void load_along(const tl_gemm_args &g, const Place &at, Factor f,
                                           uint32_t to) {
  const int piece = threadIdx.x % 8, row = threadIdx.x / 8;
  constexpr int rows = threads / 8;  // at a time; a multiple of 8
  static_assert(rows % 8 == 0 && width % rows == 0, "whole rounds");
  const Share share = share_of<P>(g, at.leaf, at.run);
  const tl_gemm_stretch &s = stretch_of<P>(g, at.run);
  const int64_t stride = is_a ? s.a_stride : s.b_stride, k = share.first + at.offset;
  to += row * 128 + ((piece ^ row % 8) << 4);
  if ((is_a ? s.a_aligned : s.b_aligned) && k % 8 == 0 && at.offset + DEPTH <= share.count) {
    const uint16_t *from = data_of<P, is_a>(s) + (f.first + row) * stride + k + piece * 8;
#pragma unroll
    for (int i = 0; i < width / rows; i++)
      copy_async(to + i * rows * 128, from + i * rows * stride,
                 f.first + row + i * rows < f.limit ? 16 : 0);
    return;
  }
#pragma unroll 1
  for (int i = row; i < width; i += rows, to += rows * 128) {
    Place p;
    const bool inside = look_ahead<P>(g, at, piece * 8, p) && f.first + i < f.limit;
    const Share own = share_of<P>(g, p.leaf, inside ? p.run : 0);
    const tl_gemm_stretch &t = stretch_of<P>(g, inside ? p.run : 0);
    const int64_t t_stride = is_a ? t.a_stride : t.b_stride, t_k = own.first + p.offset;
    const bool aligned = (is_a ? t.a_aligned : t.b_aligned) && t_k % 8 == 0;
    if (inside && aligned && (p.offset + 8 <= own.count || p.run + 1 == g.runs)) {
      copy_async(to, data_of<P, is_a>(t) + (f.first + i) * t_stride + t_k,
                 bytes_within(own.count - p.offset));
      continue;
    }
    gather(to, [&](int e) -> uint32_t {
      Place q;
      if (f.first + i >= f.limit || !look_ahead<P>(g, at, piece * 8 + e, q)) return 0;
      const tl_gemm_stretch &u = stretch_of<P>(g, q.run);
      return data_of<P, is_a>(u)[(f.first + i) * (is_a ? u.a_stride : u.b_stride) +
                                 share_of<P>(g, q.leaf, q.run).first + q.offset];
    });
  }
}

template <Product P, bool is_a, int width, int threads>
__device__ __forceinline__ void load_across(const tl_gemm_args &g, const Place &at, Factor f,
                                            uint32_t to) {
  constexpr int pieces = width / 8, rows = threads / pieces;
  static_assert(pieces % 8 == 0 && rows % 8 == 0 && DEPTH % rows == 0, "whole rounds");
  const int piece = threadIdx.x % pieces, row = threadIdx.x / pieces;
  const int64_t column = f.first + piece * 8;
  const int bytes = bytes_within(f.limit - column);
  const Share share = share_of<P>(g, at.leaf, at.run);
  const tl_gemm_stretch &s = stretch_of<P>(g, at.run);
  to += row * width * 2 + ((piece ^ row % 8) << 4);
  if ((is_a ? s.a_aligned : s.b_aligned) && at.offset + DEPTH <= share.count) {
    const int64_t stride = is_a ? s.a_stride : s.b_stride;
    const uint16_t *from = data_of<P, is_a>(s) + (share.first + at.offset + row) * stride + column;
#pragma unroll
    for (int i = 0; i < DEPTH / rows; i++)
      copy_async(to + i * rows * width * 2, from + i * rows * stride, bytes);
    return;
  }
#pragma unroll 1
  for (int i = row; i < DEPTH; i += rows, to += rows * width * 2) {
    Place p;
    const bool inside = look_ahead<P>(g, at, i, p);
    const tl_gemm_stretch &t = stretch_of<P>(g, inside ? p.run : 0);
    const int64_t stride = is_a ? t.a_stride : t.b_stride;
    const uint16_t *from =
        data_of<P, is_a>(t) +
        (inside ? (share_of<P>(g, p.leaf, p.run).first + p.offset) * stride + column : 0);
    if (is_a ? t.a_aligned : t.b_aligned)
      copy_async(to, from, inside ? bytes : 0);
    else
      gather(to, [&](int e) -> uint32_t { return inside && 2 * e < bytes ? from[e] : 0; });
  }
}

template <Product P, bool is_a, int width, int threads>
__device__ __forceinline__ void load_factor(const tl_gemm_args &g, const Place &at, Factor f,
                                            uint32_t to) {
  if constexpr (is_a ? a_is_along<P> : b_is_along<P>)
    load_along<P, is_a, width, threads>(g, at, f, to);
  else
    load_across<P, is_a, width, threads>(g, at, f, to);
}

// ---- from a slot to fragments ----

// Rows row .. row + 15 of A, k = 16 step .. of the slot.
template <bool along, int width>
__device__ __forceinline__ void load_a(uint32_t slot, int row, int step, uint32_t *a) {
  const int lane = threadIdx.x % 32;
  if constexpr (along) {
    const int r = row + lane % 16, piece = step * 2 + lane / 16;
    load_matrices(slot + r * 128 + ((piece ^ r % 8) << 4), a);
  } else {
    const int k = step * 16 + lane % 8 + lane / 16 * 8, piece = row / 8 + lane / 8 % 2;
    load_matrices_across(slot + k * width * 2 + ((piece ^ k % 8) << 4), a);
  }
}

// Columns column .. column + 15 of B: two fragments.
template <bool along, int width>
__device__ __forceinline__ void load_b(uint32_t slot, int column, int step, uint32_t *b) {
  const int lane = threadIdx.x % 32;
  if constexpr (along) {
    const int r = column + lane % 8 + lane / 16 * 8, piece = step * 2 + lane / 8 % 2;
    load_matrices(slot + r * 128 + ((piece ^ r % 8) << 4), b);
  } else {
    const int k = step * 16 + lane % 16, piece = column / 8 + lane / 16;
    load_matrices_across(slot + k * width * 2 + ((piece ^ k % 8) << 4), b);
  }
}

// ---- a block ----

// rows x columns outputs a block, warp_rows x warp_columns a warp.
template <Product P, int rows, int columns, int warp_rows, int warp_columns, int slots>
struct Block {
  static constexpr int threads = rows / warp_rows * (columns / warp_columns) * 32;
  static constexpr int m = warp_rows / 16, n = warp_columns / 8;
  static constexpr int a_bytes = rows * DEPTH * 2, slot_bytes = a_bytes + columns * DEPTH * 2;

  // The warp's part of a slot: 4 steps.
  static __device__ __forceinline__ void multiply(uint32_t slot, int row, int column,
                                                  float (*sum)[n][4]) {
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      uint32_t a[m][4], b[n / 2][4];
#pragma unroll
      for (int i = 0; i < m; i++) load_a<a_is_along<P>, rows>(slot, row + i * 16, k, a[i]);
#pragma unroll
      for (int j = 0; j < n / 2; j++)
        load_b<b_is_along<P>, columns>(slot + a_bytes, column + j * 16, k, b[j]);
#pragma unroll
      for (int i = 0; i < m; i++)
#pragma unroll
        for (int j = 0; j < n; j++) step(sum[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
  }

  static __device__ __forceinline__ void start(const tl_gemm_args &g, int64_t row, int64_t column,
                                               float (*sum)[n][4]) {
#pragma unroll
    for (int i = 0; i < m; i++)
#pragma unroll
      for (int j = 0; j < n; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          sum[i][j][e] = start_of(g, row + i * 16 + e / 2 * 8, column + j * 8 + e % 2);
  }

  static __device__ __forceinline__ void store(const tl_gemm_args &g, int64_t row, int64_t column,
                                               float (*sum)[n][4]) {
#pragma unroll
    for (int i = 0; i < m; i++)
#pragma unroll
      for (int j = 0; j < n; j++)
#pragma unroll
        for (int e = 0; e < 4; e += 2)
          store_two(g, row + i * 16 + e / 2 * 8, column + j * 8, sum[i][j][e], sum[i][j][e + 1]);
  }

  static __device__ __forceinline__ void load(const tl_gemm_args &g, Place &at, const Tile &tile,
                                              uint32_t slot) {
    if (at.left > 0) {
      load_factor<P, true, rows, threads>(g, at, {tile.row, g.rows}, slot);
      load_factor<P, false, columns, threads>(g, at, {tile.column, g.columns}, slot + a_bytes);
      advance<P>(g, at, DEPTH);
    }
    copy_commit();
  }

  static __device__ __forceinline__ void compute(const tl_gemm_args &g, const Tile &tile,
                                                 uint32_t ring) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / (columns / warp_columns) * warp_rows;
    const int column = warp % (columns / warp_columns) * warp_columns;
    const int64_t out_row = tile.row + row + lane / 4;
    const int64_t out_column = tile.column + column + lane % 4 * 2;
    const int leaves = 1 << g.leaves_log;
    float sum[m][n][4];
    Place ahead = begin_leaf<P>(g, 0);
    for (int i = 0; i < slots - 1; i++) load(g, ahead, tile, ring + i * slot_bytes);
    int slot = 0;
#pragma unroll 1
    for (int leaf = 0; leaf < leaves; leaf++) {
      start(g, out_row, out_column, sum);
#pragma unroll 1
      for (int64_t left = positions_of<P>(g, leaf); left > 0; left -= DEPTH) {
        copy_wait<slots - 2>();
        __syncthreads();  // this slot is complete, and the one before it has been read
        load(g, ahead, tile, ring + (slot == 0 ? slots - 1 : slot - 1) * slot_bytes);
        multiply(ring + slot * slot_bytes, row, column, sum);
        slot = slot == slots - 1 ? 0 : slot + 1;
      }
      if (leaves > 1) fold<m * n * 4, threads>(g, leaf, &sum[0][0][0]);
    }
    store(g, out_row, out_column, sum);
    __syncthreads();  // the next tile may write all slots
  }

  static __device__ __forceinline__ void run(const tl_gemm_args &g) {
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t ring = shared_address(shared);
    const int64_t tiles = g.row_tiles * g.column_tiles;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x)
      compute(g, find_tile(g, i, rows, columns), ring);
  }
};

#endif
