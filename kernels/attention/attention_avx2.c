/* attention_avx2.c - the f32 loops of attention in vectors of 8. */
#include "../math_x86.h"

#if defined(__x86_64__)
#include <stdint.h>

#define LANES 8
#define DOT_ROWS 6
#define CHANNELS 4
#define TARGET TL_TARGET_AVX2
#define NAME(x) x##_avx2

#define SMALL TARGET static inline __attribute__((always_inline))

typedef __m256 lanes;
typedef __m256 lane_mask; /* all bits of a lane, or none */

SMALL lanes lanes_load(const float *p) { return _mm256_loadu_ps(p); }
SMALL void lanes_store(float *p, lanes x) { _mm256_storeu_ps(p, x); }
SMALL lanes lanes_set(float x) { return _mm256_set1_ps(x); }
SMALL lanes lanes_fma(lanes a, lanes b, lanes c) { return _mm256_fmadd_ps(a, b, c); }
SMALL lanes lanes_add(lanes a, lanes b) { return _mm256_add_ps(a, b); }
SMALL lanes lanes_sub(lanes a, lanes b) { return _mm256_sub_ps(a, b); }
SMALL lanes lanes_mul(lanes a, lanes b) { return _mm256_mul_ps(a, b); }
SMALL lanes lanes_max(lanes a, lanes b) { return _mm256_max_ps(a, b); }
SMALL lanes lanes_minus(lanes a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
SMALL lanes lanes_exp2(lanes x) { return tl_exp2_x8(x); }
SMALL lane_mask mask_equal(lanes a, lanes b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }

/* Lanes lane .. lane + 7 that lie in first .. end - 1. */
SMALL lane_mask mask_band(int lane, int64_t first, int64_t end) {
  const int64_t low = first - lane, high = end - lane;
  const int low8 = low < 0 ? 0 : low > LANES ? LANES : (int)low;
  const int high8 = high < 0 ? 0 : high > LANES ? LANES : (int)high;
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i from = _mm256_cmpgt_epi32(index, _mm256_set1_epi32(low8 - 1));
  const __m256i until = _mm256_cmpgt_epi32(_mm256_set1_epi32(high8), index);
  return _mm256_castsi256_ps(_mm256_and_si256(from, until));
}

SMALL lanes lanes_select(lane_mask mask, lanes a, lanes b) { return _mm256_blendv_ps(b, a, mask); }

#include "attention_lanes.inc"
#endif
