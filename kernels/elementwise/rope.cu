/* rope.cu - rotary positions on a GPU, and the tables of their angles.
**
** rope: a block a row; a thread takes up to 8 pairs, or 8 channels behind them, of one head
** (rope.cuh).
**
** Positions are known on the device only, so one outside the table, an error on the host, makes
** the turned channels NaN: the loss of that step is NaN and the optimizer skips it.
*/
#include "rope.cuh"

enum { THREADS = 128, WARP = TL_DEVICE_WARP };

/* The start of the segment of `row`. A warp halves 33 ways at once; its lanes agree, and what one
** of them has read is the start. */
TL_GPU int64_t segment_start(const int32_t *cu, int64_t entries, int64_t row) {
  int64_t low = 0, high = entries - 1; /* cu[low] <= row < cu[high] */
  int start = cu[0];
  while (high - low > 1) {
    const int64_t step = (high - low + WARP - 1) / WARP;
    const int64_t probe = low + step * (threadIdx.x % WARP + 1);
    const int read = probe < high ? cu[probe] : 0;
    const int below = __popc(__ballot_sync(0xffffffffu, probe < high && read <= row));
    const int64_t end = low + step * (below + 1);
    const int last = __shfl_sync(0xffffffffu, read, below > 0 ? below - 1 : 0);
    start = below > 0 ? last : start;
    low = low + step * below;
    high = end < high ? end : high;
  }
  return start;
}

TL_GPU void turn_row(const tl_rope_args &r, int64_t row, int64_t position) {
  const int units = rope_units(r);
  for (int64_t i = threadIdx.x; i < r.heads * units; i += THREADS) {
    const int64_t of_head = tl_quotient(i, units);
    turn_unit(r, (row * r.heads + of_head) * r.channels, position, (int)(i - of_head * units));
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
  tl_after_earlier();
  const int64_t row = blockIdx.x;
  turn_row(r, row, r.placed[row]);
}

/* rope_rows for heads of bf16 that are pairs in halves and nothing else, in whole pieces: a warp a
** row. What it turns is under way while the start of the segment is looked for. */
extern "C" __global__ void __launch_bounds__(THREADS)
    rope_whole_rows(const __grid_constant__ tl_rope_args r) {
  enum { AHEAD = 2 };
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
