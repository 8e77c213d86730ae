/* moe_rows.cu - rows of experts on a GPU: taken, combined, and worked on where they are.
**
** How many rows there are stands in memory, so blocks stride over as many as they find.
*/
#include "../elementwise/swiglu.cuh"
#include "moe_args.h"

enum { THREADS = TL_DEVICE_THREADS, AHEAD = 4 /* words, or slots, on their way at once */ };

/* --- take_rows -------------------------------------------------------------------------------- */

template <class Word>
TL_GPU void take(const tl_take_args &k) {
  const int64_t first = k.starts[k.first], rows = k.starts[k.last] - first;
  const int lanes = k.lanes, lane = threadIdx.x % lanes, each = THREADS / lanes;
  for (int64_t r = (int64_t)blockIdx.x * each + threadIdx.x / lanes; r < rows && r < k.room;
       r += (int64_t)gridDim.x * each) {
    const int32_t from_row = k.order[first + r];
    const Word *from =
        (const Word *)k.x + (int64_t)(k.per == 1 ? from_row : from_row / k.per) * k.words;
    Word *to = (Word *)k.rows + r * k.words;
    for (int64_t w = lane; w < k.words; w += AHEAD * lanes) {
      Word value[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (w + i * lanes < k.words) value[i] = from[w + i * lanes];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (w + i * lanes < k.words) to[w + i * lanes] = value[i];
    }
  }
}

TL_KERNEL take_rows_16(const __grid_constant__ tl_take_args k) { take<uint4>(k); }
TL_KERNEL take_rows_4(const __grid_constant__ tl_take_args k) { take<uint32_t>(k); }
TL_KERNEL take_rows_2(const __grid_constant__ tl_take_args k) { take<uint16_t>(k); }

/* --- combine ---------------------------------------------------------------------------------- */

/* `lanes` threads a token, 8 columns each at a time; slots in their order. */
TL_KERNEL combine_rows(const __grid_constant__ tl_combine_args k) {
  const int lanes = k.lanes, each = THREADS / lanes;
  const int64_t column = (int64_t)(threadIdx.x % lanes) * TL_P;
  for (int64_t token = (int64_t)blockIdx.x * each + threadIdx.x / lanes; token < k.tokens;
       token += (int64_t)gridDim.x * each) {
    const int32_t *place = k.place + token * k.slots;
    const float *weight = k.weight + token * k.slots;
    for (int64_t at = column; at < k.width; at += (int64_t)lanes * TL_P) {
      const int n = tl_piece_length(k.width, at);
      float sum[TL_P];
      tl_clear(sum);
      for (int first = 0; first < k.slots; first += AHEAD) {
        tl_bits bits[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
          if (first + i < k.slots)
            bits[i] = tl_fetch(k.rows, (int64_t)place[first + i] * k.width + at, n);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
          if (first + i >= k.slots) break;
          float row[TL_P];
          tl_widen(k.rows, bits[i], row);
          if (k.weight != nullptr) {
            const float w = weight[first + i];
#pragma unroll
            for (int j = 0; j < TL_P; j++) sum[j] = fmaf(w, row[j], sum[j]);
          } else {
#pragma unroll
            for (int j = 0; j < TL_P; j++) sum[j] = sum[j] + row[j];
          }
        }
      }
      if (k.shared.data != nullptr) {
        float row[TL_P];
        tl_load_piece(k.shared, token * k.width + at, n, row);
#pragma unroll
        for (int j = 0; j < TL_P; j++) sum[j] = sum[j] + row[j];
      }
      tl_store(k.y, token * k.width + at, n, sum);
    }
  }
}

/* --- on the rows that there are --------------------------------------------------------------- */

/* Calls piece(first, n) for all elements of the rows. */
template <class Piece>
TL_GPU void each_piece(const tl_expert_rows_args &k, Piece piece) {
  const int64_t rows = *k.rows < k.room ? *k.rows : k.room, count = rows * k.width;
  const int64_t step = (int64_t)gridDim.x * THREADS * TL_P;
  for (int64_t at = tl_thread() * TL_P; at < count; at += step)
    piece(at, tl_piece_length(count, at));
}

TL_KERNEL expert_swiglu_rows(const __grid_constant__ tl_expert_rows_args k) {
  each_piece(k, [&](int64_t at, int n) {
    const tl_bits gates = tl_fetch(k.a, at, n), ups = tl_fetch(k.b, at, n);
    float gate[TL_P], up[TL_P];
    tl_widen(k.a, gates, gate);
    tl_widen(k.b, ups, up);
    tl_swiglu_piece(gate, up);
    tl_store(k.out, at, n, gate);
  });
}

TL_KERNEL expert_swiglu_grad_rows(const __grid_constant__ tl_expert_rows_args k) {
  each_piece(k, [&](int64_t at, int n) {
    const tl_bits dys = tl_fetch(k.a, at, n), gates = tl_fetch(k.b, at, n);
    const tl_bits ups = tl_fetch(k.c, at, n);
    float dy[TL_P], gate[TL_P], up[TL_P];
    tl_widen(k.a, dys, dy);
    tl_widen(k.b, gates, gate);
    tl_widen(k.c, ups, up);
    tl_swiglu_grad_piece(dy, gate, up);
    tl_store(k.out, at, n, gate);
    tl_store(k.out2, at, n, up);
  });
}

/* `lanes` threads a row, as the row rule wants them (device.cuh). */
TL_KERNEL expert_scale_grad_rows(const __grid_constant__ tl_scale_grad_args k) {
  __shared__ float shared[TL_P];
  const int lanes = k.lanes, each = THREADS / lanes;
  const int64_t rows = *k.rows < k.room ? *k.rows : k.room;
  const int64_t column = (int64_t)(threadIdx.x % lanes) * TL_P;
  for (int64_t base = (int64_t)blockIdx.x * each; base < rows; base += (int64_t)gridDim.x * each) {
    const int64_t row = base + threadIdx.x / lanes;
    const bool own = row < rows;
    const float weight = own ? k.weight[row] : 0.0f;
    float p[TL_P];
    tl_clear(p);
    for (int64_t at = column; own && at < k.width; at += (int64_t)lanes * TL_P) {
      const int n = tl_piece_length(k.width, at);
      const tl_bits dys = tl_fetch(k.dy, row * k.width + at, n);
      const tl_bits outs = tl_fetch(k.out, row * k.width + at, n);
      float dy[TL_P], out[TL_P];
      tl_widen(k.dy, dys, dy);
      tl_widen(k.out, outs, out);
      tl_add_dot(p, dy, out, n, at);
#pragma unroll
      for (int i = 0; i < TL_P; i++) dy[i] = weight * dy[i];
      tl_store(k.dout, row * k.width + at, n, dy);
    }
    const float sum = tl_row_total(p, lanes, shared);
    if (own && threadIdx.x % lanes == 0) k.dweight[row] = sum;
  }
}
