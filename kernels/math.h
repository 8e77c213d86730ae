/* math.h - the elementary functions, as explicit steps that C and CUDA share.
**
** Every step is an IEEE operation in f32 (+ - * / sqrtf, fmaf with one rounding) or integer work,
** so each function has one result for each input on every machine. libm is not used: its last bits
** differ between versions. Contraction must be off (-ffp-contract=off, --fmad=false).
**
**   tl_exp2(x)     MUFU.EX2, the exponential unit of NVIDIA GPUs (ex2.approx.ftz.f32), bit for bit:
**
**       |x| in 7.23 fixed point, cut towards zero      e = its whole part, f = its fraction
**           [ seven bits ] . [ six bits: segment s ][ 17 bits: l ]
**       mantissa = (c0[s] * 2^13 + c1[s] * l + c2[s] * S(l) + 30690) >> 15
**       S(l) ~ l * l / 2^19: the partial products of l * l in the columns from 2^19 up, no others
**
**     A negative x with a fraction is complemented (~), a whole negative one is negated. Results
**     below 2^-126 are +0, |x| >= 128 gives +0 or infinity, NaN gives 0x7fffffff.
**   tl_exp(x)      tl_exp2(x * log2e)              tl_log(x)    tl_log2(x) * ln2
**   tl_log2(x)     x = 2^e * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); a polynomial of degree 10 in f
**   tl_sigmoid(x)  1 / (1 + tl_exp2(-x * log2e))   tl_rsqrt(x)  1 / sqrtf(x)
**   tl_tanh(x)     |x| < 0.625: an odd polynomial; else 1 - 2 / (tl_exp2(2 |x| log2e) + 1)
**   tl_sin, tl_cos k = round(x * 2/pi), r = x - k * pi/2 with pi/2 in three floats, polynomials in
**                  r; for |x| <= 2^21, beyond that NaN
**
** A NaN result of exp2, log2, tanh, sin and cos is always 0x7fffffff.
**
** Largest errors found against f64, in units in the last place (every 211th f32 of the range):
**
**   exp2   |x| <= 126    2.04        exp      |x| <= 1    2.3     tanh   all            1.65
**   log2   all           1.03        exp      |x| <= 16   14.3    sin    |x| <= 2^21    1.54
**   log    all           1.76        sigmoid  |x| <= 16   14.3    cos    |x| <= 2^21    1.55
**
** exp and sigmoid round the product x * log2e, so their error grows with |x|, as in the GPU's
** softmax.
*/
#ifndef TL_MATH_H
#define TL_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define TL_MATH static __device__ __forceinline__
TL_MATH uint32_t tl_math_bits(float value) { return __float_as_uint(value); }
TL_MATH float tl_math_float(uint32_t bits) { return __uint_as_float(bits); }
#else
/* Inlined always: inside a function with a wider target, fmaf becomes that target's instruction. */
#define TL_MATH static inline __attribute__((always_inline, unused))
TL_MATH uint32_t tl_math_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TL_MATH float tl_math_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
#endif

#define TL_LOG2E 0x1.715476p+0f     /* f32 nearest to log2(e) */
#define TL_LOG2E_LOW 0x1.4ae0cp-26f /* log2(e) - TL_LOG2E */
#define TL_LN2 0x1.62e43p-1f        /* f32 nearest to ln(2) */
#define TL_NAN_BITS 0x7fffffffu     /* the one NaN that these functions return */

