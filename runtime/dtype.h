/* dtype.h - element types, and the only conversions between f32 and bf16.
**
**   f32   1 sign  8 exponent  23 fraction
**   bf16  1 sign  8 exponent   7 fraction   the upper half of an f32
**
** f32 to bf16 rounds to nearest even; NaN keeps its sign and becomes quiet, subnormals are kept.
*/
#ifndef TL_DTYPE_H
#define TL_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "status.h"

typedef enum tl_dtype {
#define DTYPE(name, text, bytes) TL_##name,
#include "dtype.def"
#undef DTYPE
  TL_DTYPE_COUNT
} tl_dtype;

int64_t tl_dtype_bytes(tl_dtype dtype);
const char *tl_dtype_name(tl_dtype dtype);
/* Fails with the list of names. */
tl_status tl_dtype_parse(const char *name, tl_dtype *out);

static inline float tl_f32_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t tl_bits_from_f32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float tl_f32_from_bf16(uint16_t value) {
  return tl_f32_from_bits((uint32_t)value << 16);
}

static inline uint16_t tl_bf16_from_f32(float value) {
  const uint32_t bits = tl_bits_from_f32(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
