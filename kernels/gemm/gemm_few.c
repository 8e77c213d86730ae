/* gemm_few.c - linear in f32 for few rows: a token, or a handful, against all weights.
**
** Weights are read once, along their rows, and nothing is packed: 16 x 16 of them are turned in
** registers, so that a register holds one k of 16 features, and go into the chains of all rows.
**
**        k ->                              x[m, k] to all lanes
**   n  +----------+                              |
**   |  | 16 x 16  |  turned   k: 16 features   fmaf   chains of 16 features, one for each row m
**   v  +----------+
**
** Chains, leaves and the last step (gemm_finish.c) are those of gemm_core.c, so the bits are, too.
*/
#include "gemm_core.h"

enum { ROWS_MAX = 8, LANES = 16, UNIT = TL_PANEL };

#if defined(__x86_64__)
#include <immintrin.h>

#include "../simd.h"
#include "../transpose.h"

/* `count` columns from the first of `b`, all k of one leaf, into sums c (rows, UNIT). */
typedef struct stretch {
  const float *a, *b;
  int64_t a_stride, b_stride, depth, count;
} stretch;

/* Rows of weights first .. first + 15 at k: turned. Those that are not there count as 0. */
TL_TARGET_AVX512 TL_INLINE void load_square(const stretch *s, int64_t first, int64_t k,
                                            __mmask16 mask, __m512 x[LANES]) {
  const float *from = s->b + first * s->b_stride + k;
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    const int here = first + i < s->count;
    x[i] = here ? _mm512_maskz_loadu_ps(mask, from + i * s->b_stride) : _mm512_setzero_ps();
    if (here) _mm_prefetch((const char *)(from + i * s->b_stride + 64), _MM_HINT_T0);
  }
  tl_transpose_16(x);
}

/* Features column .. column + 15; `rows` is a constant where this is used. One square at a time:
** more of them would read more than 16 streams of weights, which memory does not follow. */
TL_TARGET_AVX512 TL_INLINE void multiply(const stretch *s, float *c, int64_t column,
                                         const int rows) {
  __m512 sum[ROWS_MAX], x[LANES];
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++) sum[m] = _mm512_setzero_ps();
  int64_t k = 0;
  for (; k + LANES <= s->depth; k += LANES) {
    load_square(s, column, k, 0xffff, x);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
#pragma GCC unroll 8
      for (int m = 0; m < rows; m++)
        sum[m] = _mm512_fmadd_ps(_mm512_set1_ps(s->a[m * s->a_stride + k + i]), x[i], sum[m]);
  }
  if (k < s->depth) {
    float turned[LANES][LANES];
    load_square(s, column, k, (__mmask16)((1u << (s->depth - k)) - 1), x);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) _mm512_storeu_ps(turned[i], x[i]);
    for (int64_t i = 0; i < s->depth - k; i++)
#pragma GCC unroll 8
      for (int m = 0; m < rows; m++)
        sum[m] = _mm512_fmadd_ps(_mm512_set1_ps(s->a[m * s->a_stride + k + i]),
                                 _mm512_loadu_ps(turned[i]), sum[m]);
  }
#pragma GCC unroll 8
  for (int m = 0; m < rows; m++) _mm512_storeu_ps(c + m * UNIT + column, sum[m]);
}

#define MULTIPLY(rows)                                                                         \
  TL_TARGET_AVX512 static void multiply_##rows(const stretch *s, float *c) {                   \
    for (int64_t column = 0; column < s->count; column += LANES) multiply(s, c, column, rows); \
  }
/* clang-format off */
MULTIPLY(1) MULTIPLY(2) MULTIPLY(3) MULTIPLY(4) MULTIPLY(5) MULTIPLY(6) MULTIPLY(7) MULTIPLY(8)
    /* clang-format on */

    typedef void (*version)(const stretch *, float *);
static const version versions[ROWS_MAX] = {multiply_1, multiply_2, multiply_3, multiply_4,
                                           multiply_5, multiply_6, multiply_7, multiply_8};

/* One unit of columns: leaves on a stack, added like a binary counter. */
static void compute_unit(const void *context, int32_t part, int64_t unit, float *stack) {
  const tl_gemm *g = context;
  const int64_t width = tl_view_row(&g->out[part]), column = unit * UNIT, size = ROWS_MAX * UNIT;
  const int64_t columns = width - column < UNIT ? width - column : UNIT;
  int64_t top = 0;
  for (int64_t leaf = 0; leaf < g->leaves; leaf++) {
    tl_gemm_run run;
    g->run(g, part, leaf, 0, &run);
    const stretch s = {.a = run.a.data,
                       .b = (const float *)run.b.data + column * run.b.stride,
                       .a_stride = run.a.stride,
                       .b_stride = run.b.stride,
                       .depth = run.count,
                       .count = columns};
    versions[g->rows - 1](&s, stack + top * size);
    for (int64_t pairs = leaf; pairs & 1; pairs >>= 1, top--)
      tl_gemm_add(stack + (top - 1) * size, stack + top * size, g->rows * UNIT);
    top++;
  }
  const tl_gemm_tile tile = {.part = part, .rows = g->rows, .column = column, .columns = columns};
  tl_gemm_store(g, &tile, stack, UNIT);
}

int32_t tl_gemm_few_rows(const tl_gemm *gemm, tl_team *team) {
  tl_gemm_run run;
  if (gemm->dtype != TL_F32 || gemm->in_panels || gemm->rows < 1 || gemm->rows > ROWS_MAX ||
      gemm->runs != 1 || gemm->start != TL_GEMM_ZERO || tl_simd_level() != TL_SIMD_AVX512)
    return 0;
  gemm->run(gemm, 0, 0, 0, &run);
  if (run.a.k_stride != 1 || run.b.k_stride != 1) return 0;
  tl_gemm_for_columns(gemm, team, run.b.stride, compute_unit, gemm);
  return 1;
}
#else
int32_t tl_gemm_few_rows(const tl_gemm *gemm, tl_team *team) {
  (void)gemm, (void)team;
  return 0;
}
#endif