#if defined(__CUDACC__)
TL_MATH float tl_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
/* Per segment of 1/64: c0 + 3, where 3 * 2^13 is the whole part of 30690, and c1 * 2^16 + c2. */
static const uint32_t tl_exp2_base[64] = {
    0x00000003, 0x0005934a, 0x000b361e, 0x0010e8a5, 0x0016ab12, 0x001c7d89, 0x0022603c, 0x00285359,
    0x002e570c, 0x00346b81, 0x003a90e8, 0x0040c775, 0x00470f51, 0x004d68b0, 0x0053d3c3, 0x005a50b9,
    0x0060dfc5, 0x0067811a, 0x006e34e9, 0x0074fb6a, 0x007bd4cc, 0x0082c148, 0x0089c10e, 0x0090d459,
    0x0097fb5d, 0x009f3651, 0x00a6856d, 0x00ade8ea, 0x00b560fe, 0x00bcede5, 0x00c48fda, 0x00cc4713,
    0x00d413cf, 0x00dbf64b, 0x00e3eec1, 0x00ebfd6d, 0x00f42291, 0x00fc5e6a, 0x0104b137, 0x010d1b36,
    0x01159cab, 0x011e35d6, 0x0126e6fa, 0x012fb057, 0x01389233, 0x01418cd2, 0x014aa079, 0x0153cd6d,
    0x015d13f7, 0x0166745a, 0x016feee1, 0x017983d6, 0x01833380, 0x018cfe2a, 0x0196e41f, 0x01a0e5ad,
    0x01ab0320, 0x01b53cc4, 0x01bf92ea, 0x01ca05e0, 0x01d495f8, 0x01df4382, 0x01ea0ecf, 0x01f4f834,
};
static const uint32_t tl_exp2_slope[64] = {
    0x58b901ee, 0x59b001f5, 0x5aaa01fa, 0x5ba701ff, 0x5ca60206, 0x5da90209, 0x5eae020f, 0x5fb60214,
    0x60c0021d, 0x61ce0222, 0x62df0227, 0x63f2022f, 0x65090234, 0x66230238, 0x673f0241, 0x685f0247,
    0x6982024d, 0x6aa80254, 0x6bd20258, 0x6cfe0261, 0x6e2e0267, 0x6f61026e, 0x70980273, 0x71d20279,
    0x730f0281, 0x74500287, 0x7594028f, 0x76dc0295, 0x7827029e, 0x797602a5, 0x7ac802ae, 0x7c1f02b3,
    0x7d7902bb, 0x7ed702c1, 0x803802cb, 0x819e02d1, 0x830702da, 0x847402e3, 0x85e502ec, 0x875b02f1,
    0x88d402fb, 0x8a510305, 0x8bd3030b, 0x8d590313, 0x8ee3031c, 0x90710326, 0x9204032d, 0x939b0336,
    0x95360341, 0x96d6034a, 0x987b0351, 0x9a24035a, 0x9bd10366, 0x9d84036d, 0x9f3b0377, 0xa0f70380,
    0xa2b7038d, 0xa47d0395, 0xa648039d, 0xa81703aa, 0xa9ec03b2, 0xabc503bf, 0xada403c9, 0xaf8803d4,
};

/* S(l): the columns of l * l from 2^19 up, in units of 2^19. */
TL_MATH uint32_t tl_exp2_square(uint32_t l) {
  const uint32_t h = l >> 9, g = l >> 10; /* bits 9..16 and 10..16 */
  uint32_t sum = h * h >> 1;              /* among bits 9..16; the shift drops column 18 */
  sum += g & (0u - (l >> 8 & 1u));        /* bits 8..2 times the bits that reach column 19 */
  sum += g >> 1 & (0u - (l >> 7 & 1u));
  sum += g >> 2 & (0u - (l >> 6 & 1u));
  sum += g >> 3 & (0u - (l >> 5 & 1u));
  sum += g >> 4 & (0u - (l >> 4 & 1u));
  sum += g >> 5 & (0u - (l >> 3 & 1u));
  sum += g >> 6 & (0u - (l >> 2 & 1u));
  return sum;
}

