/* gemm_device.cuh - what kernels of both arithmetics share: tiles, positions, leaves, outputs. */
#ifndef TL_GEMM_DEVICE_CUH
#define TL_GEMM_DEVICE_CUH

#include "gemm_args.h"

// SEGMENTS: GRAD_WEIGHT whose pieces are each as long as g.segments says.
enum Product { LINEAR, GRAD_INPUT, GRAD_WEIGHT, SEGMENTS };
enum Start { START_ZERO, START_RESUME, START_ADD };

template <Product P>
constexpr bool a_is_along = P < GRAD_WEIGHT;
template <Product P>
constexpr bool b_is_along = P == LINEAR;

// ---- tiles: groups of 8 rows of tiles, so that blocks which run together share factors ----

struct Tile {
  int64_t row, column;  // the first of each
};

__device__ __forceinline__ Tile find_tile(const tl_gemm_args &g, int64_t index, int rows,
                                          int columns) {
  const int64_t group = index / (8 * g.column_tiles), rest = index - group * 8 * g.column_tiles;
  const int64_t left = g.row_tiles - group * 8, height = left < 8 ? left : 8;
  const int64_t column = rest / height;
  return {(group * 8 + rest - column * height) * rows, column * columns};
}

// ---- positions of k ----

// A run's share of a leaf: `count` positions from k = `first` of the run on, out of `span`.
struct Share {
  int64_t first, count, span;
};

template <Product P>
__device__ __forceinline__ Share share_of(const tl_gemm_args &g, int leaf, int run) {
  if (P == GRAD_WEIGHT)
    return {(int64_t(leaf) * g.runs + run) * g.piece_stride, g.run[0].count, g.span};
  if (P == SEGMENTS) {
    const int32_t *at = g.segments + leaf * g.runs + run;
    const int64_t first = at[0], length = at[1] - first;
    return {first, length, (length + g.span - 1) / g.span * g.span};
  }
  const int64_t count = g.run[P == LINEAR ? 0 : run].count;
  const int64_t first = count * leaf >> g.leaves_log;
  const int64_t length = (count * (leaf + 1) >> g.leaves_log) - first;
  return {first, length, length};
}

template <Product P>
__device__ __forceinline__ const tl_gemm_stretch &stretch_of(const tl_gemm_args &g, int run) {
  return g.run[P == GRAD_INPUT ? run : 0];
}

template <Product P>
__device__ __forceinline__ int64_t positions_of(const tl_gemm_args &g, int leaf) {
  if (P == GRAD_WEIGHT) return g.runs * g.span;
  if (P == LINEAR) return share_of<P>(g, leaf, 0).count;
  int64_t sum = 0;
  for (int run = 0; run < g.runs; run++) sum += share_of<P>(g, leaf, run).span;
  return sum;
}

// A position: `offset` in the share of `run`, with `left` positions of the leaf from here on; past
// the last leaf, left is 0.
struct Place {
  int leaf, run;
  int64_t offset, left;
};

template <Product P>
__device__ __forceinline__ void skip_empty_runs(const tl_gemm_args &g, Place &at) {
  while (P != LINEAR && at.run < g.runs) {
    const int64_t span = share_of<P>(g, at.leaf, at.run).span;
    if (at.offset < span) break;
    at.offset -= span;
    at.run++;
  }
}

// The first position of `leaf`, or of the next one that has any.
template <Product P>
__device__ __forceinline__ Place begin_leaf(const tl_gemm_args &g, int leaf) {
  const int leaves = 1 << g.leaves_log;
  Place at = {leaf, 0, 0, 0};
  for (; at.leaf < leaves; at.leaf++)
    if ((at.left = positions_of<P>(g, at.leaf)) > 0) break;
  if (at.left > 0) skip_empty_runs<P>(g, at);
  return at;
}

template <Product P>
__device__ __forceinline__ void advance(const tl_gemm_args &g, Place &at, int positions) {
  if (at.left <= positions) {
    at = begin_leaf<P>(g, at.leaf + 1);
    return;
  }
  at.offset += positions;
  at.left -= positions;
  skip_empty_runs<P>(g, at);
}

