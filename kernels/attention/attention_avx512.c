/* attention_avx512.c - the f32 loops of attention in vectors of 16.
**
** attention_bytes.c includes this file with another TARGET, NAME and EXP2.
*/
#include "../math_x86.h"

#if defined(__x86_64__)
#include <stdint.h>

#include "attention.h"
#include "attention_tile.h"

#define LANES 16
#define DOT_ROWS 12
#define CHANNELS 8
#if !defined(NAME)
#define TARGET TL_TARGET_AVX512
#define NAME(x) x##_avx512
#define EXP2 tl_exp2_x16
#endif

#define SMALL TARGET static inline __attribute__((always_inline))

typedef __m512 lanes;
typedef __mmask16 lane_mask;

SMALL lanes lanes_load(const float *p) { return _mm512_loadu_ps(p); }
SMALL void lanes_store(float *p, lanes x) { _mm512_storeu_ps(p, x); }
SMALL lanes lanes_set(float x) { return _mm512_set1_ps(x); }
SMALL lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm512_fmadd_ps(a, b, c); }
SMALL lanes lanes_add(lanes a, lanes b) { return _mm512_add_ps(a, b); }
SMALL lanes lanes_sub(lanes a, lanes b) { return _mm512_sub_ps(a, b); }
SMALL lanes lanes_mul(lanes a, lanes b) { return _mm512_mul_ps(a, b); }
SMALL lanes lanes_max(lanes a, lanes b) { return _mm512_max_ps(a, b); }
SMALL lanes lanes_minus(lanes a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
SMALL lanes lanes_exp2(lanes x) { return EXP2(x); }
SMALL lane_mask mask_equal(lanes a, lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }

/* Lanes lane .. lane + 15 that lie in first .. end - 1. */
SMALL lane_mask mask_band(int lane, int64_t first, int64_t end) {
  const int64_t low = first - lane, high = end - lane;
  const uint32_t below_low = low <= 0 ? 0u : low >= LANES ? 0xffffu : (1u << low) - 1u;
  const uint32_t below_high = high <= 0 ? 0u : high >= LANES ? 0xffffu : (1u << high) - 1u;
  return (lane_mask)(below_high & ~below_low);
}

SMALL lanes lanes_select(lane_mask mask, lanes a, lanes b) {
  return _mm512_mask_blend_ps(mask, b, a);
}

/* The row rule over 16 products of each of 16 rows. In each step two vectors become one, and each
** sum is one of neighbours: within quarters first, then across them. */
SMALL __m512 delta_sixteen(const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                           __mmask16 channels) {
  __m512 x[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    x[i] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(channels, a + i * a_stride),
                           _mm512_maskz_loadu_ps(channels, b + i * b_stride), _mm512_setzero_ps());
  }
#pragma GCC unroll 16
  for (int width = 1; width <= 2; width *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2 * width) {
      x[i] = _mm512_add_ps(_mm512_shuffle_ps(x[i], x[i + width], 0x88),
                           _mm512_shuffle_ps(x[i], x[i + width], 0xdd));
    }
  }
#pragma GCC unroll 16
  for (int width = 4; width <= 8; width *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2 * width) {
      x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + width], 0x88),
                           _mm512_shuffle_f32x4(x[i], x[i + width], 0xdd));
    }
  }
  return x[0];
}

#define DELTA_ROWS 16
TARGET static void delta_of_rows(const float *grad, int64_t grad_stride, const float *o,
                                 int64_t o_stride, int64_t channels, float *out) {
  __m512 partial[TL_ATTENTION_WIDTH_MAX / 16];
  int64_t count = 0, all = 1;
  for (int64_t i = 0; i < channels; i += 16) {
    const __mmask16 mask = channels - i >= 16 ? 0xffff : (__mmask16)((1 << (channels - i)) - 1);
    partial[count++] = delta_sixteen(grad + i, grad_stride, o + i, o_stride, mask);
  }
  while (all < count) all *= 2;
  for (; count < all; count++) partial[count] = _mm512_setzero_ps();
  for (; all > 1; all /= 2) {
    for (int64_t i = 0; i < all / 2; i++) {
      partial[i] = _mm512_add_ps(partial[2 * i], partial[2 * i + 1]);
    }
  }
  _mm512_storeu_ps(out, _mm512_add_ps(partial[0], _mm512_setzero_ps()));
}

/* A square of 16, transposed: pairs and quads of rows first, then across quarters of vectors. */
SMALL void transpose(__m512 x[16]) {
  __m512 y[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));
    y[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    y[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    y[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    y[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; i++) {
    const __m512 a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
    x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
    x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}

SMALL __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1 << count) - 1);
}

#define TRANSPOSES
TARGET static void pack(tl_rows rows, int64_t count, int64_t channels, void *packed) {
  tl_tile_row *tile = packed;
  for (int64_t lane = 0; lane < TL_TILE; lane += 16) {
    for (int64_t channel = 0; channel < channels; channel += 16) {
      const float *row = (const float *)rows.data + lane * rows.stride + channel;
      const __mmask16 some = first_lanes(channels - channel);
      __m512 x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        x[i] = lane + i < count ? _mm512_maskz_loadu_ps(some, row + i * rows.stride)
                                : _mm512_setzero_ps();
      }
      transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        if (channel + i < channels) _mm512_storeu_ps(tile[channel + i] + lane, x[i]);
      }
    }
  }
}

TARGET static void unpack(const tl_tile_row *acc, int64_t count, int64_t channels, float factor,
                          float *out, int64_t stride) {
  for (int64_t lane = 0; lane < count; lane += 16) {
    for (int64_t channel = 0; channel < channels; channel += 16) {
      const __mmask16 some = first_lanes(channels - channel);
      float *row = out + lane * stride + channel;
      __m512 x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        x[i] =
            channel + i < channels ? _mm512_loadu_ps(acc[channel + i] + lane) : _mm512_setzero_ps();
      }
      transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        const __m512 y = _mm512_mul_ps(_mm512_set1_ps(factor), x[i]);
        if (lane + i < count) _mm512_mask_storeu_ps(row + i * stride, some, y);
      }
    }
  }
}

#include "attention_lanes.inc"
#endif
