/* arithmetic.c - sections 1 to 5 of docs/numerics.md: numbers, sums, functions, random words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

void *zeroed(int64_t count, int64_t size) {
  void *memory = calloc((size_t)count + 1, (size_t)size);
  if (memory == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
  return memory;
}

/* --- 1 and 2 ---------------------------------------------------------------------------------- */

float bf(float x) {
  const uint32_t bits = bits_of(x);
  if (x != x) return float_of((bits >> 16 | 0x40) << 16);
  return float_of((bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16);
}

float rounded(float x, int bf16) { return bf16 ? bf(x) : x; }

int64_t border(int64_t i, int64_t n, int64_t length) { return i * length / n; }

void tree(float *rows, int64_t n, int64_t size) {
  for (; n > 1; n /= 2)
    for (int64_t i = 0; i < n / 2; i++)
      for (int64_t k = 0; k < size; k++)
        rows[i * size + k] = rows[2 * i * size + k] + rows[(2 * i + 1) * size + k];
}

float rule(const float *a, const float *b, int64_t n) {
  float partial[2048] = {0};
  for (int64_t i = 0; i < n; i++) {
    float *p = &partial[i % 2048];
    *p = b != NULL ? fmaf(a[i], b[i], *p) : *p + a[i];
  }
  tree(partial, 2048, 1);
  return partial[0];
}

/* --- 3: the tensor core ----------------------------------------------------------------------- */

/* F and E of a finite number, F * 2^(E - 23). */
static int64_t fraction(float x) {
  const uint32_t bits = bits_of(x), field = bits >> 23 & 255;
  const int64_t f = (bits & 0x7fffff) | (field > 0 ? 0x800000 : 0);
  return bits >> 31 ? -f : f;
}

static int exponent(float x) {
  const int field = bits_of(x) >> 23 & 255;
  return (field > 1 ? field : 1) - 127;
}

/* f * 2^shift toward zero. */
static int64_t cut(int64_t f, int shift) {
  if (shift >= 0) return f * ((int64_t)1 << shift);
  if (shift < -62) return 0;
  return f < 0 ? -(-f >> -shift) : f >> -shift;
}

/* sum * 2^scale toward zero to f32. */
static float toward_zero(int64_t sum, int scale) {
  const uint64_t size = (uint64_t)(sum < 0 ? -sum : sum);
  if (size == 0) return 0.0f;
  const int top = scale + 63 - __builtin_clzll(size); /* exponent of the first bit */
  const int last = top - 23 > -149 ? top - 23 : -149; /* exponent of the last bit that stays */
  const int64_t kept = cut((int64_t)size, scale - last);
  const double value = ldexp((double)kept, last);
  if (value >= 0x1p128) return sum < 0 ? -INFINITY : INFINITY;
  return sum < 0 && kept > 0 ? -(float)value : (float)value;
}

static float special_step(const float *a, const float *b, float c) {
  int nan = c != c, plus = c == INFINITY, minus = c == -INFINITY;
  for (int i = 0; i < 16; i++) {
    const float product = a[i] * b[i];
    if (isfinite(a[i]) && isfinite(b[i])) continue;
    nan |= product != product;
    plus |= product == INFINITY;
    minus |= product == -INFINITY;
  }
  if (nan || (plus && minus)) return float_of(0x7fffffff);
  return plus ? INFINITY : -INFINITY;
}

static float step16(const float *a, const float *b, float c) {
  int64_t product[16];
  int scale[16], largest = -133, finite = isfinite(c);
  for (int i = 0; i < 16; i++) {
    finite &= isfinite(a[i]) && isfinite(b[i]);
    product[i] = (fraction(a[i]) / 65536) * (fraction(b[i]) / 65536); /* 14 bits of fraction */
    scale[i] = exponent(a[i]) + exponent(b[i]);
    if (product[i] != 0 && scale[i] > largest) largest = scale[i];
  }
  if (!finite) return special_step(a, b, c);
  if (c != 0 && exponent(c) > largest) largest = exponent(c);
  int64_t sum = c != 0 ? cut(fraction(c), exponent(c) - 23 - (largest - 25)) : 0;
  for (int i = 0; i < 16; i++)
    if (product[i] != 0) sum += cut(product[i], scale[i] - 14 - (largest - 25));
  return toward_zero(sum, largest - 25);
}

float chain(float acc, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
            int64_t n, int bf16) {
  if (!bf16) {
    for (int64_t i = 0; i < n; i++) acc = fmaf(a[i * a_stride], b[i * b_stride], acc);
    return acc;
  }
  for (int64_t i = 0; i < n; i += 16) {
    float x[16] = {0}, y[16] = {0};
    for (int64_t k = i; k < n && k < i + 16; k++) {
      x[k - i] = a[k * a_stride];
      y[k - i] = b[k * b_stride];
    }
    acc = step16(x, y, acc);
  }
  return acc;
}

/* --- 4: functions ----------------------------------------------------------------------------- */

#define LOG2E 0x1.715476p+0f
#define LOG2E_LOW 0x1.4ae0cp-26f
#define LN2 0x1.62e43p-1f

static const uint32_t exp2_table[64][3] = {
    {0x0,       0x58b9, 0x1ee},
    {0x59347,   0x59b0, 0x1f5},
    {0xb361b,   0x5aaa, 0x1fa},
    {0x10e8a2,  0x5ba7, 0x1ff},
    {0x16ab0f,  0x5ca6, 0x206},
    {0x1c7d86,  0x5da9, 0x209},
    {0x226039,  0x5eae, 0x20f},
    {0x285356,  0x5fb6, 0x214},
    {0x2e5709,  0x60c0, 0x21d},
    {0x346b7e,  0x61ce, 0x222},
    {0x3a90e5,  0x62df, 0x227},
    {0x40c772,  0x63f2, 0x22f},
    {0x470f4e,  0x6509, 0x234},
    {0x4d68ad,  0x6623, 0x238},
    {0x53d3c0,  0x673f, 0x241},
    {0x5a50b6,  0x685f, 0x247},
    {0x60dfc2,  0x6982, 0x24d},
    {0x678117,  0x6aa8, 0x254},
    {0x6e34e6,  0x6bd2, 0x258},
    {0x74fb67,  0x6cfe, 0x261},
    {0x7bd4c9,  0x6e2e, 0x267},
    {0x82c145,  0x6f61, 0x26e},
    {0x89c10b,  0x7098, 0x273},
    {0x90d456,  0x71d2, 0x279},
    {0x97fb5a,  0x730f, 0x281},
    {0x9f364e,  0x7450, 0x287},
    {0xa6856a,  0x7594, 0x28f},
    {0xade8e7,  0x76dc, 0x295},
    {0xb560fb,  0x7827, 0x29e},
    {0xbcede2,  0x7976, 0x2a5},
    {0xc48fd7,  0x7ac8, 0x2ae},
    {0xcc4710,  0x7c1f, 0x2b3},
    {0xd413cc,  0x7d79, 0x2bb},
    {0xdbf648,  0x7ed7, 0x2c1},
    {0xe3eebe,  0x8038, 0x2cb},
    {0xebfd6a,  0x819e, 0x2d1},
    {0xf4228e,  0x8307, 0x2da},
    {0xfc5e67,  0x8474, 0x2e3},
    {0x104b134, 0x85e5, 0x2ec},
    {0x10d1b33, 0x875b, 0x2f1},
    {0x1159ca8, 0x88d4, 0x2fb},
    {0x11e35d3, 0x8a51, 0x305},
    {0x126e6f7, 0x8bd3, 0x30b},
    {0x12fb054, 0x8d59, 0x313},
    {0x1389230, 0x8ee3, 0x31c},
    {0x1418ccf, 0x9071, 0x326},
    {0x14aa076, 0x9204, 0x32d},
    {0x153cd6a, 0x939b, 0x336},
    {0x15d13f4, 0x9536, 0x341},
    {0x1667457, 0x96d6, 0x34a},
    {0x16feede, 0x987b, 0x351},
    {0x17983d3, 0x9a24, 0x35a},
    {0x183337d, 0x9bd1, 0x366},
    {0x18cfe27, 0x9d84, 0x36d},
    {0x196e41c, 0x9f3b, 0x377},
    {0x1a0e5aa, 0xa0f7, 0x380},
    {0x1ab031d, 0xa2b7, 0x38d},
    {0x1b53cc1, 0xa47d, 0x395},
    {0x1bf92e7, 0xa648, 0x39d},
    {0x1ca05dd, 0xa817, 0x3aa},
    {0x1d495f5, 0xa9ec, 0x3b2},
    {0x1df437f, 0xabc5, 0x3bf},
    {0x1ea0ecc, 0xada4, 0x3c9},
    {0x1f4f831, 0xaf88, 0x3d4},
};

float exp2_f32(float x) {
  if (x != x) return float_of(0x7fffffff);
  const double size = fabs((double)x) < 128 ? fabs((double)x) : 128;
  const int64_t q = (int64_t)(size * 0x1p23);
  int64_t t = q;
  if (x < 0) t = q % 0x800000 == 0 ? -q : -q - 1;
  const int64_t f = (t % 0x800000 + 0x800000) % 0x800000, e = (t - f) / 0x800000;
  const uint64_t s = (uint64_t)f >> 17, l = (uint64_t)f & 0x1ffff, h = l >> 9, g = l >> 10;
  uint64_t square = h * h >> 1;
  for (int i = 0; i <= 6; i++)
    if (l >> (8 - i) & 1) square += g >> i;
  const uint32_t *c = exp2_table[s];
  const uint64_t sum = ((uint64_t)c[0] << 13) + c[1] * l + c[2] * square + 30690;
  if (e < -126) return 0.0f;
  if (e > 127) return INFINITY;
  return float_of(((uint32_t)(e + 127) << 23) + (uint32_t)(sum >> 15));
}

static float polynomial(float q, float x, const float *c, int n) {
  for (int i = 0; i < n; i++) q = fmaf(q, x, c[i]);
  return q;
}

float log2_f32(float x) {
  static const float c[] = {0x1.803f22p-3f, -0x1.864562p-3f, 0x1.a27ab2p-3f, -0x1.eaccbap-3f,
                            0x1.27822ep-2f, -0x1.715a38p-2f, 0x1.ec7086p-2f, -0x1.715472p-1f};
  if (x == 0) return -INFINITY;
  if (x == INFINITY) return x;
  if (!(x > 0)) return float_of(0x7fffffff);
  const int small = x < 0x1p-126f;
  const uint32_t bits = bits_of(small ? x * 0x1p24f : x);
  const int64_t shifted = (int64_t)bits - 0x3f3504f3;
  const int64_t e = shifted >= 0 ? shifted >> 23 : -((-shifted + 0x7fffff) >> 23);
  const float f = float_of((uint32_t)((int64_t)bits - e * 0x800000)) - 1.0f;
  const float q = polynomial(-0x1.ce5038p-4f, f, c, 8);
  return (float)(small ? e - 24 : e) + fmaf(f, LOG2E, fmaf(f * f, q, f * LOG2E_LOW));
}

float log_f32(float x) { return log2_f32(x) * LN2; }

float sigmoid_f32(float x) { return 1.0f / (1.0f + exp2_f32(-x * LOG2E)); }

float tanh_f32(float x) {
  static const float c[] = {0x1.5256d8p-6f, -0x1.b8444ap-5f, 0x1.110768p-3f, -0x1.555534p-2f};
  const float a = fabsf(x), z = a * a;
  const float small = fmaf(a * z, polynomial(-0x1.76ac2p-8f, z, c, 4), a);
  const float large = 1.0f - 2.0f / (exp2_f32((a + a) * LOG2E) + 1.0f);
  return copysignf(a < 0.625f ? small : large, x);
}

/* sin(x + turn * pi/2) */
static float turned(float x, uint32_t turn) {
  static const float cs[] = {-0x1.a00f9ep-13f, 0x1.111108p-7f, -0x1.555556p-3f};
  static const float cc[] = {0x1.a017dcp-16f, -0x1.6c16cp-10f, 0x1.555556p-5f};
  const float n = fmaf(x, 0x1.45f306p-1f, 12582912.0f), w = n - 12582912.0f;
  float r = fmaf(w, -0x1.921fb6p+0f, x);
  r = fmaf(w, 0x1.777a5cp-25f, r);
  r = fmaf(w, 0x1.ee59dap-50f, r);
  const float z = r * r;
  const float sine = fmaf(r * z, polynomial(0x1.6cd838p-19f, z, cs, 3), r);
  const float cosine = fmaf(z * z, polynomial(-0x1.260f92p-22f, z, cc, 3), fmaf(z, -0.5f, 1.0f));
  const float value[4] = {sine, cosine, -sine, -cosine};
  return value[(bits_of(n) + turn) % 4];
}

float sin_f32(float x) { return turned(x, 0); }
float cos_f32(float x) { return turned(x, 1); }

/* --- 5: hashes and words ---------------------------------------------------------------------- */

uint64_t mix64(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

static const uint64_t prime[6] = {0,
                                  0x9e3779b185ebca87,
                                  0xc2b2ae3d27d4eb4f,
                                  0x165667b19e3779f9,
                                  0x85ebca77c2b2ae63,
                                  0x27d4eb2f165667c5};

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

/* Little-endian number of `bytes` bytes. */
static uint64_t read(const unsigned char *p, int bytes) {
  uint64_t x = 0;
  for (int i = 0; i < bytes; i++) x |= (uint64_t)p[i] << 8 * i;
  return x;
}

static uint64_t hash_round(uint64_t acc, uint64_t input) {
  return rotate(acc + input * prime[2], 31) * prime[1];
}

uint64_t hash_bytes(const void *data, int64_t bytes) {
  const unsigned char *p = data, *end = p + bytes;
  uint64_t h = prime[5];
  if (bytes >= 32) {
    uint64_t lane[4] = {prime[1] + prime[2], prime[2], 0, -prime[1]};
    for (; end - p >= 32; p += 32)
      for (int i = 0; i < 4; i++) lane[i] = hash_round(lane[i], read(p + 8 * i, 8));
    h = rotate(lane[0], 1) + rotate(lane[1], 7) + rotate(lane[2], 12) + rotate(lane[3], 18);
    for (int i = 0; i < 4; i++) h = (h ^ hash_round(0, lane[i])) * prime[1] + prime[4];
  }
  h += (uint64_t)bytes;
  for (; end - p >= 8; p += 8) h = rotate(h ^ hash_round(0, read(p, 8)), 27) * prime[1] + prime[4];
  for (; end - p >= 4; p += 4) h = rotate(h ^ read(p, 4) * prime[1], 23) * prime[2] + prime[3];
  for (; p < end; p++) h = rotate(h ^ *p * prime[5], 11) * prime[1];
  h = (h ^ h >> 33) * prime[2];
  h = (h ^ h >> 29) * prime[3];
  return h ^ h >> 32;
}

uint64_t hash_name(const char *name) { return hash_bytes(name, (int64_t)strlen(name)); }

void words(uint64_t seed, uint64_t stream, uint64_t index, uint64_t step, uint32_t out[2]) {
  const uint64_t key = mix64(seed + mix64(stream));
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
  uint32_t c2 = (uint32_t)step, c3 = (uint32_t)(step >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t even = (uint64_t)0xd2511f53 * c0, odd = (uint64_t)0xcd9e8d57 * c2;
    c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)odd;
    c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)even;
    k0 += 0x9e3779b9;
    k1 += 0xbb67ae85;
  }
  out[0] = c0;
  out[1] = c1;
}

float unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
