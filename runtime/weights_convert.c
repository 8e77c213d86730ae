/* weights_convert.c - between the element types of safetensors files and f32. */
#include "weights_convert.h"

#include <string.h>

#include "dtype.h"

static float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t to_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* A number with sign, `exponent_bits` and `fraction_bits` whose greatest exponent means infinity
** and NaN where `special` is set. Exact: f32 holds each of them. */
static float small_float(uint32_t bits, int exponent_bits, int fraction_bits, int special) {
  const uint32_t greatest = (1u << exponent_bits) - 1;
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const uint32_t exponent = (bits >> fraction_bits) & greatest;
  const uint32_t sign = (bits >> (exponent_bits + fraction_bits)) << 31;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (special && exponent == greatest)
    return from_bits(sign | 0x7f800000u | fraction << (23 - fraction_bits));
  if (exponent == 0) { /* subnormal: fraction * 2^(1 - bias - fraction_bits) */
    const float unit = from_bits((uint32_t)(127 + 1 - bias - fraction_bits) << 23);
    const float value = (float)fraction * unit;
    return from_bits(to_bits(value) | sign);
  }
  return from_bits(sign | (exponent + (uint32_t)(127 - bias)) << 23 |
                   fraction << (23 - fraction_bits));
}

static uint16_t load_16(const uint8_t *at) {
  uint16_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static void widen_f32(const uint8_t *from, int64_t count, float *to) {
  memcpy(to, from, (size_t)count * sizeof *to);
}

static void widen_bf16(const uint8_t *from, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i++) to[i] = tl_f32_from_bf16(load_16(from + 2 * i));
}

static void widen_f16(const uint8_t *from, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i++) to[i] = small_float(load_16(from + 2 * i), 5, 10, 1);
}

static void widen_e4m3(const uint8_t *from, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i++)
    to[i] = (from[i] & 0x7f) == 0x7f ? from_bits((uint32_t)(from[i] >> 7) << 31 | 0x7fc00000u)
                                     : small_float(from[i], 4, 3, 0);
}

static void widen_e5m2(const uint8_t *from, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i++) to[i] = small_float(from[i], 5, 2, 1);
}

/* 2^-127 is a subnormal f32. */
static void widen_e8m0(const uint8_t *from, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i++)
    to[i] = from_bits(from[i] == 255 ? 0x7fc00000u
                      : from[i] == 0 ? 0x00400000u
                                     : (uint32_t)from[i] << 23);
}

static void narrow_f32(const float *from, int64_t count, uint8_t *to) {
  memcpy(to, from, (size_t)count * sizeof *from);
}

static void narrow_bf16(const float *from, int64_t count, uint8_t *to) {
  for (int64_t i = 0; i < count; i++) {
    const uint16_t value = tl_bf16_from_f32(from[i]);
    memcpy(to + 2 * i, &value, sizeof value);
  }
}

/* Round to nearest, ties to even, into binary16. */
static uint16_t f16_of(float value) {
  const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffu;
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u; /* 65520 and more round to infinity */
  if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, rounded by an f32 addition */
    const float shifted = from_bits(magnitude) + 0.5f; /* the last bit of 0.5 + x is 2^-24 */
    return sign | (uint16_t)(to_bits(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return sign | (uint16_t)((rounded - 0x38000000u) >> 13);
}

static void narrow_f16(const float *from, int64_t count, uint8_t *to) {
  for (int64_t i = 0; i < count; i++) {
    const uint16_t value = f16_of(from[i]);
    memcpy(to + 2 * i, &value, sizeof value);
  }
}

static const struct {
  const char *name;
  void (*widen)(const uint8_t *from, int64_t count, float *to);
  void (*narrow)(const float *from, int64_t count, uint8_t *to); /* NULL: it is read only */
} conversions[] = {
    {"F32",     widen_f32,  narrow_f32 },
    {"BF16",    widen_bf16, narrow_bf16},
    {"F16",     widen_f16,  narrow_f16 },
    {"F8_E4M3", widen_e4m3, NULL       },
    {"F8_E5M2", widen_e5m2, NULL       },
    {"F8_E8M0", widen_e8m0, NULL       },
};
enum { CONVERSIONS = sizeof conversions / sizeof conversions[0] };

static int find(const char *name) {
  int i = 0;
  while (i < CONVERSIONS && strcmp(conversions[i].name, name) != 0) i++;
  return i;
}

int tl_weights_widens(const char *dtype_name) { return find(dtype_name) < CONVERSIONS; }

int tl_weights_narrows(const char *dtype_name) {
  const int i = find(dtype_name);
  return i < CONVERSIONS && conversions[i].narrow != NULL;
}

void tl_weights_widen(const char *dtype_name, const void *from, int64_t count, float *to) {
  conversions[find(dtype_name)].widen(from, count, to);
}

void tl_weights_narrow(const char *dtype_name, const float *from, int64_t count, void *to) {
  conversions[find(dtype_name)].narrow(from, count, to);
}
