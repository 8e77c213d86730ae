/* reduce.cu - sums over tokens and leaves on a GPU.
**
** sum_tokens in two steps, because the sums of blocks of 64 rows do not depend on each other:
**
**     blocks   one thread for 8 columns of a block      partial[run][piece][block][column]
**     chain    one block for 32 columns of a run        acc = acc + partial, block after block
*/
#include "../device.cuh"
#include "reduce_args.h"

/* Run i of n over a length starts here. */
TL_GPU int64_t border(int64_t i, int64_t n, int64_t length) { return i * length / n; }

/* --- sum_tokens ------------------------------------------------------------------------------- */

/* Blocks of run r in each piece. */
TL_GPU int64_t blocks_of(const tl_sum_tokens_args &k, int64_t run) {
  const int64_t rows = border(run + 1, k.runs, k.length) - border(run, k.runs, k.length);
  return (rows + TL_TOKEN_BLOCK - 1) / TL_TOKEN_BLOCK;
}

/* Adds the term of one row to the n columns of s. */
TL_GPU void add_term(const tl_sum_tokens_args &k, int64_t row, int64_t column, int n, float *s) {
  const tl_bits dys = tl_fetch(k.dy, row * k.dim + column, n);
  float dy[TL_P], x[TL_P];
  if (k.kind == 0) {
    tl_widen(k.dy, dys, dy);
#pragma unroll
    for (int i = 0; i < TL_P; i++) s[i] = s[i] + dy[i];
    return;
  }
  const tl_bits xs = tl_fetch(k.x, row * k.dim + column, n);
  const float rstd = k.kind >= 2 ? k.rstd[row] : 1.0f, mean = k.kind == 3 ? k.mean[row] : 0.0f;
  tl_widen(k.dy, dys, dy);
  tl_widen(k.x, xs, x);
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    if (k.kind == 3) x[i] = x[i] - mean;
    if (k.kind >= 2) x[i] = x[i] * rstd;
    s[i] = fmaf(dy[i], x[i], s[i]);
  }
}

/* The sum of 8 columns of a block: add(first row, rows, column, n, s) adds its rows' terms. */
template <class Add>
TL_GPU void sum_block(const tl_sum_tokens_args &k, Add add) {
  const int64_t thread = (int64_t)blockIdx.x * TL_TOKEN_THREADS + threadIdx.x;
  const tl_place_of p = tl_row_piece(thread, k.columns);
  const int64_t of_piece = tl_quotient(p.row, k.blocks), block = p.row - of_piece * k.blocks;
  const int64_t run = tl_quotient(of_piece, k.samples), piece = of_piece - run * k.samples;
  if (run >= k.runs || block >= blocks_of(k, run)) return;
  const int64_t start = border(run, k.runs, k.length) + block * TL_TOKEN_BLOCK;
  const int64_t left = border(run + 1, k.runs, k.length) - start;
  const int64_t first = k.first + piece * k.length + start;
  const int rows = left < TL_TOKEN_BLOCK ? (int)left : TL_TOKEN_BLOCK;
  const int n = tl_piece_length(k.columns, p.at);
  float s[TL_P];
  tl_clear(s);
  add(first, rows, k.column_first + p.at, n, s);
  tl_store(k.partial, p.row * k.columns + p.at, n, s);
}

enum { ROWS_AHEAD = 4 };

/* Some rows of whole pieces of bf16 on their way, for kinds 0 and 2; x and rstd only for 2. */
typedef struct rows_ahead {
  uint4 dy[ROWS_AHEAD], x[ROWS_AHEAD];
  float rstd[ROWS_AHEAD];
} rows_ahead;

/* Where the rows of a block stand: pieces of dy and x, `step` apart. */
typedef struct rows_from {
  const uint4 *dy, *x;
  const float *rstd;
  int64_t step;
  int count;
} rows_from;