/* No branches and 32-bit integers only, so that a loop over it becomes vector code. */
TL_MATH float tl_exp2(float x) {
  const float size = fabsf(x) < 128.0f ? fabsf(x) : 128.0f;
  const int32_t q = (int32_t)(size * 8388608.0f); /* 7.23; the product is exact, the cast cuts */
  const int32_t negative = x < 0.0f ? -1 : 0, whole = (q & 0x7fffff) == 0 ? 1 : 0;
  const int32_t t = (q ^ negative) + (negative & whole);
  const int32_t e = t >> 23;
  const uint32_t f = (uint32_t)t & 0x7fffffu, l = f & 0x1ffffu;
  const uint32_t c0 = tl_exp2_base[f >> 17], c12 = tl_exp2_slope[f >> 17];
  const uint32_t c1 = c12 >> 16, c2 = c12 & 0xffffu;
  /* Nested floors in place of one 64-bit sum: 30690 = 3 * 2^13 + 6114, no step overflows. */
  const uint32_t low = ((c0 & 3u) << 13) + 6114u + c2 * tl_exp2_square(l) + c1 * (l & 3u);
  const uint32_t mantissa = (c0 >> 2) + ((c1 * (l >> 2) + (low >> 2)) >> 13);
  uint32_t bits = ((uint32_t)(e + 127) << 23) + mantissa;
  bits = e < -126 ? 0u : bits;
  bits = e > 127 ? 0x7f800000u : bits;
  bits = x != x ? TL_NAN_BITS : bits;
  return tl_math_float(bits);
}
#endif

TL_MATH float tl_exp(float x) { return tl_exp2(x * TL_LOG2E); }

TL_MATH float tl_sigmoid(float x) { return 1.0f / (1.0f + tl_exp2(-x * TL_LOG2E)); }

TL_MATH float tl_rsqrt(float x) { return 1.0f / sqrtf(x); }

/* 1 / x of 1 <= x <= 2^124, rounded to nearest as a division is, but without its branches. All
** 2^23 fractions were tried (tests/support/reciprocal.c). */
TL_MATH float tl_reciprocal(float x) {
  float y = tl_math_float(0x7ef2b400u - tl_math_bits(x));
  y = y * fmaf(-x, y, 0x1.005edcp+1f); /* right to 0.003 */
  float r = fmaf(-x, y, 1.0f);
  y = fmaf(y, fmaf(r, r, r), y); /* to 6e-8 */
  r = fmaf(-x, y, 1.0f);
  return fmaf(y, r, y);
}

/* Subnormals count in full; +-0 gives -infinity, negative values and NaN give NaN. */
TL_MATH float tl_log2(float x) {
  const int subnormal = x < 0x1p-126f;
  const uint32_t bits = tl_math_bits(subnormal ? x * 0x1p24f : x);
  /* 0x3f3504f3 is sqrt(1/2): what is above its mantissa counts to the next power of two. */
  const int32_t e = (int32_t)(bits - 0x3f3504f3u) >> 23;
  const float f = tl_math_float(bits - ((uint32_t)e << 23)) - 1.0f;
  float q = -0x1.ce5038p-4f; /* (log2(1 + f) - f log2(e)) / f^2 */
  q = fmaf(q, f, 0x1.803f22p-3f);
  q = fmaf(q, f, -0x1.864562p-3f);
  q = fmaf(q, f, 0x1.a27ab2p-3f);
  q = fmaf(q, f, -0x1.eaccbap-3f);
  q = fmaf(q, f, 0x1.27822ep-2f);
  q = fmaf(q, f, -0x1.715a38p-2f);
  q = fmaf(q, f, 0x1.ec7086p-2f);
  q = fmaf(q, f, -0x1.715472p-1f);
  const float tail = fmaf(f * f, q, f * TL_LOG2E_LOW);
  const float whole = (float)(subnormal ? e - 24 : e);
  float y = whole + fmaf(f, TL_LOG2E, tail);
  y = x == 0.0f ? tl_math_float(0xff800000u) : y;
  y = x > 0x1.fffffep127f ? x : y;
  return x >= 0.0f ? y : tl_math_float(TL_NAN_BITS);
}

TL_MATH float tl_log(float x) { return tl_log2(x) * TL_LN2; }

