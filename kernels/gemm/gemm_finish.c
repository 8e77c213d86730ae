/* gemm_finish.c - what follows a chain: tree additions, bias, rounding. */
#include <string.h>

#include "../simd.h"
#include "gemm_core.h"

/* Loops of a constant length become vector code; the rest of a row goes one by one. */
enum { LANES = 16 };

TL_INLINE void add_body(float *restrict sum, const float *restrict other, int64_t count) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int j = 0; j < LANES; j++) sum[i + j] += other[i + j];
  for (; i < count; i++) sum[i] += other[i];
}
TL_SIMD_VERSIONS(add, (float *restrict sum, const float *restrict other, int64_t count),
                 (sum, other, count))

TL_INLINE void round_all_body(const float *restrict c, uint16_t *restrict out, int64_t count) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int j = 0; j < LANES; j++) out[i + j] = tl_bf16_from_f32(c[i + j]);
  for (; i < count; i++) out[i] = tl_bf16_from_f32(c[i]);
}
TL_SIMD_VERSIONS(round_all, (const float *restrict c, uint16_t *restrict out, int64_t count),
                 (c, out, count))

void tl_gemm_add(float *sum, const float *other, int64_t count) { add(sum, other, count); }

/* piece (count) = c + bias */
static void add_bias(const float *c, const tl_view *bias, int64_t first, int64_t count,
                     float *piece) {
  if (bias->dtype == TL_F32) {
    memcpy(piece, c, sizeof *c * (size_t)count);
    add(piece, (const float *)bias->data + first, count);
    return;
  }
  const uint16_t *data = (const uint16_t *)bias->data + first;
  for (int64_t i = 0; i < count; i++) piece[i] = c[i] + tl_f32_from_bf16(data[i]);
}

void tl_gemm_store(const float *c, const tl_view *bias, const tl_view *out, int64_t row,
                   int64_t first, int64_t count) {
  enum { PIECE = 256 };
  float piece[PIECE];
  for (int64_t i = 0; i < count; i += PIECE) {
    const int64_t length = count - i < PIECE ? count - i : PIECE;
    const int64_t place = row * tl_view_row(out) + first + i;
    const float *values = c + i;
    if (bias != NULL) {
      add_bias(c + i, bias, first + i, length, piece);
      values = piece;
    }
    if (out->dtype == TL_F32) {
      memcpy((float *)out->data + place, values, sizeof *c * (size_t)length);
    } else {
      round_all(values, (uint16_t *)out->data + place, length);
    }
  }
}
