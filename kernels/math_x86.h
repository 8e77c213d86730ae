/* math_x86.h - tl_exp2 of math.h on 16 lanes (AVX-512) and 8 lanes (AVX2), with the same bits.
**
** The steps are those of math.h. Tables are looked up in registers (AVX-512) or by gathers (AVX2),
** and products of small numbers use the 16-bit multiplier.
*/
#ifndef TL_MATH_X86_H
#define TL_MATH_X86_H

#include "math.h"
#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Entries of a table of 64 by bits 17..22 of t: two pairs of registers, bit 22 picks the pair. */
TL_TARGET_AVX512 TL_INLINE __m512i tl_lookup_x16(const uint32_t *table, __m512i index,
                                                 __mmask16 upper) {
  const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 16);
  const __m512i c = _mm512_loadu_si512(table + 32), d = _mm512_loadu_si512(table + 48);
  return _mm512_mask_blend_epi32(upper, _mm512_permutex2var_epi32(a, index, b),
                                 _mm512_permutex2var_epi32(c, index, d));
}

/* S(l) of math.h. The terms g, g >> 1, .. g >> 6 (g has 7 bits, h 8) become bytes: four copies of
** g, 7 bits apart, hold g >> k in byte k, below bits to cut off. Bits 8..2 of l pick terms. */
TL_TARGET_AVX512 TL_INLINE __m512i tl_exp2_square_x16(__m512i l) {
  const __m512i h = _mm512_srli_epi32(l, 9), g = _mm512_srli_epi32(l, 10);
  const __m512i sum = _mm512_srli_epi32(_mm512_madd_epi16(h, h), 1);
  const __m512i twice = _mm512_or_si512(g, _mm512_slli_epi32(g, 7));
  const __m512i copies = _mm512_or_si512(twice, _mm512_slli_epi32(twice, 14));
  const __m512i first = _mm512_and_si512(copies, _mm512_set1_epi32(0x0f1f3f7f));
  const __m512i second =
      _mm512_and_si512(_mm512_srli_epi32(first, 4), _mm512_set1_epi32(0x00010307));
  const __m512i lowest = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
  const __m512i bits = _mm512_shuffle_epi8(_mm512_srli_epi32(l, 2), lowest); /* in each byte */
  const __mmask64 pick_first = _mm512_test_epi8_mask(bits, _mm512_set1_epi32(0x08102040));
  const __mmask64 pick_second = _mm512_test_epi8_mask(bits, _mm512_set1_epi32(0x00010204));
  __m512i terms = _mm512_maskz_mov_epi8(pick_first, first);
  terms = _mm512_mask_add_epi8(terms, pick_second, terms, second);
  const __m512i pairs = _mm512_maddubs_epi16(terms, _mm512_set1_epi8(1));
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

/* The same with VBMI and VNNI: bits of any place become bytes in one instruction (each byte of the
** first operand names the place, of two lanes at once), and bytes are added up in one. */
TL_TARGET_BYTES TL_INLINE __m512i tl_exp2_square_x16_bytes(__m512i l) {
  const __m512i h = _mm512_srli_epi32(l, 9);
  const __m512i sum = _mm512_srli_epi32(_mm512_madd_epi16(h, h), 1);
  const __m512i first = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2d2c2b2a0d0c0b0a), l);
  const __m512i second = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x3f302f2e1f100f0e), l);
  const __m512i bits = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x2222222202020202), l);
  const __mmask64 pick_first = _mm512_test_epi8_mask(bits, _mm512_set1_epi32(0x08102040));
  const __mmask64 pick_second = _mm512_test_epi8_mask(bits, _mm512_set1_epi32(0x00010204));
  __m512i terms = _mm512_maskz_mov_epi8(pick_first, first);
  terms = _mm512_mask_add_epi8(terms, pick_second, terms, second);
  return _mm512_dpbusd_epi32(sum, terms, _mm512_set1_epi8(1));
}