// The position `ahead` of `at` in the same leaf. False where nothing stands: past the end of the
// leaf, and where a piece is filled up.
template <Product P>
__device__ __forceinline__ bool look_ahead(const tl_gemm_args &g, Place at, int ahead, Place &out) {
  at.offset += ahead;
  at.left -= ahead;
  skip_empty_runs<P>(g, at);
  out = at;
  return at.left > 0 && at.offset < share_of<P>(g, at.leaf, at.run).count;
}

// ---- outputs ----

__device__ __forceinline__ float widened(uint16_t bits) {
  return __uint_as_float(uint32_t(bits) << 16);
}

// tl_bf16_from_f32: nearest even, NaN becomes quiet.
__device__ __forceinline__ uint16_t narrowed(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// What a chain starts from at (row, column).
__device__ __forceinline__ float start_of(const tl_gemm_args &g, int64_t row, int64_t column) {
  if (g.start != START_RESUME || row >= g.rows || column >= g.columns) return 0.0f;
  return ((const float *)g.out)[row * g.columns + column];
}

__device__ __forceinline__ float with_bias(const tl_gemm_args &g, int64_t column, float value) {
  if (g.bias == nullptr) return value;
  return value + (g.bias_is_bf16 ? widened(((const uint16_t *)g.bias)[column])
                                 : ((const float *)g.bias)[column]);
}

__device__ __forceinline__ void store_one(const tl_gemm_args &g, int64_t row, int64_t column,
                                          float value) {
  if (row >= g.rows || column >= g.columns) return;
  const int64_t at = row * g.columns + column;
  value = with_bias(g, column, value);
  if (g.out_is_bf16)
    ((uint16_t *)g.out)[at] = narrowed(value);
  else if (g.start == START_ADD)
    ((float *)g.out)[at] = ((const float *)g.out)[at] + value;
  else
    ((float *)g.out)[at] = value;
}

// Columns `column` (even) and `column` + 1.
__device__ __forceinline__ void store_two(const tl_gemm_args &g, int64_t row, int64_t column,
                                          float first, float second) {
  if (!g.pairs || column + 1 >= g.columns) {
    store_one(g, row, column, first);
    store_one(g, row, column + 1, second);
    return;
  }
  if (row >= g.rows) return;
  const int64_t at = row * g.columns + column;
  first = with_bias(g, column, first);
  second = with_bias(g, column + 1, second);
  if (g.out_is_bf16) {
    *(uint32_t *)((uint16_t *)g.out + at) = uint32_t(narrowed(second)) << 16 | narrowed(first);
    return;
  }
  float2 *to = (float2 *)((float *)g.out + at);
  if (g.start == START_ADD) {
    const float2 old = *to;
    first = old.x + first;
    second = old.y + second;
  }
  *to = make_float2(first, second);
}

// ---- leaves ----

// After leaf `leaf` of a tile: adds the sums that wait for it, like a binary counter, and lets the
// result wait in turn unless it is the root. Each thread keeps its own `count` numbers (a multiple
// of 4) in a block's share of g.stack: [level][count / 4][thread][4].
template <int count, int threads>
__device__ __forceinline__ void fold(const tl_gemm_args &g, int leaf, float *sum) {
  float4 *stack =
      (float4 *)g.stack + threadIdx.x + int64_t(blockIdx.x) * g.leaves_log * (count / 4 * threads);
  int level = 0;
#pragma unroll 1
  for (; leaf >> level & 1; level++, stack += count / 4 * threads)
#pragma unroll
    for (int i = 0; i < count / 4; i++) {
      const float4 other = stack[i * threads];
      sum[4 * i + 0] = other.x + sum[4 * i + 0];
      sum[4 * i + 1] = other.y + sum[4 * i + 1];
      sum[4 * i + 2] = other.z + sum[4 * i + 2];
      sum[4 * i + 3] = other.w + sum[4 * i + 3];
    }
  if (level == g.leaves_log) return;
#pragma unroll
  for (int i = 0; i < count / 4; i++)
    stack[i * threads] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
}

#endif
