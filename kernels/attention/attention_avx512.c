/* attention_avx512.c - the f32 loops of attention in vectors of 16. */
#include "../simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdint.h>

#define LANES 16
#define DOT_ROWS 12
#define CHANNELS 8
#define TARGET TL_TARGET_AVX512
#define NAME(x) x##_avx512

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

#include "attention_lanes.inc"
#endif
