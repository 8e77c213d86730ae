/* math_many.c - vector forms of math.h: the same code in loops, compiled for each level. */
#include "math.h"

#include "simd.h"

enum { LANES = 16 }; /* one AVX-512 register; narrower levels take several */

/* Whole groups of LANES have a constant trip count, which every compiler turns into vector code. */
#define TL_MANY(name)                                                             \
  TL_INLINE void many_##name##_body(const float *x, float *y, int64_t n) {        \
    int64_t i = 0;                                                                \
    for (; i + LANES <= n; i += LANES) {                                          \
      float in[LANES], out[LANES];                                                \
      memcpy(in, x + i, sizeof in);                                               \
      for (int lane = 0; lane < LANES; lane++) out[lane] = tl_##name(in[lane]);   \
      memcpy(y + i, out, sizeof out);                                             \
    }                                                                             \
    for (; i < n; i++) y[i] = tl_##name(x[i]);                                    \
  }                                                                               \
  TL_SIMD_VERSIONS(many_##name, (const float *x, float *y, int64_t n), (x, y, n)) \
  void tl_##name##_many(const float *x, float *y, int64_t n) {                    \
    many_##name(x, y, n);                                                         \
  }

TL_MANY(exp2)
TL_MANY(sigmoid)
TL_MANY(log2)
TL_MANY(tanh)
