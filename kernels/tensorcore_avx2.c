/* tensorcore_avx2.c - tl_tensorcore_tile on 8 lanes: 2 x 16 outputs at a time. */
#include "tensorcore_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "simd.h"

enum { COLUMNS = TL_TENSORCORE_COLUMNS, HALF = COLUMNS / 2, LANES = 8, ROWS = 2 };

typedef struct lanes {
  __m256i largest[2]; /* exponent fields of the step, in place: 8 columns and those 16 further on */
  __m256 scale[2];    /* 2^(25 - largest) */
  __m256i sum[2];     /* of the aligned products */
} lanes;

/* The largest exponents of one row, from those of its products (16 bits) and of C. */
TL_TARGET_AVX2 TL_INLINE void align(__m256i products, const float *c, lanes *out) {
  const __m256i field_mask = _mm256_set1_epi32(0x7f800000);
  const __m256i low = _mm256_set1_epi32((TL_TENSORCORE_FIELD_LOW - 1) << 23);
  const __m256i half[2] = {_mm256_slli_epi32(products, 16),
                           _mm256_and_si256(products, _mm256_set1_epi32(-65536))};
  for (int v = 0; v < 2; v++) {
    const __m256i bits = _mm256_load_si256((const __m256i *)(c + HALF * v));
    const __m256i field = _mm256_and_si256(bits, field_mask);
    out->largest[v] = _mm256_max_epi32(_mm256_max_epi32(field, low), half[v]);
    out->scale[v] = _mm256_castsi256_ps(
        _mm256_sub_epi32(_mm256_set1_epi32((int32_t)(279u << 23)), out->largest[v]));
    out->sum[v] = _mm256_setzero_si256();
  }
}

/* x + y cut toward zero to 24 bits: exact in f64, whose lower 29 bits are then cleared. */
TL_TARGET_AVX2 TL_INLINE __m128 cut(__m128i x, __m128i y) {
  const __m256d mask = _mm256_castsi256_pd(_mm256_set1_epi64x(-(1ll << 29)));
  const __m256d sum = _mm256_add_pd(_mm256_cvtepi32_pd(x), _mm256_cvtepi32_pd(y));
  return _mm256_cvtpd_ps(_mm256_and_pd(sum, mask));
}

/* Adds C, cuts to f32 and writes c; v is the half of the columns. */
TL_TARGET_AVX2 TL_INLINE void finish(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                                     int32_t row, int32_t column, int v, const lanes *l,
                                     __m256i products, float *c) {
  const __m256 start = _mm256_load_ps(c);
  const __m256i aligned = _mm256_cvttps_epi32(_mm256_mul_ps(start, l->scale[v]));
  const __m128 lower = cut(_mm256_castsi256_si128(l->sum[v]), _mm256_castsi256_si128(aligned));
  const __m128 upper =
      cut(_mm256_extracti128_si256(l->sum[v], 1), _mm256_extracti128_si256(aligned, 1));
  const __m256i unit = _mm256_sub_epi32(l->largest[v], _mm256_set1_epi32(25 << 23));
  const __m256 result = _mm256_mul_ps(_mm256_set_m128(upper, lower), _mm256_castsi256_ps(unit));
  const __m256i low = _mm256_set1_epi32(TL_TENSORCORE_FIELD_LOW << 23);
  const __m256i high = _mm256_set1_epi32(TL_TENSORCORE_FIELD_HIGH << 23);
  const __m256i outside = _mm256_or_si256(_mm256_cmpgt_epi32(low, l->largest[v]),
                                          _mm256_cmpgt_epi32(l->largest[v], high));
  uint32_t bad = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(outside));
  if (__builtin_expect(bad != 0, 0)) {
    const __m256i half = v == 0 ? _mm256_slli_epi32(products, 16) : products;
    const __m256i negligible = _mm256_cmpgt_epi32(
        _mm256_set1_epi32((int32_t)((uint32_t)TL_TENSORCORE_NEGLIGIBLE << 16)), half);
    const __m256 zero = _mm256_cmp_ps(start, _mm256_setzero_ps(), _CMP_EQ_OQ);
    bad &= ~(uint32_t)_mm256_movemask_ps(_mm256_and_ps(zero, _mm256_castsi256_ps(negligible)));
    float fixed[LANES] __attribute__((aligned(32)));
    _mm256_store_ps(fixed, result);
    if (bad != 0) tl_tensorcore_repair(a, b, row, column, bad, c, fixed);
    _mm256_store_ps(c, _mm256_load_ps(fixed));
    return;
  }
  _mm256_store_ps(c, result);
}

/* One step of `rows` rows (a constant where this is used) from `row` on, of the columns
** column .. column + 7 and those 16 further on; c is (rows, 32) from there. */
TL_TARGET_AVX2 TL_INLINE void step_rows(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                                        int32_t row, int32_t column, float *c, const int rows) {
  __m256i exponent[ROWS];
  lanes l[ROWS];
#pragma GCC unroll 2
  for (int r = 0; r < rows; r++) exponent[r] = _mm256_set1_epi16(INT16_MIN);
  for (int k = 0; k < TL_TENSORCORE_STEP; k++) {
    const __m256i right = _mm256_load_si256((const __m256i *)&b->exponent[k][column]);
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
      const __m256i left = _mm256_set1_epi32((int32_t)a->exponent[k][row + r]);
      exponent[r] = _mm256_max_epi16(exponent[r], _mm256_adds_epi16(left, right));
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < rows; r++) align(exponent[r], c + r * COLUMNS, &l[r]);
  for (int k = 0; k < TL_TENSORCORE_STEP; k++) {
    const __m256 right[2] = {_mm256_load_ps(&b->value[k][column]),
                             _mm256_load_ps(&b->value[k][HALF + column])};
#pragma GCC unroll 2
    for (int r = 0; r < rows; r++) {
      const __m256 left = _mm256_broadcast_ss(&a->value[k][row + r]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) {
        const __m256 product = _mm256_mul_ps(_mm256_mul_ps(left, right[v]), l[r].scale[v]);
        l[r].sum[v] = _mm256_add_epi32(l[r].sum[v], _mm256_cvttps_epi32(product));
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      finish(a, b, row + r, column + HALF * v, v, &l[r], exponent[r], c + r * COLUMNS + HALF * v);
}

TL_TARGET_AVX2 static void step(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                                int32_t rows, float *c) {
  for (int32_t row = 0; row < rows; row += ROWS)
    for (int32_t column = 0; column < HALF; column += LANES) {
      float *corner = c + row * COLUMNS + column;
      if (rows - row == 1)
        step_rows(a, b, row, column, corner, 1);
      else
        step_rows(a, b, row, column, corner, 2);
    }
}

void tl_tensorcore_tile_avx2(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                             int64_t steps, int32_t rows, int32_t columns, float *c, int64_t stride,
                             int32_t resume) {
  float work[TL_TENSORCORE_ROWS * COLUMNS] __attribute__((aligned(64))) = {0};
  const size_t bytes = sizeof *c * (size_t)columns;
  if (resume)
    for (int32_t r = 0; r < rows; r++) memcpy(work + r * COLUMNS, c + r * stride, bytes);
  for (int64_t s = 0; s < steps; s++) {
    if (__builtin_expect(a[s].wide | b[s].wide, 0)) {
      tl_tensorcore_step_tile(&a[s], &b[s], rows, COLUMNS, work, COLUMNS);
    } else {
      step(&a[s], &b[s], rows, work);
    }
  }
  for (int32_t r = 0; r < rows; r++) memcpy(c + r * stride, work + r * COLUMNS, bytes);
}
#endif
