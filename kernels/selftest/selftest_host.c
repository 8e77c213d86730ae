/* selftest_host.c - operands of the self-test, and what the host's models make of them. */
#include "selftest.h"

#include "../../runtime/dtype.h"
#include "../../runtime/random.h"
#include "../math.h"
#include "../simd.h"
#include "../tensorcore.h"

enum { INPUTS = 1 << 20, PIECE = 1024 };

static const char *const names[TL_SELFTEST_PATTERNS] = {"close",  "wide", "any",  "sparse",
                                                        "cancel", "edge", "full", "deep"};
enum { CLOSE, WIDE, ANY, SPARSE, CANCEL, EDGE, FULL, DEEP };

const char *tl_selftest_pattern(int32_t pattern) { return names[pattern]; }

/* --- exp2 ------------------------------------------------------------------------------------- */

TL_INLINE void add_sum_body(uint32_t first, const float *y, int32_t n, uint64_t *out) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < n; i++)
    sum += tl_mix64((uint64_t)(first + (uint32_t)i) << 32 | tl_bits_from_f32(y[i]));
  *out += sum;
}
TL_SIMD_VERSIONS(add_sum, (uint32_t first, const float *y, int32_t n, uint64_t *out),
                 (first, y, n, out))

typedef struct exp2_work {
  uint64_t *sums;
  int32_t first;
} exp2_work;

static void exp2_block(void *context, int64_t index, int32_t worker) {
  const exp2_work *w = context;
  const uint32_t first = (uint32_t)(w->first + index) * (uint32_t)INPUTS;
  float x[PIECE];
  (void)worker;
  w->sums[index] = 0;
  for (uint32_t at = 0; at < INPUTS; at += PIECE) {
    for (uint32_t i = 0; i < PIECE; i++) x[i] = tl_f32_from_bits(first + at + i);
    tl_exp2_many(x, x, PIECE);
    add_sum(first + at, x, PIECE, &w->sums[index]);
  }
}

void tl_selftest_exp2_host(tl_team *team, int32_t first, int32_t count, uint64_t *sums) {
  exp2_work work = {.sums = sums, .first = first};
  tl_team_for(team, count, exp2_block, &work);
}

/* --- steps ------------------------------------------------------------------------------------ */

typedef struct draw {
  uint64_t state;
} draw;

static uint32_t next(draw *d) {
  return (uint32_t)(tl_mix64(d->state += 0x9e3779b97f4a7c15u) >> 32);
}

/* A bf16 with an exponent of 2^(-range .. range); `mantissa` is or-ed in. */
static uint16_t number(draw *d, int32_t middle, int32_t range, uint32_t mantissa) {
  const uint32_t bits = next(d);
  const int32_t e = middle + (range == 0 ? 0 : (int32_t)(bits >> 8) % (2 * range + 1) - range);
  return (uint16_t)((bits & 0x8000u) | (uint32_t)(e + 127) << 7 | (bits & 0x7fu) | mantissa);
}

static uint16_t operand(draw *d, int32_t pattern) {
  switch (pattern) {
    case CLOSE: return number(d, 0, 2, 0);
    case WIDE: return number(d, 0, 30, 0);
    case ANY: return (uint16_t)next(d);
    case SPARSE: return next(d) % 4 == 0 ? number(d, 0, 20, 0) : (uint16_t)(next(d) & 0x8000u);
    case CANCEL: return number(d, 0, 8, 0);
    case EDGE: return number(d, -13, 1, 0) & 0xff80u; /* products of 2^-24 .. 2^-28 */
    case FULL: return number(d, 0, 6, 0x7f);
    default: return number(d, -66, 2, 0); /* products near 2^-133 */
  }
}

static float start(draw *d, int32_t pattern) {
  const uint32_t bits = next(d);
  switch (pattern) {
    case ANY: return tl_f32_from_bits(bits);
    case SPARSE: return tl_f32_from_bits(bits % 3 == 0 ? 0x80000000u : bits & 0x807fffffu);
    case EDGE: return bits & 1u ? 1.0f : -1.0f;
    case DEEP: return 0.0f;
    case CANCEL: return tl_f32_from_bits((bits & 0x807fffffu) | 0x36000000u);
    case FULL: return tl_f32_from_bits(bits | 0x007fffffu) * 0x1p-64f;
    default: return tl_f32_from_bits((bits & 0x807fffffu) | 0x3f800000u);
  }
}

/* Infinities and NaN are left to the pattern `any`. */
static float finite_or_one(float c) { return c - c == 0 ? c : 1.0f; }

/* Products of k and k + 8 cancel. */
static void mirror(int32_t tiles, uint16_t *a, uint16_t *b) {
  for (int64_t tile = 0; tile < tiles; tile++)
    for (int k = 8; k < 16; k++) {
      for (int row = 0; row < 16; row++)
        a[tile * 256 + row * 16 + k] = a[tile * 256 + row * 16 + k - 8];
      for (int n = 0; n < 8; n++)
        b[tile * 128 + k * 8 + n] = b[tile * 128 + (k - 8) * 8 + n] ^ 0x8000u;
    }
}

void tl_selftest_operands(int32_t pattern, uint64_t seed, int32_t tiles, uint16_t *a, uint16_t *b,
                          float *c) {
  draw d = {.state = tl_mix64(seed * TL_SELFTEST_PATTERNS + (uint64_t)pattern)};
  for (int64_t i = 0; i < (int64_t)tiles * 256; i++) a[i] = operand(&d, pattern);
  for (int64_t i = 0; i < (int64_t)tiles * 128; i++) b[i] = operand(&d, pattern);
  for (int64_t i = 0; i < (int64_t)tiles * 128; i++) {
    const float x = start(&d, pattern);
    c[i] = pattern == ANY ? x : finite_or_one(x);
  }
  if (pattern == CANCEL) mirror(tiles, a, b);
}

void tl_selftest_steps_host(const uint16_t *a, const uint16_t *b, const float *c, int32_t tiles,
                            float *d) {
  float left[256], right[128];
  for (int64_t tile = 0; tile < tiles; tile++) {
    for (int i = 0; i < 256; i++) left[i] = tl_f32_from_bf16(a[tile * 256 + i]);
    for (int i = 0; i < 128; i++) right[i] = tl_f32_from_bf16(b[tile * 128 + i]);
    for (int i = 0; i < TL_SELFTEST_TILE; i++)
      d[tile * 128 + i] =
          tl_tensorcore_step(left + i / 8 * 16, 1, right + i % 8, 8, c[tile * 128 + i]);
  }
}