/* tanh in two halves, so that vector code can put its own exp2 between them: the argument of exp2,
** and the result from e = exp2 of it. */
TL_MATH float tl_tanh_argument(float x) { return (fabsf(x) + fabsf(x)) * TL_LOG2E; }

TL_MATH float tl_tanh_result(float x, float e) {
  const float size = fabsf(x), square = size * size;
  float p = -0x1.76ac2p-8f; /* (tanh(x) / x - 1) / x^2 in x^2 */
  p = fmaf(p, square, 0x1.5256d8p-6f);
  p = fmaf(p, square, -0x1.b8444ap-5f);
  p = fmaf(p, square, 0x1.110768p-3f);
  p = fmaf(p, square, -0x1.555534p-2f);
  const float near_zero = fmaf(size * square, p, size);
  const float outside = 1.0f - 2.0f / (e + 1.0f);
  /* Chosen by masks: a branch here would keep loops from becoming vector code. */
  const uint32_t mask = size < 0.625f ? 0xffffffffu : 0u, nan = x != x ? TL_NAN_BITS : 0u;
  const uint32_t y = (tl_math_bits(near_zero) & mask) | (tl_math_bits(outside) & ~mask);
  return tl_math_float(y | (tl_math_bits(x) & 0x80000000u & ~nan) | nan);
}

TL_MATH float tl_tanh(float x) { return tl_tanh_result(x, tl_exp2(tl_tanh_argument(x))); }

/* r in [-pi/4, pi/4] and the quadrant k of x. Adding 1.5 * 2^23 rounds to a whole number. The
** first step of r is exact, the second exact where r is tiny: near a multiple of pi/2 nothing is
** lost. */
TL_MATH float tl_quarter_turns(float x, uint32_t *k) {
  const float shifted = fmaf(x, 0x1.45f306p-1f, 12582912.0f);
  const float whole = shifted - 12582912.0f;
  float r = fmaf(whole, -0x1.921fb6p+0f, x);
  r = fmaf(whole, 0x1.777a5cp-25f, r);
  r = fmaf(whole, 0x1.ee59dap-50f, r);
  *k = tl_math_bits(shifted) & 3u;
  return r;
}

/* sin(x + turn * pi/2). */
TL_MATH float tl_sin_turned(float x, uint32_t turn) {
  uint32_t k;
  const float r = tl_quarter_turns(x, &k), square = r * r;
  float s = 0x1.6cd838p-19f; /* (sin(r) / r - 1) / r^2 in r^2 */
  s = fmaf(s, square, -0x1.a00f9ep-13f);
  s = fmaf(s, square, 0x1.111108p-7f);
  s = fmaf(s, square, -0x1.555556p-3f);
  const float sine = fmaf(r * square, s, r);
  float c = -0x1.260f92p-22f; /* (cos(r) - 1 + r^2 / 2) / r^4 in r^2 */
  c = fmaf(c, square, 0x1.a017dcp-16f);
  c = fmaf(c, square, -0x1.6c16cp-10f);
  c = fmaf(c, square, 0x1.555556p-5f);
  const float cosine = fmaf(square * square, c, fmaf(square, -0.5f, 1.0f));
  const uint32_t quadrant = k + turn;
  const uint32_t bits = tl_math_bits(quadrant & 1u ? cosine : sine) ^ (quadrant & 2u) << 30;
  return tl_math_float(fabsf(x) <= 2097152.0f ? bits : TL_NAN_BITS);
}

TL_MATH float tl_sin(float x) { return tl_sin_turned(x, 0); }

TL_MATH float tl_cos(float x) { return tl_sin_turned(x, 1); }

#if !defined(__CUDACC__)
/* math_many.c: y[i] = f(x[i]) with the bits of the functions above, in vector form. y may be x. */
void tl_exp2_many(const float *x, float *y, int64_t n);
void tl_sigmoid_many(const float *x, float *y, int64_t n);
void tl_log2_many(const float *x, float *y, int64_t n);
void tl_tanh_many(const float *x, float *y, int64_t n);
#endif

#endif
