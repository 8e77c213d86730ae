/* rope.cu - rotary positions on a GPU, and the tables of their angles.
**
** rope: a block a row; a thread takes up to 8 pairs, or 8 channels behind them, of one head:
**
**     half-split   [ a: 8 of pairs | .. ][ b: the same 8 | .. ][ rest: 8 at a time ]
**     interleaved  [ a b a b .. 16 channels | ..              ][ rest: 8 at a time ]
**
** Positions are known on the device only, so one outside the table, an error on the host, makes
** the turned channels NaN: the loss of that step is NaN and the optimizer skips it.
*/
#include "../device.cuh"
#include "elementwise_args.h"

enum { THREADS = 128, WARP = TL_DEVICE_WARP };

/* The start of the segment of `row`. A warp halves 33 ways at once; its lanes agree. */
TL_GPU int64_t segment_start(const int32_t *cu, int64_t entries, int64_t row) {
  int64_t low = 0, high = entries - 1; /* cu[low] <= row < cu[high] */
  while (high - low > 1) {
    const int64_t step = (high - low + WARP - 1) / WARP;
    const int64_t probe = low + step * (threadIdx.x % WARP + 1);
    const int below = __popc(__ballot_sync(0xffffffffu, probe < high && cu[probe] <= row));
    const int64_t end = low + step * (below + 1);
    low = low + step * below;
    high = end < high ? end : high;
  }
  return cu[low];
}

/* Turns n pairs (a, b) by the n angles of the table that start at pair `pair`. */
TL_GPU void turn(const tl_rope_args &r, int64_t position, int64_t pair, int n, float *a, float *b) {
  float table[2 * TL_P];
  const int more = 2 * n - TL_P;
  if (position >= 0 && position < r.positions) {
    const int64_t at = (position * r.pairs + pair) * 2;
    tl_load_piece(r.table, at, more > 0 ? TL_P : 2 * n, table);
    tl_load_piece(r.table, at + TL_P, more > 0 ? more : 0, table + TL_P);
  } else {
    for (int i = 0; i < 2 * TL_P; i++) table[i] = tl_math_float(TL_NAN_BITS);
  }
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    const float cosine = table[2 * i], sine = r.sign * table[2 * i + 1];
    const float first = a[i], second = b[i];
    a[i] = fmaf(first, cosine, -(second * sine));
    b[i] = fmaf(second, cosine, first * sine);
  }
}

TL_GPU void turn_halves(const tl_rope_args &r, int64_t head, int64_t position, int64_t pair) {
  const int n = tl_piece_length(r.pairs, pair);
  const tl_bits as = tl_fetch(r.x, head + pair, n), bs = tl_fetch(r.x, head + r.pairs + pair, n);
  float a[TL_P], b[TL_P];
  tl_widen(r.x, as, a);
  tl_widen(r.x, bs, b);
  turn(r, position, pair, n, a, b);
  tl_store(r.y, head + pair, n, a);
  tl_store(r.y, head + r.pairs + pair, n, b);
}

TL_GPU void turn_neighbours(const tl_rope_args &r, int64_t head, int64_t position, int64_t pair) {
  const int n = tl_piece_length(r.pairs, pair), more = 2 * n - TL_P;
  const int low = more > 0 ? TL_P : 2 * n, high = more > 0 ? more : 0;
  const tl_bits lows = tl_fetch(r.x, head + 2 * pair, low);
  const tl_bits highs = tl_fetch(r.x, head + 2 * pair + TL_P, high);
  float x[2 * TL_P], a[TL_P], b[TL_P];
  tl_widen(r.x, lows, x);
  tl_widen(r.x, highs, x + TL_P);
#pragma unroll
  for (int i = 0; i < TL_P; i++) a[i] = x[2 * i], b[i] = x[2 * i + 1];
  turn(r, position, pair, n, a, b);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[2 * i] = a[i], x[2 * i + 1] = b[i];
  tl_store(r.y, head + 2 * pair, low, x);
  tl_store(r.y, head + 2 * pair + TL_P, high, x + TL_P);
}

