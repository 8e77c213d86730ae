/* math_many.c - vector forms of math.h, compiled for each level of the processor.
**
** exp2 has code of its own in registers (math_x86.h); the others are the functions of math.h in
** loops, or steps around exp2.
*/
#include "math.h"

#include "math_x86.h"
#include "simd.h"

/* --- exp2: whole registers, then math.h's own form for the rest ------------------------------- */

TL_INLINE void exp2_rest(const float *x, float *y, int64_t first, int64_t n) {
  for (int64_t i = first; i < n; i++) y[i] = tl_exp2(x[i]);
}

#if defined(__x86_64__)
TL_TARGET_AVX512 static void exp2_avx512(const float *x, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, tl_exp2_x16(_mm512_loadu_ps(x + i)));
  exp2_rest(x, y, i, n);
}

TL_TARGET_BYTES static void exp2_bytes(const float *x, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, tl_exp2_x16_bytes(_mm512_loadu_ps(x + i)));
  exp2_rest(x, y, i, n);
}

TL_TARGET_AVX2 static void exp2_avx2(const float *x, float *y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, tl_exp2_x8(_mm256_loadu_ps(x + i)));
  exp2_rest(x, y, i, n);
}
#endif

static void exp2_portable(const float *x, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = tl_exp2(x[i]);
}

void tl_exp2_many(const float *x, float *y, int64_t n) {
  switch (tl_simd_level()) {
#if defined(__x86_64__)
    case TL_SIMD_AVX512: (tl_simd_bytes() ? exp2_bytes : exp2_avx512)(x, y, n); break;
    case TL_SIMD_AVX2: exp2_avx2(x, y, n); break;
#endif
    default: exp2_portable(x, y, n); break;
  }
}

/* --- built on exp2: the argument, exp2 in place, the rest ------------------------------------- */

enum { PIECE = 512 };

TL_INLINE void sigmoid_argument_body(const float *x, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = -x[i] * TL_LOG2E;
}
TL_SIMD_VERSIONS(sigmoid_argument, (const float *x, float *y, int64_t n), (x, y, n))

TL_INLINE void sigmoid_result_body(const float *e, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = 1.0f / (1.0f + e[i]);
}
TL_SIMD_VERSIONS(sigmoid_result, (const float *e, float *y, int64_t n), (e, y, n))

void tl_sigmoid_many(const float *x, float *y, int64_t n) {
  sigmoid_argument(x, y, n);
  tl_exp2_many(y, y, n);
  sigmoid_result(y, y, n);
}

TL_INLINE void tanh_argument_body(const float *x, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = tl_tanh_argument(x[i]);
}
TL_SIMD_VERSIONS(tanh_argument, (const float *x, float *y, int64_t n), (x, y, n))

TL_INLINE void tanh_result_body(const float *x, const float *e, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = tl_tanh_result(x[i], e[i]);
}
TL_SIMD_VERSIONS(tanh_result, (const float *x, const float *e, float *y, int64_t n), (x, e, y, n))

void tl_tanh_many(const float *x, float *y, int64_t n) {
  float e[PIECE];
  for (int64_t i = 0; i < n; i += PIECE) {
    const int64_t piece = n - i < PIECE ? n - i : PIECE;
    tanh_argument(x + i, e, piece);
    tl_exp2_many(e, e, piece);
    tanh_result(x + i, e, y + i, piece);
  }
}

/* --- no exp2 in it ---------------------------------------------------------------------------- */

TL_INLINE void log2_loop_body(const float *x, float *y, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) y[i] = tl_log2(x[i]);
}
TL_SIMD_VERSIONS(log2_loop, (const float *x, float *y, int64_t n), (x, y, n))

void tl_log2_many(const float *x, float *y, int64_t n) { log2_loop(x, y, n); }
