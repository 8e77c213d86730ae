/* panels.h - a matrix of f32 as the host's products of few rows like to read it.
**
** A weight or a table (N, K) may lie in panels of 64 rows, (P, K, 64) with P = N / 64 rounded up:
** row 64 p + j at k is [p, k, j], and what is past N is zero.
**
**   (N, K)   n0: k0 k1 k2 ..         (P, K, 64)   panel 0   k0: n0 n1 .. n63
**            n1: k0 k1 k2 ..                                k1: n0 n1 .. n63
**
** A single row of x then meets all of it as one stream, 64 sums at a time, with nothing to turn. No
** bit depends on it. linear and embedding take it on the host; every other operator, and a GPU,
** refuses it by its shape.
*/
#ifndef TL_PANELS_H
#define TL_PANELS_H

#include "op.h"

enum { TL_PANEL = 64 };

static inline int64_t tl_panels_of(int64_t rows) { return (rows + TL_PANEL - 1) / TL_PANEL; }

/* Whether a matrix with rows of `width` lies in panels: no other shape of that width does so. */
static inline int tl_is_panels(const tl_view *view, int64_t width) {
  return view->dims == 3 && view->shape[1] == width && view->shape[2] == TL_PANEL &&
         view->dtype == TL_F32;
}

/* Fills panels (P, K, 64) from a matrix (N, K), both f32; their memory does not overlap. */
tl_status tl_panels_fill(const tl_view *matrix, tl_view *panels);

#endif