/* Rows `at` .. ; those past the end are the last one once more. */
template <int kind>
TL_GPU void fetch_rows(const rows_from &from, int at, rows_ahead *to) {
#pragma unroll
  for (int j = 0; j < ROWS_AHEAD; j++) {
    const int row = at + j < from.count ? at + j : from.count - 1;
    to->dy[j] = from.dy[row * from.step];
    if (kind == 0) continue;
    to->x[j] = from.x[row * from.step];
    to->rstd[j] = from.rstd[row];
  }
}

template <int kind>
TL_GPU void add_rows(const rows_ahead &rows, int count, float *s) {
#pragma unroll
  for (int j = 0; j < ROWS_AHEAD; j++) {
    if (j >= count) break;
    float dy[TL_P], x[TL_P];
    tl_widen_whole(rows.dy[j], dy);
    if (kind != 0) tl_widen_whole(rows.x[j], x);
#pragma unroll
    for (int c = 0; c < TL_P; c++)
      s[c] = kind == 0 ? s[c] + dy[c] : fmaf(dy[c], x[c] * rows.rstd[j], s[c]);
  }
}

/* add_term for them: the next rows are on their way while some are added. */
template <int kind>
TL_GPU void add_whole_rows(const tl_sum_tokens_args &k, int64_t first, int count, int64_t column,
                           float *s) {
  const int64_t at = first * k.dim + column;
  const rows_from from = {(const uint4 *)((const uint16_t *)k.dy.data + at),
                          (const uint4 *)((const uint16_t *)k.x.data + at), k.rstd + first,
                          k.dim / TL_P, count};
  rows_ahead now, next;
  fetch_rows<kind>(from, 0, &now);
  for (int i = 0; i < count; i += 2 * ROWS_AHEAD) {
    fetch_rows<kind>(from, i + ROWS_AHEAD, &next);
    add_rows<kind>(now, count - i, s);
    fetch_rows<kind>(from, i + 2 * ROWS_AHEAD, &now);
    add_rows<kind>(next, count - i - ROWS_AHEAD, s);
  }
}

extern "C" __global__ void __launch_bounds__(TL_TOKEN_THREADS)
    sum_tokens_blocks(const __grid_constant__ tl_sum_tokens_args k) {
  const bool whole = (k.kind == 0 || (k.kind == 2 && tl_whole(&k.x, k.dim))) &&
                     tl_whole(&k.dy, k.dim) && k.column_first % TL_P == 0;
  sum_block(k, [&](int64_t first, int rows, int64_t column, int n, float *s) {
    if (whole && n == TL_P) {
      if (k.kind == 0)
        add_whole_rows<0>(k, first, rows, column, s);
      else
        add_whole_rows<2>(k, first, rows, column, s);
      return;
    }
#pragma unroll 4
    for (int i = 0; i < rows; i++) add_term(k, first + i, column, n, s);
  });
}

/* add_term for kinds 2 and 3 where parts of a row were normalized apart. */
TL_GPU void add_part_term(const tl_sum_parts_args &a, int64_t row, int64_t column, int n,
                          float *s) {
  const tl_sum_tokens_args &k = a.sums;
  const int64_t part = tl_quotient(column, a.width);
  int64_t place = row * a.parts + part, left = (part + 1) * a.width - column;
  float dy[TL_P], x[TL_P], rstd = k.rstd[place], mean = k.kind == 3 ? k.mean[place] : 0.0f;
  tl_widen(k.dy, tl_fetch(k.dy, row * k.dim + column, n), dy);
  tl_widen(k.x, tl_fetch(k.x, row * k.dim + column, n), x);
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    if (i > 0 && i < n && --left == 0) { /* the next part begins */
      left = a.width;
      place++;
      rstd = k.rstd[place];
      if (k.kind == 3) mean = k.mean[place];
    }
    if (k.kind == 3) x[i] = x[i] - mean;
    s[i] = fmaf(dy[i], x[i] * rstd, s[i]);
  }
}

