/* elementwise.cu - operators on single elements on a GPU: a piece of 8 elements a thread.
**
** A thread reads all that it needs before it writes, so outputs may be inputs' memory.
*/
#include "../../runtime/random.h"
#include "../device.cuh"
#include "../op.h"
#include "elementwise_args.h"
#include "swiglu.cuh"
#include "unary.h"

TL_KERNEL swiglu_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  if (n <= 0) return;
  const tl_bits gates = tl_fetch(o.a, at, n), ups = tl_fetch(o.b, at, n);
  float gate[TL_P], up[TL_P];
  tl_widen(o.a, gates, gate);
  tl_widen(o.b, ups, up);
  tl_swiglu_piece(gate, up);
  tl_store(o.out, at, n, gate);
}

TL_KERNEL swiglu_grad_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  if (n <= 0) return;
  const tl_bits dys = tl_fetch(o.a, at, n), gates = tl_fetch(o.b, at, n);
  const tl_bits ups = tl_fetch(o.c, at, n);
  float dy[TL_P], gate[TL_P], up[TL_P];
  tl_widen(o.a, dys, dy);
  tl_widen(o.b, gates, gate);
  tl_widen(o.c, ups, up);
  tl_swiglu_grad_piece(dy, gate, up);
  tl_store(o.out, at, n, gate);
  tl_store(o.out2, at, n, up);
}

/* --- unary: for each row of unary.def --------------------------------------------------------- */

TL_GPU float tl_none(float x) { return x; }

/* y = f(x). */
TL_GPU void values(int kind, const float *x, float *y) {
  switch (kind) {
#define UNARY(number, name, function)                                                        \
  case number:                                                                               \
    for (int i = 0; i < TL_P; i++)                                                           \
      y[i] = tl_unary_##name##_value(x[i], tl_##function(tl_unary_##name##_argument(x[i]))); \
    break;
#include "unary.def"
#undef UNARY
    default: break;
  }
}

/* dx = f'(dy, x). */
TL_GPU void slopes(int kind, const float *dy, const float *x, float *dx) {
  switch (kind) {
#define UNARY(number, name, function)                                                            \
  case number:                                                                                   \
    for (int i = 0; i < TL_P; i++)                                                               \
      dx[i] =                                                                                    \
          tl_unary_##name##_slope(dy[i], x[i], tl_##function(tl_unary_##name##_argument(x[i]))); \
    break;
#include "unary.def"
#undef UNARY
    default: break;
  }
}

TL_KERNEL unary_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float x[TL_P], y[TL_P];
  if (n <= 0) return;
  tl_load_piece(o.a, at, n, x);
  values(o.kind, x, y);
  tl_store(o.out, at, n, y);
}

TL_KERNEL unary_grad_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float dy[TL_P], x[TL_P], dx[TL_P];
  if (n <= 0) return;
  const tl_bits dys = tl_fetch(o.a, at, n), xs = tl_fetch(o.b, at, n);
  tl_widen(o.a, dys, dy);
  tl_widen(o.b, xs, x);
  slopes(o.kind, dy, x, dx);
  tl_store(o.out, at, n, dx);
}

/* --- binary ----------------------------------------------------------------------------------- */

/* b for the n elements of a from `at` on. */
TL_GPU void load_right(const tl_elements_args &o, int64_t at, int n, float *b) {
  if (o.broadcast == 0) {
    tl_load_piece(o.b, at, n, b);
    return;
  }
  int64_t row = tl_quotient(at, o.width), column = at - row * o.width;
  if (o.broadcast == 1 && column + n <= o.width) {
    tl_load_piece(o.b, column, n, b);
    return;
  }
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    b[i] = i < n ? tl_load_one(o.b, o.broadcast == 1 ? column : row) : 0.0f;
    column++;
    if (column == o.width) row++, column = 0;
  }
}

TL_KERNEL binary_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float a[TL_P], b[TL_P];
  if (n <= 0) return;
  tl_load_piece(o.a, at, n, a);
  load_right(o, at, n, b);
  switch (o.kind) {
    case 0:
      for (int i = 0; i < TL_P; i++) a[i] = a[i] + b[i];
      break;
    case 1:
      for (int i = 0; i < TL_P; i++) a[i] = a[i] - b[i];
      break;
    case 2:
      for (int i = 0; i < TL_P; i++) a[i] = a[i] * b[i];
      break;
    default:
      for (int i = 0; i < TL_P; i++) a[i] = a[i] / b[i];
      break;
  }
  tl_store(o.out, at, n, a);
}

/* --- scale, scale_step, cast, fill ------------------------------------------------------------ */

TL_KERNEL scale_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float x[TL_P];
  if (n <= 0) return;
  tl_load_piece(o.a, at, n, x);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[i] = x[i] * o.number;
  tl_store(o.out, at, n, x);
}

TL_KERNEL scale_step_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float x[TL_P];
  if (n <= 0) return;
  const float number = o.step->scalars[o.kind];
  tl_load_piece(o.a, at, n, x);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[i] = x[i] * number;
  tl_store(o.out, at, n, x);
}

TL_KERNEL cast_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float x[TL_P];
  if (n <= 0) return;
  tl_load_piece(o.a, at, n, x);
  tl_store(o.out, at, n, x);
}

TL_KERNEL fill_elements(const __grid_constant__ tl_elements_args o) {
  tl_after_earlier();
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(o.count, at);
  float y[TL_P];
  if (n <= 0) return;
#pragma unroll
  for (int i = 0; i < TL_P; i++) y[i] = o.number;
  tl_store(o.out, at, n, y);
}

/* --- dropout ---------------------------------------------------------------------------------- */

/* A piece of one row: the logical index is that of elementwise.h. */
TL_KERNEL dropout_elements(const __grid_constant__ tl_dropout_args d) {
  tl_after_earlier();
  const tl_place_of p = tl_row_piece(tl_thread(), d.width);
  if (p.row >= d.rows) return;
  const int n = tl_piece_length(d.width, p.at);
  float x[TL_P];
  tl_load_piece(d.x, p.row * d.width + p.at, n, x);
  if (d.rate > 0.0f) {
    const int64_t piece = tl_quotient(p.row, d.tokens);
    const int64_t sample = d.step->sample_base + d.first + piece;
    const int64_t token = d.token_first + (p.row - piece * d.tokens);
    const uint64_t index = (uint64_t)(sample * d.length + token) * (uint64_t)d.features +
                           (uint64_t)d.feature_first + (uint64_t)p.at;
    const tl_random_key key = tl_random_key_of(d.step->seed, d.key);
    const uint64_t step = (uint64_t)d.step->step;
#pragma unroll
    for (int i = 0; i < TL_P; i++) {
      const uint32_t word = tl_random_words(key, index + (uint64_t)i, step).word[0];
      const float kept = x[i] * d.factor;
      x[i] = tl_random_unit(word) >= d.rate ? kept : 0.0f;
    }
  }
  tl_store(d.y, p.row * d.width + p.at, n, x);
}
