/* tensorcore.c - the step in integers, packing, and the choice of a version. */
#include "tensorcore.h"

#include <string.h>

#include "simd.h"
#include "tensorcore_tile.h"

enum {
  STEP = TL_TENSORCORE_STEP,
  SLOTS = TL_TENSORCORE_SLOTS,
  COLUMNS = TL_TENSORCORE_COLUMNS,
  FRACTION = 25,      /* bits below the largest exponent */
  EXPONENT_MIN = -133 /* the largest exponent is never less */
};

static const uint32_t quiet_nan = 0x7fffffffu, infinity = 0x7f800000u, sign_bit = 0x80000000u;
static const uint32_t zero_exponent = 0x8000u; /* the least 16-bit number */

static inline uint32_t field_of(uint32_t bits) { return bits >> 23 & 255u; }
static inline int is_finite(uint32_t bits) { return field_of(bits) != 255u; }
static inline int is_zero(uint32_t bits) { return (bits & ~sign_bit) == 0; }

/* A finite number is fraction * 2^(exponent - 23). */
static inline int32_t exponent_of(uint32_t bits) {
  const uint32_t field = field_of(bits);
  return (int32_t)(field == 0 ? 1 : field) - 127;
}

static inline int64_t fraction_of(uint32_t bits) {
  const int64_t fraction = (bits & 0x7fffffu) | (field_of(bits) == 0 ? 0 : 0x800000u);
  return bits & sign_bit ? -fraction : fraction;
}

/* number * 2^shift toward zero, for |number| < 2^25 and shift <= 38. */
static inline int64_t shift_toward_zero(int64_t number, int32_t shift) {
  const uint64_t size = (uint64_t)(number < 0 ? -number : number) << 38;
  const int32_t right = 38 - shift;
  const int64_t shifted = (int64_t)(size >> (right < 63 ? right : 63));
  return number < 0 ? -shifted : shifted;
}

/* sum * 2^exponent cut toward zero to an f32; zero is +0. */
static float cut_to_f32(int64_t sum, int32_t exponent) {
  if (sum == 0) return 0.0f;
  const uint64_t size = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
  int32_t top = exponent + 63 - __builtin_clzll(size);
  if (top < -126) top = -126;
  const int32_t cut = top - 23 - exponent; /* bits that an f32 has no room for */
  const uint64_t fraction = cut <= 0 ? size << -cut : cut > 62 ? 0 : size >> cut;
  if (fraction == 0) return 0.0f;
  /* The leading one of a normal fraction adds one to the exponent field. */
  const uint64_t bits = ((uint64_t)(top + 126) << 23) + fraction;
  const uint32_t sign = sum < 0 ? sign_bit : 0;
  return tl_f32_from_bits(sign | (bits >= infinity ? infinity : (uint32_t)bits));
}

/* The step when something is infinite or NaN. */
static float step_special(const uint32_t *a, const uint32_t *b, uint32_t c) {
  int nan = (c & ~sign_bit) > infinity, plus = c == infinity, minus = c == (sign_bit | infinity);
  for (int k = 0; k < STEP; k++) {
    if (is_finite(a[k]) && is_finite(b[k])) continue;
    const int is_nan = (a[k] & ~sign_bit) > infinity || (b[k] & ~sign_bit) > infinity;
    if (is_nan || is_zero(a[k]) || is_zero(b[k]))
      nan = 1;
    else if ((a[k] ^ b[k]) & sign_bit)
      minus = 1;
    else
      plus = 1;
  }
  if (nan || (plus && minus)) return tl_f32_from_bits(quiet_nan);
  return tl_f32_from_bits(plus ? infinity : sign_bit | infinity);
}

float tl_tensorcore_step(const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                         float c) {
  uint32_t x[STEP], y[STEP];
  const uint32_t z = tl_bits_from_f32(c);
  int64_t product[STEP]; /* of two 8-bit fractions: 14 bits below its exponent */
  int32_t exponent[STEP], finite = is_finite(z);
  int32_t largest = !is_zero(z) && exponent_of(z) > EXPONENT_MIN ? exponent_of(z) : EXPONENT_MIN;
  for (int k = 0; k < STEP; k++) {
    x[k] = tl_bits_from_f32(a[k * a_stride]);
    y[k] = tl_bits_from_f32(b[k * b_stride]);
    finite &= is_finite(x[k]) && is_finite(y[k]);
    product[k] = (fraction_of(x[k]) / 65536) * (fraction_of(y[k]) / 65536);
    exponent[k] = exponent_of(x[k]) + exponent_of(y[k]);
    if (product[k] != 0 && exponent[k] > largest) largest = exponent[k];
  }
  if (!finite) return step_special(x, y, z);
  int64_t sum = shift_toward_zero(fraction_of(z), FRACTION - 23 + exponent_of(z) - largest);
  if (is_zero(z)) sum = 0;
  for (int k = 0; k < STEP; k++) {
    if (product[k] == 0) continue;
    sum += shift_toward_zero(product[k], FRACTION - 14 + exponent[k] - largest);
  }
  return cut_to_f32(sum, largest - FRACTION);
}

void tl_tensorcore_clear_rows(tl_tensorcore_rows *out, int64_t steps) {
  for (int64_t s = 0; s < steps; s++) {
    memset(&out[s], 0, sizeof out[s]);
    for (int k = 0; k < STEP; k++)
      for (int r = 0; r < SLOTS; r++) out[s].exponent[k][r] = zero_exponent << 16 | zero_exponent;
  }
}