/* sum_tokens_blocks for them. */
extern "C" __global__ void __launch_bounds__(TL_TOKEN_THREADS)
    sum_tokens_parts(const __grid_constant__ tl_sum_parts_args a) {
  sum_block(a.sums, [&](int64_t first, int rows, int64_t column, int n, float *s) {
    for (int i = 0; i < rows; i++) add_part_term(a, first + i, column, n, s);
  });
}

/* A block has 32 columns of a run. Its warps fetch sums of blocks of rows, 32 each, all at once;
** then the chain goes from warp to warp. */
enum { CHAIN_AHEAD = 32, CHAIN_WARPS = TL_DEVICE_THREADS / TL_DEVICE_WARP };

TL_KERNEL sum_tokens_chain(const __grid_constant__ tl_sum_tokens_args k) {
  tl_after_earlier();
  __shared__ float sums[TL_DEVICE_WARP];
  const int lane = threadIdx.x % TL_DEVICE_WARP, warp = threadIdx.x / TL_DEVICE_WARP;
  const int64_t groups = (k.columns + TL_DEVICE_WARP - 1) / TL_DEVICE_WARP;
  const int64_t run = tl_quotient(blockIdx.x, groups);
  const int64_t column = (blockIdx.x - run * groups) * TL_DEVICE_WARP + lane;
  const int64_t blocks = blocks_of(k, run), count = k.samples * blocks;
  const bool live = column < k.columns;
  const float *partial =
      (const float *)k.partial.data + run * k.samples * k.blocks * k.columns + column;
  float *acc = k.acc + run * k.dim + k.column_first + column;
  if (warp == 0) sums[lane] = live && k.mode != 0 ? *acc : 0.0f;
  for (int64_t first = 0; first < count; first += CHAIN_WARPS * CHAIN_AHEAD) {
    const int64_t own = first + warp * CHAIN_AHEAD, left = count - own;
    const int64_t piece = tl_quotient(own, blocks);
    int64_t block = own - piece * blocks;
    const float *at = partial + (piece * k.blocks + block) * k.columns;
    float next[CHAIN_AHEAD];
#pragma unroll
    for (int i = 0; i < CHAIN_AHEAD; i++) {
      if (live && i < left) next[i] = *at;
      at += ++block == blocks ? (k.blocks - blocks + 1) * k.columns : k.columns;
      block = block == blocks ? 0 : block;
    }
    for (int turn = 0; turn < CHAIN_WARPS; turn++) {
      if (turn == warp) {
        float sum = sums[lane];
#pragma unroll
        for (int i = 0; i < CHAIN_AHEAD; i++)
          if (i < left) sum = sum + next[i];
        sums[lane] = sum;
      }
      __syncthreads();
    }
  }
  if (warp == 0 && live) *acc = sums[lane];
}

/* --- fold: 8 rows at a time, then a counter of finished subtrees ------------------------------ */

enum { FOLD_ROWS = 8, FOLD_LEVELS = 20 };

TL_KERNEL fold_columns(const __grid_constant__ tl_fold_args k) {
  const int64_t column = tl_thread();
  if (column >= k.dim) return;
  tl_counter<FOLD_LEVELS> tree;
  float x[FOLD_ROWS], y = 0.0f;
  for (int64_t row = 0; row < k.n; row += FOLD_ROWS) {
#pragma unroll
    for (int i = 0; i < FOLD_ROWS; i++) {
      x[i] = i < k.n ? tl_load_one(k.x, (row + i) * k.dim + column) : 0.0f;
    }
    const float two = k.n == 1 ? x[0] : x[0] + x[1];
    const float four = k.n <= 2 ? two : two + (x[2] + x[3]);
    y = tree.push(row / FOLD_ROWS, k.n <= 4 ? four : four + ((x[4] + x[5]) + (x[6] + x[7])));
  }
  tl_store_one(k.y, column, y);
}
