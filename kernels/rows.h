/* rows.h - the row rule, and how row-wise kernels read, write and share out their work.
**
** The row rule: the canonical order of sums along a row (norms, softmax, chunks of a gradient).
**
**     elements   0    1    2  ...  2047 | 2048 2049 ...        i goes to partial i mod 2048,
**                v    v    v         v     v    v              ascending, by fmaf(a, b, partial)
**     partials   p0   p1   p2 ...  p2047                       or, for a plain sum, partial + a
**                 \  /      \  /
**                 p0+p1    p2+p3  ...                          neighbours first, until one is left
**
** Partials start at +0, so a row of up to 2,048 elements is its rounded products (each + 0.0f) in
** a tree of adjacent pairs. Missing partials are +0. A partial is never -0 (+0 plus anything is
** not), so leaving out pairs of missing partials, or adding +0, changes no bit: the tree is built
** over the next power of two. The order depends on the width alone, never on threads, vector width
** or dtype.
**
** Kernels compute in f32. tl_load widens bf16 (exact); tl_place and tl_commit round the result once
** to the output's dtype. Spans have at most TL_SPAN elements, so buffers live on the stack.
*/
#ifndef TL_ROWS_H
#define TL_ROWS_H

#include <math.h>

#include "op.h"
#include "simd.h"

enum { TL_SPAN = 2048 }; /* partials of the row rule, and elements handled at a time */

typedef struct tl_partials {
  float sum[TL_SPAN];
  int64_t used; /* partials that got an element; the others are +0 and not yet written */
} tl_partials;

TL_INLINE void tl_partials_clear(tl_partials *p) { p->used = 0; }

/* The next n <= TL_SPAN elements of the row, products a * b. Every call but the last of a row has
** n = TL_SPAN. */
TL_INLINE void tl_partials_dot(tl_partials *p, const float *a, const float *b, int64_t n) {
  if (p->used == 0) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) p->sum[i] = a[i] * b[i] + 0.0f;
    p->used = n;
  } else {
    TL_LANES
    for (int64_t i = 0; i < n; i++) p->sum[i] = fmaf(a[i], b[i], p->sum[i]);
  }
}

/* The same for a plain sum of a. */
TL_INLINE void tl_partials_add(tl_partials *p, const float *a, int64_t n) {
  if (p->used == 0) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) p->sum[i] = a[i] + 0.0f;
    p->used = n;
  } else {
    TL_LANES
    for (int64_t i = 0; i < n; i++) p->sum[i] = p->sum[i] + a[i];
  }
}

/* The tree over 16 values. */
TL_INLINE float tl_tree16(const float *v) {
  float eight[8], four[4];
  for (int i = 0; i < 8; i++) eight[i] = v[2 * i] + v[2 * i + 1];
  for (int i = 0; i < 4; i++) four[i] = eight[2 * i] + eight[2 * i + 1];
  return (four[0] + four[1]) + (four[2] + four[3]);
}

/* The sum of the row. The partials are used up. */
TL_INLINE float tl_partials_total(tl_partials *p) {
  float other[TL_SPAN / 2];
  int64_t n = 16;
  while (n < p->used) n *= 2;
  for (int64_t i = p->used; i < n; i++) p->sum[i] = 0.0f;
  float *from = p->sum, *to = other;
  for (; n > 16; n /= 2) {
    TL_LANES
    for (int64_t i = 0; i < n / 2; i++) to[i] = from[2 * i] + from[2 * i + 1];
    float *swap = from;
    from = to, to = swap;
  }
  return tl_tree16(from);
}

/* The tree over n values, n a power of two: (v0 + v1) + (v2 + v3) ... Values are used up. */
float tl_tree(float *values, int64_t n);

/* Run i of n over a length: floor(i * length / n) .. floor((i + 1) * length / n) - 1. */
TL_INLINE int64_t tl_border(int64_t i, int64_t n, int64_t length) { return i * length / n; }

/* Elements first .. first + n - 1 as f32: the view's own memory, or `buffer` with bf16 widened. */
const float *tl_load(const tl_view *view, int64_t first, int64_t n, float *buffer);
/* Where to compute elements from `first` on: the view's own memory if it is f32, else `buffer`. */
float *tl_place(const tl_view *view, int64_t first, float *buffer);
/* Rounds what was computed at tl_place's pointer into the view; nothing to do for f32. */
void tl_commit(const tl_view *view, int64_t first, int64_t n, const float *values);

/* Calls `span` for all elements 0 .. count - 1, in pieces of at most TL_SPAN, on all workers. */
typedef void (*tl_span_task)(const void *context, int64_t first, int64_t n);
void tl_each_span(tl_team *team, int64_t count, tl_span_task span, const void *context);
/* Calls `row` for rows 0 .. rows - 1, many narrow ones to a task, on all workers. */
typedef void (*tl_row_task)(const void *context, int64_t row);
void tl_each_row(tl_team *team, int64_t rows, int64_t width, tl_row_task row, const void *context);

/* What a kernel needs of an operand before it touches memory. */
typedef enum tl_kind { TL_KIND_FLOAT, TL_KIND_F32, TL_KIND_I32, TL_KIND_I64 } tl_kind;
/* Fails, naming operator and operand, unless the view has this kind (TL_KIND_FLOAT: f32 or bf16)
** and this number of elements. */
tl_status tl_expect(const char *op, const char *operand, const tl_view *view, tl_kind kind,
                    int64_t count);
/* Fails unless value is in low .. high. */
tl_status tl_expect_range(const char *op, const char *name, int64_t value, int64_t low,
                          int64_t high);
/* Fails unless cu starts with 0, ascends, and ends with `rows`. */
tl_status tl_expect_segments(const char *op, const tl_view *cu, int64_t rows);
/* The last segment that starts at or before `row` and is not empty. */
int64_t tl_segment_of(const tl_view *cu, int64_t row);

#endif