/* t of math.h: whole part and fraction, 9.23. */
TL_TARGET_AVX512 TL_INLINE __m512i tl_exp2_fixed_x16(__m512 x) {
  const __m512i fraction = _mm512_set1_epi32(0x7fffff);
  const __m512 size = _mm512_min_ps(_mm512_abs_ps(x), _mm512_set1_ps(128.0f)); /* NaN: 128 */
  const __m512i q = _mm512_cvttps_epi32(_mm512_mul_ps(size, _mm512_set1_ps(8388608.0f)));
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
  const __mmask16 whole = _mm512_mask_testn_epi32_mask(negative, q, fraction);
  const __m512i t = _mm512_mask_xor_epi32(q, negative, q, _mm512_set1_epi32(-1));
  return _mm512_mask_add_epi32(t, whole, t, _mm512_set1_epi32(1));
}

/* The result from t and low = c2 * S(l) + 6114. By nested floors the mantissa is
** (c0 + ((c1 * (l >> 1) + ((low + c1 * (l & 1)) >> 1)) >> 12)) >> 2, and nothing overflows. */
TL_TARGET_AVX512 TL_INLINE __m512 tl_exp2_result_x16(__m512 x, __m512i t, __m512i l, __m512i c0,
                                                     __m512i c1, __m512i low) {
  const __mmask16 odd = _mm512_test_epi32_mask(t, _mm512_set1_epi32(1));
  low = _mm512_srli_epi32(_mm512_mask_add_epi32(low, odd, low, c1), 1);
  const __m512i high = _mm512_mullo_epi32(c1, _mm512_srli_epi32(l, 1));
  const __m512i sum = _mm512_srli_epi32(_mm512_add_epi32(high, low), 12);
  const __m512i mantissa = _mm512_srli_epi32(_mm512_add_epi32(c0, sum), 2);
  const __m512i exponent = _mm512_add_epi32(_mm512_andnot_si512(_mm512_set1_epi32(0x7fffff), t),
                                            _mm512_set1_epi32(127 << 23));
  const __mmask16 normal = _mm512_cmpge_epi32_mask(t, _mm512_set1_epi32(-126 * (1 << 23)));
  __m512i bits = _mm512_maskz_add_epi32(normal, exponent, mantissa);
  const __mmask16 special = _mm512_cmp_ps_mask(x, _mm512_set1_ps(128.0f), _CMP_NLT_UQ);
  if (__builtin_expect(special != 0, 0)) {
    bits = _mm512_mask_mov_epi32(bits, special, _mm512_set1_epi32(0x7f800000));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_set1_epi32((int)TL_NAN_BITS));
  }
  return _mm512_castsi512_ps(bits);
}

/* `square` and `add_product(low, c2, S)` are what the two versions do differently. */
#define TL_EXP2_X16(square, add_product)                                         \
  const __m512i t = tl_exp2_fixed_x16(x), index = _mm512_srli_epi32(t, 17);      \
  const __m512i l = _mm512_and_si512(t, _mm512_set1_epi32(0x1ffff));             \
  const __mmask16 upper = _mm512_test_epi32_mask(t, _mm512_set1_epi32(1 << 22)); \
  const __m512i c0 = tl_lookup_x16(tl_exp2_base, index, upper);                  \
  const __m512i c12 = tl_lookup_x16(tl_exp2_slope, index, upper);                \
  const __m512i c2 = _mm512_and_si512(c12, _mm512_set1_epi32(0xffff));           \
  const __m512i low = add_product(_mm512_set1_epi32(6114), c2, square(l));       \
  return tl_exp2_result_x16(x, t, l, c0, _mm512_srli_epi32(c12, 16), low)
#define TL_MADD_X16(sum, a, b) _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))