void tl_tensorcore_clear_columns(tl_tensorcore_columns *out, int64_t steps) {
  for (int64_t s = 0; s < steps; s++) {
    memset(&out[s], 0, sizeof out[s]);
    for (int k = 0; k < STEP; k++)
      for (int j = 0; j < COLUMNS / 2; j++)
        out[s].exponent[k][j] = zero_exponent << 16 | zero_exponent;
  }
}

/* 128 * (exponent + 127 - bias), or the mark of a zero. */
static inline uint32_t packed_exponent(uint32_t bits, int32_t bias) {
  if (is_zero(bits)) return zero_exponent;
  return (uint32_t)((exponent_of(bits) + 127 - bias) * 128) & 0xffffu;
}

static void pack_rows(tl_tensorcore_source source, int32_t count, int64_t k_count, int64_t position,
                      tl_tensorcore_rows *out) {
  for (int64_t i = 0; i < k_count; i++) {
    tl_tensorcore_rows *step = &out[(position + i) / STEP];
    const int64_t k = (position + i) % STEP;
    for (int32_t r = 0; r < count; r++) {
      const uint32_t bits = (uint32_t)source.data[r * source.stride + i * source.k_stride] << 16;
      const uint32_t exponent = packed_exponent(bits, 127);
      step->value[k][r] = tl_f32_from_bits(bits);
      step->exponent[k][r] = exponent << 16 | exponent;
      step->wide |= field_of(bits) >= TL_TENSORCORE_FIELD_WIDE;
    }
  }
}

static void pack_columns(tl_tensorcore_source source, int32_t count, int64_t k_count,
                         int64_t position, tl_tensorcore_columns *out) {
  for (int64_t i = 0; i < k_count; i++) {
    tl_tensorcore_columns *step = &out[(position + i) / STEP];
    const int64_t k = (position + i) % STEP;
    for (int32_t c = 0; c < count; c++) {
      const uint32_t bits = (uint32_t)source.data[c * source.stride + i * source.k_stride] << 16;
      const int32_t half = c / (COLUMNS / 2) * 16; /* which half of the word */
      uint32_t *word = &step->exponent[k][c % (COLUMNS / 2)];
      step->value[k][c] = tl_f32_from_bits(bits);
      *word = (*word & ~(0xffffu << half)) | packed_exponent(bits, 0) << half;
      step->wide |= field_of(bits) >= TL_TENSORCORE_FIELD_WIDE;
    }
  }
}

void tl_tensorcore_pack_rows(tl_tensorcore_source source, int32_t count, int64_t k_count,
                             int64_t position, tl_tensorcore_rows *out) {
#if defined(__x86_64__)
  if (tl_simd_level() == TL_SIMD_AVX512 && (source.stride == 1 || source.k_stride == 1)) {
    tl_tensorcore_pack_rows_avx512(source, count, k_count, position, out);
    return;
  }
#endif
  pack_rows(source, count, k_count, position, out);
}

void tl_tensorcore_pack_columns(tl_tensorcore_source source, int32_t count, int64_t k_count,
                                int64_t position, tl_tensorcore_columns *out) {
#if defined(__x86_64__)
  if (tl_simd_level() == TL_SIMD_AVX512 && (source.stride == 1 || source.k_stride == 1)) {
    tl_tensorcore_pack_columns_avx512(source, count, k_count, position, out);
    return;
  }
#endif
  pack_columns(source, count, k_count, position, out);
}

void tl_tensorcore_repair(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b, int32_t row,
                          int32_t column, uint32_t bad, const float *c, float *result) {
  for (; bad != 0; bad &= bad - 1) {
    const int32_t lane = __builtin_ctz(bad);
    result[lane] =
        tl_tensorcore_step(&a->value[0][row], SLOTS, &b->value[0][column + lane], COLUMNS, c[lane]);
  }
}

void tl_tensorcore_step_tile(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                             int32_t rows, int32_t columns, float *c, int64_t stride) {
  for (int32_t r = 0; r < rows; r++)
    for (int32_t j = 0; j < columns; j++)
      c[r * stride + j] =
          tl_tensorcore_step(&a->value[0][r], SLOTS, &b->value[0][j], COLUMNS, c[r * stride + j]);
}

static void tile_portable(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                          int64_t steps, int32_t rows, int32_t columns, float *c, int64_t stride,
                          int32_t resume) {
  if (!resume)
    for (int32_t r = 0; r < rows; r++) memset(c + r * stride, 0, sizeof *c * (size_t)columns);
  for (int64_t s = 0; s < steps; s++)
    tl_tensorcore_step_tile(&a[s], &b[s], rows, columns, c, stride);
}

void tl_tensorcore_tile(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b, int64_t steps,
                        int32_t rows, int32_t columns, float *c, int64_t stride, int32_t resume) {
  switch (tl_simd_level()) {
#if defined(__x86_64__)
    case TL_SIMD_AVX512:
      tl_tensorcore_tile_avx512(a, b, steps, rows, columns, c, stride, resume);
      break;
    case TL_SIMD_AVX2:
      tl_tensorcore_tile_avx2(a, b, steps, rows, columns, c, stride, resume);
      break;
#endif
    default: tile_portable(a, b, steps, rows, columns, c, stride, resume); break;
  }
}
