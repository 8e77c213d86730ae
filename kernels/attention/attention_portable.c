/* attention_portable.c - the f32 loops of attention one number at a time, for any processor. */
#include <math.h>
#include <stdint.h>

#include "../math.h"

#define LANES 1
#define DOT_ROWS 4
#define CHANNELS 4
#define TARGET
#define NAME(x) x##_portable

#define SMALL static inline __attribute__((always_inline))

typedef float lanes;
typedef int lane_mask;

SMALL lanes lanes_load(const float *p) { return *p; }
SMALL void lanes_store(float *p, lanes x) { *p = x; }
SMALL lanes lanes_set(float x) { return x; }
SMALL lanes lanes_fma(lanes a, lanes b, lanes c) { return fmaf(a, b, c); }
SMALL lanes lanes_add(lanes a, lanes b) { return a + b; }
SMALL lanes lanes_sub(lanes a, lanes b) { return a - b; }
SMALL lanes lanes_mul(lanes a, lanes b) { return a * b; }
SMALL lanes lanes_max(lanes a, lanes b) { return a > b ? a : b; } /* as the vector instruction */
SMALL lanes lanes_minus(lanes a) { return -a; }
SMALL lanes lanes_exp2(lanes x) { return tl_exp2(x); }
SMALL lane_mask mask_equal(lanes a, lanes b) { return a == b; }
SMALL lane_mask mask_band(int lane, int64_t first, int64_t end) {
  return lane >= first && lane < end;
}
SMALL lanes lanes_select(lane_mask mask, lanes a, lanes b) { return mask ? a : b; }

#include "attention_lanes.inc"
