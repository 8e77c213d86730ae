/* tensorcore_avx512.c - tl_tensorcore_tile on 16 lanes: 6 x 32 outputs at a time. */
#include "tensorcore_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "simd.h"

enum { COLUMNS = TL_TENSORCORE_COLUMNS, ROWS = TL_TENSORCORE_ROWS };

typedef struct lanes {
  __m512i largest[2]; /* exponent fields of the step, in place: columns 0..15 and 16..31 */
  __m512 scale[2];    /* 2^(25 - largest) */
  __m512i sum[2];     /* of the aligned products */
} lanes;

/* The largest exponents of one row, from those of its products (16 bits) and of C. */
TL_TARGET_AVX512 TL_INLINE void align(__m512i products, const float *c, lanes *out) {
  const __m512i field_mask = _mm512_set1_epi32(0x7f800000);
  const __m512i low = _mm512_set1_epi32((TL_TENSORCORE_FIELD_LOW - 1) << 23);
  const __m512i half[2] = {_mm512_slli_epi32(products, 16),
                           _mm512_and_si512(products, _mm512_set1_epi32(-65536))};
  for (int v = 0; v < 2; v++) {
    const __m512i field = _mm512_and_si512(_mm512_load_si512(c + 16 * v), field_mask);
    out->largest[v] = _mm512_max_epi32(_mm512_max_epi32(field, low), half[v]);
    out->scale[v] = _mm512_castsi512_ps(
        _mm512_sub_epi32(_mm512_set1_epi32((int32_t)(279u << 23)), out->largest[v]));
    out->sum[v] = _mm512_setzero_si512();
  }
}

/* Adds C, cuts to f32 and writes c; v is the half of the row. */
TL_TARGET_AVX512 TL_INLINE void finish(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                                       int32_t row, int v, const lanes *l, __m512i products,
                                       float *c) {
  const __m512 start = _mm512_load_ps(c);
  const __m512i aligned = _mm512_cvttps_epi32(_mm512_mul_ps(start, l->scale[v]));
  const __m512i sum = _mm512_add_epi32(l->sum[v], aligned);
  const __m512i unit = _mm512_sub_epi32(l->largest[v], _mm512_set1_epi32(25 << 23));
  const __m512 cut = _mm512_cvt_roundepi32_ps(sum, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __m512 result = _mm512_mul_ps(cut, _mm512_castsi512_ps(unit));
  /* Signs: the sum differs from both of its terms, so it left 32 bits. */
  const __mmask16 overflow =
      _mm512_movepi32_mask(_mm512_ternarylogic_epi32(l->sum[v], aligned, sum, 0x42));
  const __m512i low = _mm512_set1_epi32(TL_TENSORCORE_FIELD_LOW << 23);
  const __m512i range = _mm512_set1_epi32(
      (int32_t)((uint32_t)(TL_TENSORCORE_FIELD_HIGH - TL_TENSORCORE_FIELD_LOW) << 23));
  const __mmask16 outside = _mm512_cmpgt_epu32_mask(_mm512_sub_epi32(l->largest[v], low), range);
  uint32_t bad = _mm512_kor(overflow, outside);
  if (__builtin_expect(bad != 0, 0)) {
    const __mmask16 negligible = _mm512_cmplt_epi32_mask(
        v == 0 ? _mm512_slli_epi32(products, 16) : products,
        _mm512_set1_epi32((int32_t)((uint32_t)TL_TENSORCORE_NEGLIGIBLE << 16)));
    bad &= ~(uint32_t)_mm512_mask_cmpeq_ps_mask(negligible, start, _mm512_setzero_ps());
    float fixed[16] __attribute__((aligned(64)));
    _mm512_store_ps(fixed, result);
    if (bad != 0) tl_tensorcore_repair(a, b, row, 16 * v, bad, c, fixed);
    _mm512_store_ps(c, _mm512_load_ps(fixed));
    return;
  }
  _mm512_store_ps(c, result);
}

/* One step of `rows` rows (a constant where this is used) and 32 columns; c is (rows, 32). */
TL_TARGET_AVX512 TL_INLINE void step_rows(const tl_tensorcore_rows *a,
                                          const tl_tensorcore_columns *b, float *c,
                                          const int rows) {
  __m512i exponent[ROWS];
  lanes l[ROWS];
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++) exponent[r] = _mm512_set1_epi16(INT16_MIN);
  for (int k = 0; k < TL_TENSORCORE_STEP; k++) {
    const __m512i right = _mm512_load_si512(b->exponent[k]);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      const __m512i left = _mm512_set1_epi32((int32_t)a->exponent[k][r]);
      exponent[r] = _mm512_max_epi16(exponent[r], _mm512_adds_epi16(left, right));
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++) align(exponent[r], c + r * COLUMNS, &l[r]);
  for (int k = 0; k < TL_TENSORCORE_STEP; k++) {
    const __m512 right[2] = {_mm512_load_ps(b->value[k]), _mm512_load_ps(b->value[k] + 16)};
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      const __m512 left = _mm512_set1_ps(a->value[k][r]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) {
        const __m512 product = _mm512_mul_ps(_mm512_mul_ps(left, right[v]), l[r].scale[v]);
        l[r].sum[v] = _mm512_add_epi32(l[r].sum[v], _mm512_cvttps_epi32(product));
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) finish(a, b, r, v, &l[r], exponent[r], c + r * COLUMNS + 16 * v);
}

#define STEPS(count)                                                                          \
  TL_TARGET_AVX512 static void steps_##count(                                                 \
      const tl_tensorcore_rows *a, const tl_tensorcore_columns *b, int64_t steps, float *c) { \
    for (int64_t s = 0; s < steps; s++) {                                                     \
      if (__builtin_expect(a[s].wide | b[s].wide, 0)) {                                       \
        tl_tensorcore_step_tile(&a[s], &b[s], count, COLUMNS, c, COLUMNS);                    \
      } else {                                                                                \
        step_rows(&a[s], &b[s], c, count);                                                    \
      }                                                                                       \
    }                                                                                         \
  }
/* clang-format off */
STEPS(1) STEPS(2) STEPS(3) STEPS(4) STEPS(5) STEPS(6)

typedef float tile[ROWS * COLUMNS] __attribute__((aligned(64)));
/* clang-format on */

void tl_tensorcore_tile_avx512(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                               int64_t steps, int32_t rows, int32_t columns, float *c,
                               int64_t stride, int32_t resume) {
  tile work;
  const size_t bytes = sizeof *c * (size_t)columns;
  memset(work, 0, sizeof work);
  if (resume)
    for (int32_t r = 0; r < rows; r++) memcpy(work + r * COLUMNS, c + r * stride, bytes);
  switch (rows) {
    case 1: steps_1(a, b, steps, work); break;
    case 2: steps_2(a, b, steps, work); break;
    case 3: steps_3(a, b, steps, work); break;
    case 4: steps_4(a, b, steps, work); break;
    case 5: steps_5(a, b, steps, work); break;
    default: steps_6(a, b, steps, work); break;
  }
  for (int32_t r = 0; r < rows; r++) memcpy(c + r * stride, work + r * COLUMNS, bytes);
}
#endif
