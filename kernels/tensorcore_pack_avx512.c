/* tensorcore_pack_avx512.c - packing for tensor core steps, 16 numbers at a time.
**
** A number travels as one 32-bit word, bf16 above and packed exponent below, so that turning a
** block moves both.
*/
#include "tensorcore_tile.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "simd.h"
#include "transpose.h"

enum { STEP = TL_TENSORCORE_STEP, LANES = 16 };

/* Words of 16 bf16 numbers; `bias` is 0, or 128 * 127. Collects the largest magnitudes. */
TL_TARGET_AVX512 TL_INLINE __m512i encode(__m256i x, int16_t bias, __m256i *largest) {
  const __m256i field = _mm256_and_si256(x, _mm256_set1_epi16(0x7f80));
  const __m256i normal = _mm256_max_epi16(field, _mm256_set1_epi16(128)); /* subnormals: -126 */
  const __m256i exponent = _mm256_sub_epi16(normal, _mm256_set1_epi16(bias));
  const __mmask16 zero = _mm256_testn_epi16_mask(x, _mm256_set1_epi16(0x7fff));
  const __m256i packed = _mm256_mask_blend_epi16(zero, exponent, _mm256_set1_epi16(INT16_MIN));
  *largest = _mm256_max_epi16(*largest, field);
  return _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16),
                         _mm512_cvtepu16_epi32(packed));
}

TL_TARGET_AVX512 TL_INLINE uint32_t is_wide(__m256i largest) {
  return _mm256_cmpge_epi16_mask(largest, _mm256_set1_epi16(TL_TENSORCORE_FIELD_WIDE << 7)) != 0;
}

static inline __mmask16 mask_of(int64_t count) {
  return (__mmask16)(count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1);
}

TL_TARGET_AVX512 TL_INLINE __m512i value_of(__m512i words) {
  return _mm512_and_si512(words, _mm512_set1_epi32(-65536));
}

TL_TARGET_AVX512 TL_INLINE void store_rows(__m512i words, tl_tensorcore_rows *step, int64_t k) {
  const __m512i exponent = _mm512_and_si512(words, _mm512_set1_epi32(0xffff));
  const __m512i twice = _mm512_or_si512(exponent, _mm512_slli_epi32(words, 16));
  _mm256_store_si256((__m256i *)step->value[k], _mm512_castsi512_si256(value_of(words)));
  _mm256_store_si256((__m256i *)step->exponent[k], _mm512_castsi512_si256(twice));
}

TL_TARGET_AVX512 TL_INLINE void store_columns(__m512i lower, __m512i upper,
                                              tl_tensorcore_columns *step, int64_t k) {
  const __m512i exponent = _mm512_and_si512(lower, _mm512_set1_epi32(0xffff));
  const __m512i both = _mm512_or_si512(exponent, _mm512_slli_epi32(upper, 16));
  _mm512_store_si512(step->value[k], value_of(lower));
  _mm512_store_si512(step->value[k] + LANES, value_of(upper));
  _mm512_store_si512(step->exponent[k], both);
}

/* Words of k .. k + 15 of `count` items that lie along k, turned: x[i] holds k + i of all items. */
TL_TARGET_AVX512 TL_INLINE void load_turned(tl_tensorcore_source source, int32_t count, int64_t k,
                                            __mmask16 mask, int16_t bias, __m256i *largest,
                                            __m512i x[LANES]) {
  __m512 y[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) {
    const uint16_t *data = source.data + i * source.stride + k;
    const __m256i row = i < count ? _mm256_maskz_loadu_epi16(mask, data) : _mm256_setzero_si256();
    y[i] = _mm512_castsi512_ps(encode(row, bias, largest));
  }
  tl_transpose_16(y);
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) x[i] = _mm512_castps_si512(y[i]);
}

TL_TARGET_AVX512 void tl_tensorcore_pack_rows_avx512(tl_tensorcore_source source, int32_t count,
                                                     int64_t k_count, int64_t position,
                                                     tl_tensorcore_rows *out) {
  const int16_t bias = 127 * 128;
  if (source.k_stride != 1) {
    const __mmask16 mask = mask_of(count);
    for (int64_t k = 0; k < k_count; k++) {
      tl_tensorcore_rows *step = &out[(position + k) / STEP];
      __m256i largest = _mm256_setzero_si256();
      const __m256i x = _mm256_maskz_loadu_epi16(mask, source.data + k * source.k_stride);
      store_rows(encode(x, bias, &largest), step, (position + k) % STEP);
      step->wide |= is_wide(largest);
    }
    return;
  }
  for (int64_t k = 0; k < k_count; k += LANES) {
    const int64_t length = k_count - k < LANES ? k_count - k : LANES;
    __m256i largest = _mm256_setzero_si256();
    __m512i x[LANES];
    load_turned(source, count, k, mask_of(length), bias, &largest, x);
    for (int64_t i = 0; i < length; i++)
      store_rows(x[i], &out[(position + k + i) / STEP], (position + k + i) % STEP);
    out[(position + k) / STEP].wide |= is_wide(largest); /* the 16 may lie in two steps */
    out[(position + k + length - 1) / STEP].wide |= is_wide(largest);
  }
}

TL_TARGET_AVX512 void tl_tensorcore_pack_columns_avx512(tl_tensorcore_source source, int32_t count,
                                                        int64_t k_count, int64_t position,
                                                        tl_tensorcore_columns *out) {
  if (source.k_stride != 1) {
    for (int64_t k = 0; k < k_count; k++) {
      tl_tensorcore_columns *step = &out[(position + k) / STEP];
      const uint16_t *data = source.data + k * source.k_stride;
      __m256i largest = _mm256_setzero_si256();
      const __m256i lower = _mm256_maskz_loadu_epi16(mask_of(count), data);
      const __m256i upper = _mm256_maskz_loadu_epi16(mask_of(count - LANES), data + LANES);
      store_columns(encode(lower, 0, &largest), encode(upper, 0, &largest), step,
                    (position + k) % STEP);
      step->wide |= is_wide(largest);
    }
    return;
  }
  const tl_tensorcore_source second = {source.data + LANES * source.stride, source.stride, 1};
  for (int64_t k = 0; k < k_count; k += LANES) {
    const int64_t length = k_count - k < LANES ? k_count - k : LANES;
    __m256i largest = _mm256_setzero_si256();
    __m512i lower[LANES], upper[LANES];
    load_turned(source, count, k, mask_of(length), 0, &largest, lower);
    load_turned(second, count - LANES, k, mask_of(length), 0, &largest, upper);
    for (int64_t i = 0; i < length; i++)
      store_columns(lower[i], upper[i], &out[(position + k + i) / STEP], (position + k + i) % STEP);
    out[(position + k) / STEP].wide |= is_wide(largest);
    out[(position + k + length - 1) / STEP].wide |= is_wide(largest);
  }
}
#endif