/* c2 and S(l) are below 2^15. */
TL_TARGET_AVX512 TL_INLINE __m512 tl_exp2_x16(__m512 x) {
  TL_EXP2_X16(tl_exp2_square_x16, TL_MADD_X16);
}
TL_TARGET_BYTES TL_INLINE __m512 tl_exp2_x16_bytes(__m512 x) {
  TL_EXP2_X16(tl_exp2_square_x16_bytes, _mm512_dpwssd_epi32);
}
#undef TL_EXP2_X16
#undef TL_MADD_X16

TL_TARGET_AVX2 TL_INLINE __m256i tl_exp2_square_x8(__m256i l) {
  const __m256i h = _mm256_srli_epi32(l, 9), g = _mm256_srli_epi32(l, 10);
  __m256i sum = _mm256_srli_epi32(_mm256_madd_epi16(h, h), 1);
/* Bit 8 - shift of l moves to the sign and spreads over the lane. */
#define TERM(shift)                                      \
  sum = _mm256_add_epi32(                                \
      sum, _mm256_and_si256(_mm256_srli_epi32(g, shift), \
                            _mm256_srai_epi32(_mm256_slli_epi32(l, 23 + (shift)), 31)))
  TERM(0), TERM(1), TERM(2), TERM(3), TERM(4), TERM(5), TERM(6);
#undef TERM
  return sum;
}

TL_TARGET_AVX2 TL_INLINE __m256 tl_exp2_x8(__m256 x) {
  const __m256i fraction = _mm256_set1_epi32(0x7fffff), three = _mm256_set1_epi32(3);
  const __m256 positive = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
  const __m256 size = _mm256_min_ps(positive, _mm256_set1_ps(128.0f)); /* NaN: 128 */
  const __m256i q = _mm256_cvttps_epi32(_mm256_mul_ps(size, _mm256_set1_ps(8388608.0f)));
  const __m256i negative = _mm256_srai_epi32(_mm256_castps_si256(x), 31);
  const __m256i whole = _mm256_cmpeq_epi32(_mm256_and_si256(q, fraction), _mm256_setzero_si256());
  const __m256i t =
      _mm256_sub_epi32(_mm256_xor_si256(q, negative), _mm256_and_si256(negative, whole));
  const __m256i l = _mm256_and_si256(t, _mm256_set1_epi32(0x1ffff));
  const __m256i index = _mm256_srli_epi32(_mm256_and_si256(t, fraction), 17);
  const __m256i c0 = _mm256_i32gather_epi32((const int *)tl_exp2_base, index, 4);
  const __m256i c12 = _mm256_i32gather_epi32((const int *)tl_exp2_slope, index, 4);
  const __m256i c1 = _mm256_srli_epi32(c12, 16);
  const __m256i c2 = _mm256_and_si256(c12, _mm256_set1_epi32(0xffff));
  __m256i low = _mm256_slli_epi32(_mm256_and_si256(c0, three), 13);
  low = _mm256_add_epi32(low, _mm256_set1_epi32(6114));
  low = _mm256_add_epi32(low, _mm256_madd_epi16(c2, tl_exp2_square_x8(l)));
  low = _mm256_add_epi32(low, _mm256_mullo_epi32(c1, _mm256_and_si256(l, three)));
  const __m256i high = _mm256_mullo_epi32(c1, _mm256_srli_epi32(l, 2));
  const __m256i sum = _mm256_srli_epi32(_mm256_add_epi32(high, _mm256_srli_epi32(low, 2)), 13);
  const __m256i mantissa = _mm256_add_epi32(_mm256_srli_epi32(c0, 2), sum);
  const __m256i exponent =
      _mm256_add_epi32(_mm256_andnot_si256(fraction, t), _mm256_set1_epi32(127 << 23));
  const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(-126 * (1 << 23)), t);
  const __m256i huge = _mm256_cmpgt_epi32(t, _mm256_set1_epi32((1 << 30) - 1));
  __m256i bits = _mm256_andnot_si256(tiny, _mm256_add_epi32(exponent, mantissa));
  bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7f800000), huge);
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32((int)TL_NAN_BITS));
  return _mm256_blendv_ps(_mm256_castsi256_ps(bits), nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
#endif

#endif
