/* rope.cuh - turns pieces of heads, for rope.cu and for kernels that do more in one go.
**
**     half-split   [ a: 8 of pairs | .. ][ b: the same 8 | .. ][ rest: 8 at a time ]
**     interleaved  [ a b a b .. 16 channels | ..              ][ rest: 8 at a time ]
**
** A unit is 8 pairs of a head, or 8 channels behind them.
*/
#ifndef TL_ROPE_CUH
#define TL_ROPE_CUH

#include "../device.cuh"
#include "elementwise_args.h"

/* Turns n pairs (a, b) by the n angles of the table that start at pair `pair`. */
TL_GPU void turn(const tl_rope_args &r, int64_t position, int64_t pair, int n, float *a,
                    float *b) {
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

TL_GPU void turn_neighbours(const tl_rope_args &r, int64_t head, int64_t position,
                               int64_t pair) {
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

TL_GPU int rope_units(const tl_rope_args &r) {
  const int64_t rest = r.channels - 2 * r.pairs;
  return (int)((r.pairs + TL_P - 1) / TL_P + (rest + TL_P - 1) / TL_P);
}

/* Unit `unit` of the head whose first element is `head`. */
TL_GPU void turn_unit(const tl_rope_args &r, int64_t head, int64_t position, int unit) {
  const int pair_units = (int)((r.pairs + TL_P - 1) / TL_P);
  const int64_t turned = 2 * r.pairs;
  if (unit >= pair_units) {
    const int64_t at = (unit - pair_units) * TL_P;
    const int n = tl_piece_length(r.channels - turned, at);
    float x[TL_P];
    tl_load_piece(r.x, head + turned + at, n, x);
    tl_store(r.y, head + turned + at, n, x);
  } else if (r.interleaved) {
    turn_neighbours(r, head, position, unit * TL_P);
  } else {
    turn_halves(r, head, position, unit * TL_P);
  }
}

#endif
