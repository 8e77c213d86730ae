/* attention_bf16.cuh - tiles of bf16 for attention: rows to shared memory, products, fragments.
**
** A tile is rows of `width` numbers, TL_ATTENTION_PITCH bytes apart. A warp owns 16 rows; products
** are what kernels/gemm/tile.cuh calls a step, lane = 4 g + t:
**
**   along    acc (16 own rows, stream rows)   k = channels      B is read as it lies
**   across   acc (16 own rows, channels)      k = stream rows   B is read transposed
**
**   accumulator i of 8 columns: [0], [1] row g, columns 2t, 2t + 1      [2], [3] row g + 8
*/
#ifndef TL_ATTENTION_BF16_CUH
#define TL_ATTENTION_BF16_CUH

#include "../gemm/tile.cuh"
#include "attention_device.cuh"

// 8 numbers from `from`, of which the first `count` are read and the others are zero.
GPU void gather(uint32_t to, const uint16_t *from, int count) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint32_t low = 2 * i < count ? from[2 * i] : 0;
    words[i] = low | (2 * i + 1 < count ? uint32_t(from[2 * i + 1]) << 16 : 0);
  }
  store_shared(to, words);
}

// `rows` rows of a tile: the first `count` from row `row` of head `head` on, the others zero. A
// copy of an aligned matrix is on its way afterwards.
template <int width, int rows, int threads>
GPU void load_rows(const tl_attention_matrix &m, int64_t row, int head, int count, uint32_t to) {
  constexpr int pieces = width / 8, all = rows * pieces;
  const uint16_t *from = row_of<uint16_t>(m, row, head);
#pragma unroll 4
  for (int i = threadIdx.x; i < all; i += threads) {
    const int r = i / pieces, c = i % pieces * 8;
    const uint32_t place = to + r * TL_ATTENTION_PITCH(width) + c * 2;
    const int left = r < count ? m.width - c : 0;
    const uint16_t *piece = left > 0 ? from + r * m.stride + c : from;
    if (m.aligned)
      copy_async(place, piece, left > 0 ? 16 : 0);
    else
      gather(place, piece, left);
  }
}

// Where a lane reads: A at rows `row` .. of a tile, B along and across.
template <int width>
GPU uint32_t place_a(uint32_t tile, int row) {
  const int lane = threadIdx.x % 32;
  return tile + (row + lane % 16) * TL_ATTENTION_PITCH(width) + lane / 16 * 16;
}
template <int width>
GPU uint32_t place_along(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + (lane / 16 * 8 + lane % 8) * TL_ATTENTION_PITCH(width) + lane / 8 % 2 * 16;
}
template <int width>
GPU uint32_t place_across(uint32_t tile) {
  return place_a<width>(tile, 0);
}

// acc = chain over all channels of the 16 rows at `a` with `columns` rows at `b`.
template <int width, int columns>
GPU void multiply_along(uint32_t a, uint32_t b, float (&acc)[columns / 8][4]) {
#pragma unroll
  for (int i = 0; i < columns / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[i][e] = 0.0f;
#pragma unroll
  for (int k = 0; k < width / 16; k++) {
    uint32_t x[4];
    load_matrices(a + k * 32, x);
#pragma unroll
    for (int i = 0; i < columns / 16; i++) {
      uint32_t y[4];
      load_matrices(b + i * 16 * TL_ATTENTION_PITCH(width) + k * 32, y);
      step(acc[2 * i], x, y);
      step(acc[2 * i + 1], x, y + 2);
    }
  }
}

// acc resumes with one step over the 16 rows at `b`; `a` holds their weights.
template <int width>
GPU void multiply_across(const uint32_t (&a)[4], uint32_t b, float (&acc)[width / 8][4]) {
#pragma unroll
  for (int i = 0; i < width / 16; i++) {
    uint32_t y[4];
    load_matrices_across(b + i * 32, y);
    step(acc[2 * i], a, y);
    step(acc[2 * i + 1], a, y + 2);
  }
}

// The weights of rows 16 i .. 16 i + 15 of the stream, rounded, as A.
template <int columns>
GPU void round_weights(const float (&w)[columns / 8][4], int i, uint32_t (&a)[4]) {
  a[0] = bf16_pair(w[2 * i][0], w[2 * i][1]);
  a[1] = bf16_pair(w[2 * i][2], w[2 * i][3]);
  a[2] = bf16_pair(w[2 * i + 1][0], w[2 * i + 1][1]);
  a[3] = bf16_pair(w[2 * i + 1][2], w[2 * i + 1][3]);
}

// The rows of a piece that a warp owns: first .. last of the segment, none where last < first.
struct WarpRows {
  int first, last;
};

GPU WarpRows warp_rows(const Piece &p) {
  const int row = threadIdx.x / 32 * 16, first = p.offset + row;
  return {first, row + 16 < p.count ? first + 15 : p.offset + p.count - 1};
}

// Whether some row, and every row, sees some of, and all of, `count` keys from `key` on.
GPU bool some_see(const tl_attention_args &g, const WarpRows &w, int key, int count) {
  return w.first <= w.last && w.last >= key && w.first - g.window + 1 <= key + count - 1;
}
GPU bool all_see(const tl_attention_args &g, const WarpRows &w, int key, int count) {
  return w.first >= key + count - 1 && w.first + 15 - g.window + 1 <= key;
}

template <int width>
GPU void clear(float (&acc)[width / 8][4]) {
#pragma unroll
  for (int i = 0; i < width / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[i][e] = 0.0f;
}

// Rows g, g + 8 of 16 that begin at packed row `row`, of which `count` exist.
template <int width>
GPU void store_rows(const tl_attention_output &out, int64_t row, int head, int count, float factor,
                    const float (&acc)[width / 8][4]) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < width / 8; i++) {
    const int channel = 8 * i + 2 * t;
    if (g < count) store_two(out, row + g, head, channel, factor * acc[i][0], factor * acc[i][1]);
    if (g + 8 < count)
      store_two(out, row + g + 8, head, channel, factor * acc[i][2], factor * acc[i][3]);
  }
}

#endif
