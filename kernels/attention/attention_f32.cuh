/* attention_f32.cuh - products of f32 rows for attention: chains of fmaf, ascending.
**
** 256 threads own 64 rows; thread 16 y + x works on rows 4 y .. 4 y + 3:
**
**   along    acc[row][i]   stream rows 4 x + 64 (i / 4) + i % 4      chain over channels
**   across   acc[row][i]   channels of channel_of(i)                 chain over stream rows
**
** Scores become weights [stream row][own row] in shared memory, TL_ATTENTION_F32_PITCH floats
** apart; the 16 threads of a y share no row with others. Slices of the operands pass through the
** `stage`: 32 channels of own and stream rows, [channel][row], or 32 stream rows as they lie.
*/
#ifndef TL_ATTENTION_F32_CUH
#define TL_ATTENTION_F32_CUH

#include "attention_device.cuh"

enum {
  ROWS = TL_ATTENTION_F32_ROWS,
  THREADS = TL_ATTENTION_F32_THREADS,
  PITCH = TL_ATTENTION_F32_PITCH,
  SLICE = TL_ATTENTION_F32_SLICE
};

// `count` rows of a head.
struct Rows {
  const float *data;
  int64_t stride;
  int count, width;
  bool aligned;
};

GPU Rows rows_of(const tl_attention_matrix &m, int64_t row, int head, int count) {
  return {row_of<float>(m, row, head), m.stride, count, m.width, m.aligned != 0};
}

// Four channels from `channel` on of a row; zeros where there are none.
GPU float4 load_four(const Rows &m, int row, int channel) {
  float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (row >= m.count || channel >= m.width) return x;
  const float *from = m.data + row * m.stride + channel;
  if (m.aligned) return *(const float4 *)from;
  x.x = from[0];
  if (channel + 1 < m.width) x.y = from[1];
  if (channel + 2 < m.width) x.z = from[2];
  if (channel + 3 < m.width) x.w = from[3];
  return x;
}

// Channels channel .. channel + 31 of `rows` rows, [channel][row].
template <int rows, int pitch>
GPU void stage_channels(const Rows &m, int channel, float *to) {
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * SLICE / 4; i += THREADS) {
    const int row = i % rows, c = i / rows * 4;
    const float4 x = load_four(m, row, channel + c);
    to[(c + 0) * pitch + row] = x.x;
    to[(c + 1) * pitch + row] = x.y;
    to[(c + 2) * pitch + row] = x.z;
    to[(c + 3) * pitch + row] = x.w;
  }
}

template <int columns>
GPU void multiply_along(const Rows &own, const Rows &stream, float *stage,
                        float (&acc)[4][columns / 16]) {
  constexpr int pitch = columns + 4;
  float *other = stage + SLICE * PITCH;
  const int x = threadIdx.x % 16 * 4, y = threadIdx.x / 16 * 4;
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int i = 0; i < columns / 16; i++) acc[r][i] = 0.0f;
#pragma unroll 1
  for (int channel = 0; channel < own.width; channel += SLICE) {
    const int channels = own.width - channel < SLICE ? own.width - channel : SLICE;
    __syncthreads();  // the stage has been read
    stage_channels<ROWS, PITCH>(own, channel, stage);
    stage_channels<columns, pitch>(stream, channel, other);
    __syncthreads();
#pragma unroll 4
    for (int c = 0; c < channels; c++) {
      const float4 a4 = *(const float4 *)(stage + c * PITCH + y);
      const float a[4] = {a4.x, a4.y, a4.z, a4.w};
#pragma unroll
      for (int i = 0; i < columns / 16; i += 4) {
        const float4 b = *(const float4 *)(other + c * pitch + x + i * 16);
#pragma unroll
        for (int r = 0; r < 4; r++) {
          acc[r][i + 0] = fmaf(a[r], b.x, acc[r][i + 0]);
          acc[r][i + 1] = fmaf(a[r], b.y, acc[r][i + 1]);
          acc[r][i + 2] = fmaf(a[r], b.z, acc[r][i + 2]);
          acc[r][i + 3] = fmaf(a[r], b.w, acc[r][i + 3]);
        }
      }
    }
  }
}

