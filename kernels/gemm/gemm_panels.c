/* gemm_panels.c - linear in f32 for few rows whose weights lie in panels (panels.h).
**
** A panel is read once, front to back, as one stream: 64 features at k are four vectors, which go
** into the chains of these features, a set of chains for each row.
**
**   panel   k0: n0 .. n15 | n16 .. n31 | n32 .. n47 | n48 .. n63      x[m, k] to all lanes
**           k1: ..             |                                          |
**                              +-------------- fmaf ----------------------+
**
** Chains, leaves and the last step (gemm_finish.c) are those of gemm_core.c, so the bits are, too.
*/
#include <math.h>

#include "gemm_core.h"

#include "../simd.h"

enum { PANEL = TL_PANEL };

/* A group of rows of x, and one panel: all k, cut into leaves whose number is 1 << leaves_log. */
typedef struct stretch {
  const float *a, *b;
  int64_t a_stride, depth;
  int32_t leaves_log;
} stretch;

/* Leaf i has k from here on. */
TL_INLINE int64_t leaf_first(const stretch *s, int64_t i) { return s->depth * i >> s->leaves_log; }

#if defined(__x86_64__)
#include <immintrin.h>

enum { LANES = 16, VECTORS = PANEL / LANES, GROUP = 4 };

/* The chains of one leaf. `rows` is a constant where this is used: four rows fit the registers. */
TL_TARGET_AVX512 TL_INLINE void add_leaf(const stretch *s, int64_t leaf, const int rows,
                                         __m512 sum[GROUP][VECTORS]) {
  const int64_t end = leaf_first(s, leaf + 1);
#pragma GCC unroll 4
  for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) sum[m][v] = _mm512_setzero_ps();
  for (int64_t k = leaf_first(s, leaf); k < end; k++) {
    __m512 x[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; v++) x[v] = _mm512_loadu_ps(s->b + k * PANEL + v * LANES);
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++) {
      const __m512 left = _mm512_set1_ps(s->a[m * s->a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++) sum[m][v] = _mm512_fmadd_ps(left, x[v], sum[m][v]);
    }
  }
}

/* Leaves on a stack, added like a binary counter; c (rows, PANEL) is its lowest entry. */
TL_TARGET_AVX512 TL_INLINE void multiply_avx512(const stretch *s, float *c, const int rows) {
  __m512 sum[GROUP][VECTORS];
  int64_t top = 0;
  for (int64_t leaf = 0; leaf < 1ll << s->leaves_log; leaf++, top++) {
    add_leaf(s, leaf, rows, sum);
    for (int64_t pairs = leaf; pairs & 1; pairs >>= 1) {
      const float *below = c + --top * rows * PANEL;
#pragma GCC unroll 4
      for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
          sum[m][v] = _mm512_add_ps(_mm512_loadu_ps(below + m * PANEL + v * LANES), sum[m][v]);
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; v++)
        _mm512_storeu_ps(c + (top * rows + m) * PANEL + v * LANES, sum[m][v]);
  }
}

#define MULTIPLY(rows)                                                       \
  TL_TARGET_AVX512 static void multiply_##rows(const stretch *s, float *c) { \
    multiply_avx512(s, c, rows);                                             \
  }
/* clang-format off */
MULTIPLY(1) MULTIPLY(2) MULTIPLY(3) MULTIPLY(4)
    /* clang-format on */

    typedef void (*version)(const stretch *, float *);
static const version versions[GROUP] = {multiply_1, multiply_2, multiply_3, multiply_4};
#endif

/* Any processor: one row, whose chains stay in registers where there are enough of them. */
TL_INLINE void multiply_one_body(const stretch *s, float *c) {
  int64_t top = 0;
  for (int64_t leaf = 0; leaf < 1ll << s->leaves_log; leaf++, top++) {
    float sum[PANEL];
    for (int j = 0; j < PANEL; j++) sum[j] = 0.0f;
    for (int64_t k = leaf_first(s, leaf); k < leaf_first(s, leaf + 1); k++)
      for (int j = 0; j < PANEL; j++) sum[j] = fmaf(s->a[k], s->b[k * PANEL + j], sum[j]);
    for (int64_t pairs = leaf; pairs & 1; pairs >>= 1) {
      const float *below = c + --top * PANEL;
      for (int j = 0; j < PANEL; j++) sum[j] = below[j] + sum[j];
    }
    for (int j = 0; j < PANEL; j++) c[top * PANEL + j] = sum[j];
  }
}
TL_SIMD_VERSIONS(multiply_one, (const stretch *s, float *c), (s, c))

typedef struct few {
  const tl_gemm *gemm;
  stretch x; /* its first row */
  int64_t group;
} few;

/* One panel for all rows, a group of them at a time: after the first it is in a cache. */
static void compute_panel(const void *context, int32_t part, int64_t panel, float *stack) {
  const few *f = context;
  const tl_gemm *g = f->gemm;
  const int64_t left = tl_view_row(&g->out[part]) - panel * PANEL, width = f->x.depth;
  tl_gemm_tile tile = {.part = part, .column = panel * PANEL};
  stretch s = f->x;
  tile.columns = left < PANEL ? left : PANEL;
  s.b = (const float *)g->call->in[1 + part].data + panel * width * PANEL;
  for (; tile.row < g->rows; tile.row += tile.rows, s.a += tile.rows * s.a_stride) {
    tile.rows = g->rows - tile.row < f->group ? g->rows - tile.row : f->group;
#if defined(__x86_64__)
    if (f->group > 1)
      versions[tile.rows - 1](&s, stack);
    else
#endif
      multiply_one(&s, stack);
    tl_gemm_store(g, &tile, stack, PANEL);
  }
}

int32_t tl_gemm_few_panels(const tl_gemm *gemm, tl_team *team) {
  const tl_view *x = &gemm->call->in[0];
  const int64_t width = tl_view_row(x);
  few f = {.gemm = gemm, .group = 1};
#if defined(__x86_64__)
  if (tl_simd_level() == TL_SIMD_AVX512) f.group = GROUP;
#endif
  if (!gemm->in_panels || gemm->rows < 1 || gemm->rows > 2 * f.group) return 0;
  f.x = (stretch){.a = x->data, .a_stride = width, .depth = width};
  while (1ll << f.x.leaves_log < gemm->leaves) f.x.leaves_log++;
  tl_gemm_for_columns(gemm, team, width, compute_panel, &f);
  return 1;
}
