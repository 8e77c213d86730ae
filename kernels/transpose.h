/* transpose.h - 16 x 16 numbers of 32 bits turned in registers: x[i] lane j becomes x[j] lane i. */
#ifndef TL_TRANSPOSE_H
#define TL_TRANSPOSE_H

#include "simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

TL_TARGET_AVX512 TL_INLINE void tl_transpose_16(__m512 x[16]) {
  __m512 y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) { /* pairs of rows */
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) /* fours: x[i + n] has k = n, 4 + n, 8 + n, 12 + n of 4 rows */
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
      const __m512d low = _mm512_castps_pd(y[i + h]), high = _mm512_castps_pd(y[i + 2 + h]);
      x[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      x[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
#pragma GCC unroll 4
  for (int n = 0; n < 4; n++) { /* a 4 x 4 transposition of 128-bit pieces */
    const __m512 a = _mm512_shuffle_f32x4(x[n], x[4 + n], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(x[n], x[4 + n], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(x[8 + n], x[12 + n], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(x[8 + n], x[12 + n], 0xdd);
    y[n] = _mm512_shuffle_f32x4(a, c, 0x88);
    y[4 + n] = _mm512_shuffle_f32x4(b, d, 0x88);
    y[8 + n] = _mm512_shuffle_f32x4(a, c, 0xdd);
    y[12 + n] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) x[i] = y[i];
}
#endif

#endif