// The stream row of accumulator i of a product along.
GPU int column_of(int i) { return threadIdx.x % 16 * 4 + i / 4 * 64 + i % 4; }

// The channel of accumulator i of a product across: neighbours in groups of up to four.
template <int width>
GPU int channel_of(int i) {
  constexpr int group = width >= 64 ? 4 : width / 16;
  return threadIdx.x % 16 * group + i / group * 16 * group + i % group;
}

// acc resumes with row `j` of the stage; rows that do not see it keep their bits.
template <int width, bool border>
GPU void add_row(const float *stage, const float *weights, const Seen (&seen)[4], int j,
                 float (&acc)[4][width / 16]) {
  const float4 w4 = *(const float4 *)weights;
  const float w[4] = {w4.x, w4.y, w4.z, w4.w};
#pragma unroll
  for (int i = 0; i < width / 16; i++) {
    const float b = stage[channel_of<width>(i)];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float sum = fmaf(w[r], b, acc[r][i]);
      if (!border || is_in(seen[r], j)) acc[r][i] = sum;
    }
  }
}

// acc resumes over the rows of the stream, with weights [row][own row].
template <int width>
GPU void multiply_across(const Rows &stream, const float *weights, const Seen (&seen)[4],
                         float *stage, float (&acc)[4][width / 16]) {
  int low = seen[0].low, high = seen[0].high, all_low = low, all_high = high;
#pragma unroll
  for (int r = 1; r < 4; r++) {
    low = seen[r].low < low ? seen[r].low : low;
    high = seen[r].high > high ? seen[r].high : high;
    all_low = seen[r].low > all_low ? seen[r].low : all_low;
    all_high = seen[r].high < all_high ? seen[r].high : all_high;
  }
  weights += threadIdx.x / 16 * 4;
#pragma unroll 1
  for (int first = 0; first < stream.count; first += SLICE) {
    __syncthreads();                     // the stage has been read
#pragma unroll(width > 128 ? 1 : SLICE)  // the widest heads leave few registers
    for (int i = threadIdx.x; i < SLICE * width / 4; i += THREADS) {
      const int row = i / (width / 4), c = i % (width / 4) * 4;
      *(float4 *)(stage + row * width + c) = load_four(stream, first + row, c);
    }
    __syncthreads();
    const int begin = low > first ? low : first;
    const int end = high + 1 < first + SLICE ? high + 1 : first + SLICE;
    if (all_low <= begin && all_high >= end - 1) {
#pragma unroll(width > 128 ? 2 : 4)
      for (int j = begin; j < end; j++)
        add_row<width, false>(stage + (j - first) * width, weights + j * PITCH, seen, j, acc);
    } else {
#pragma unroll(width > 128 ? 1 : 2)
      for (int j = begin; j < end; j++)
        add_row<width, true>(stage + (j - first) * width, weights + j * PITCH, seen, j, acc);
    }
  }
}

template <int width>
GPU void clear(float (&acc)[4][width / 16]) {
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int i = 0; i < width / 16; i++) acc[r][i] = 0.0f;
}

// The four rows of this thread, of `count` that begin at packed row `row`.
template <int width>
GPU void store_rows(const tl_attention_output &out, int64_t row, int head, int count, float factor,
                    const float (&acc)[4][width / 16]) {
  const int y = threadIdx.x / 16 * 4;
#pragma unroll
  for (int r = 0; r < 4; r++) {
    if (y + r >= count) break;
#pragma unroll
    for (int i = 0; i < width / 16; i++) {
      const int channel = channel_of<width>(i);
      if (channel < out.width)
        store_one(out, (row + y + r) * out.stride + int64_t(head) * out.width + channel,
                  factor * acc[r][i]);
    }
  }
}

#endif