TL_GPU void turn_row(const tl_rope_args &r, int64_t row, int64_t position) {
  const int64_t turned = 2 * r.pairs, rest = r.channels - turned;
  const int pair_units = (int)((r.pairs + TL_P - 1) / TL_P);
  const int units = pair_units + (int)((rest + TL_P - 1) / TL_P);
  for (int64_t i = threadIdx.x; i < r.heads * units; i += THREADS) {
    const int64_t of_head = tl_quotient(i, units), unit = i - of_head * units;
    const int64_t head = (row * r.heads + of_head) * r.channels;
    if (unit >= pair_units) {
      const int64_t at = (unit - pair_units) * TL_P;
      const int n = tl_piece_length(rest, at);
      float x[TL_P];
      tl_load_piece(r.x, head + turned + at, n, x);
      tl_store(r.y, head + turned + at, n, x);
    } else if (r.interleaved) {
      turn_neighbours(r, head, position, unit * TL_P);
    } else {
      turn_halves(r, head, position, unit * TL_P);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_rows(const __grid_constant__ tl_rope_args r) {
  const int64_t row = blockIdx.x;
  turn_row(r, row, row - segment_start(r.cu, r.entries, row));
}

/* rope_rows of ops.def: rows of many requests, each with a position of its own. */
extern "C" __global__ void __launch_bounds__(THREADS)
    rope_placed_rows(const __grid_constant__ tl_rope_args r) {
  const int64_t row = blockIdx.x;
  turn_row(r, row, r.placed[row]);
}

/* rope_rows for heads of bf16 that are pairs in halves and nothing else, in whole pieces: a warp a
** row. What it turns is under way while the start of the segment is looked for. */
extern "C" __global__ void __launch_bounds__(THREADS)
    rope_whole_rows(const __grid_constant__ tl_rope_args r) {
  enum { AHEAD = 4 };
  const int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
  const int of_head = (int)(r.pairs / TL_P), units = (int)r.heads * of_head;
  int64_t position = -1;
  if (row >= r.rows) return; /* a whole warp */
  for (int first = threadIdx.x % WARP; first - (int)(threadIdx.x % WARP) < units;
       first += AHEAD * WARP) {
    uint4 as[AHEAD], bs[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int i = first + j * WARP < units ? first + j * WARP : 0, head = i / of_head;
      const int64_t at = (row * r.heads + head) * r.channels + (i - head * of_head) * TL_P;
      as[j] = tl_fetch_whole(r.x, at);
      bs[j] = tl_fetch_whole(r.x, at + r.pairs);
    }
    if (position < 0) position = row - segment_start(r.cu, r.entries, row);
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int i = first + j * WARP, head = i / of_head;
      if (i >= units) break;
      const int64_t pair = (i - head * of_head) * TL_P;
      const int64_t at = (row * r.heads + head) * r.channels + pair;
      float a[TL_P], b[TL_P];
      tl_widen_whole(as[j], a);
      tl_widen_whole(bs[j], b);
      turn(r, position, pair, TL_P, a, b);
      tl_store(r.y, at, TL_P, a);
      tl_store(r.y, at + r.pairs, TL_P, b);
    }
  }
}

/* Block (x, y): some pairs of some positions; the frequencies of its pairs are computed once. */
TL_KERNEL rope_table_tiles(const __grid_constant__ tl_rope_table_args t) {
  __shared__ float frequencies[TL_ROPE_TABLE_PAIRS];
  const int64_t first = (int64_t)blockIdx.x * TL_ROPE_TABLE_PAIRS;
  const int64_t start = (int64_t)blockIdx.y * TL_ROPE_TABLE_POSITIONS;
  const int lane = threadIdx.x % TL_ROPE_TABLE_PAIRS;
  if (threadIdx.x < TL_ROPE_TABLE_PAIRS && first + lane < t.pairs) {
    frequencies[lane] = tl_rope_frequency(&t.rule, first + lane, t.pairs);
  }
  __syncthreads();
  if (first + lane >= t.pairs) return;
  for (int i = threadIdx.x / TL_ROPE_TABLE_PAIRS; i < TL_ROPE_TABLE_POSITIONS;
       i += TL_DEVICE_THREADS / TL_ROPE_TABLE_PAIRS) {
    const int64_t position = start + i;
    if (position >= t.positions) return;
    const float angle = (float)position * frequencies[lane];
    float *to = t.table + (position * t.pairs + first + lane) * 2;
    to[0] = tl_cos(angle) * t.rule.magnitude;
    to[1] = tl_sin(angle) * t.rule.magnitude;
  }
}
