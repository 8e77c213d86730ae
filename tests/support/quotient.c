/* quotient.c - how often a quotient that is made as kernels of GPUs make it, by a rounded
** reciprocal and two corrections of the remainder, is not the division a / b: tl_divide_piece of
** kernels/device.cuh (losses) and `divide` of attention_hopper.cu and cache_prompt_hopper.cu.
**
** Powers of two of a and b change nothing while nothing is subnormal, which the kernels see to: a
** and b lie between 2^-60 and 2^60. So b runs over fractions, of which every `step`-th is taken
** (first argument, 1: all 2^23), each with the a for which a / b lies nearest to the middle between
** two neighbours, where the least error of a quotient would round it wrongly. Then pairs from the
** whole range. Prints both counts: wrong ones of all that were tried. */
#include "../../kernels/math.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
  long long wrong, tried;
} tally;

static inline __attribute__((always_inline)) void try_pair(float a, float b, tally *t) {
  const float r = 1.0f / b;
  const float first = a * r, better = fmaf(fmaf(first, -b, a), r, first);
  const float q = fmaf(fmaf(better, -b, a), r, better);
  t->wrong += tl_math_bits(q) != tl_math_bits(a / b);
  t->tried++;
}

/* b = odd * 2^k of 24 bits. A middle is m * 2^-s, m odd and of 25 bits, and odd * m = a * 2^(s - k)
** + far with a small odd `far` says that a / b is far / (b 2^s) below it. */
static inline __attribute__((always_inline)) tally try_hardest(uint32_t step) {
  static const int32_t fars[] = {1, -1, 3, -3, 5, -5};
  tally t = {0, 0};
  for (uint32_t b = 1u << 23; b < 1u << 24; b += step) {
    const int k = __builtin_ctz(b);
    const uint32_t odd = b >> k;
    uint32_t inverse = odd; /* of odd, modulo 2^3, 2^6, .. 2^48 */
    for (int i = 0; i < 4; i++) inverse *= 2u - odd * inverse;
    for (int s = 24; s <= 25; s++) {
      const int bits = s - k;
      for (size_t i = 0; i < sizeof fars / sizeof fars[0]; i++) {
        const uint32_t own = inverse * (uint32_t)fars[i] & ((1u << bits) - 1);
        const uint32_t others = bits < 24 ? (b * 2654435761u >> 8) >> bits << bits : 0;
        const uint32_t m = bits < 25 ? 1u << 24 | own | others : own;
        const uint64_t a = (uint64_t)((int64_t)odd * m - fars[i]) >> bits;
        if (m < 1u << 24 || a >> 24 != 0) continue;
        try_pair((i & 2) != 0 ? -(float)a : (float)a, (float)b, &t);
      }
    }
  }
  return t;
}

/* Fractions and powers of two by a generator, of both ends as well. */
static inline __attribute__((always_inline)) tally try_range(int count) {
  tally t = {0, 0};
  uint64_t state = 1;
  for (int i = 0; i < count; i++) {
    float v[2];
    for (int j = 0; j < 2; j++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint32_t power =
          i % 4 == 0 ? (state >> 33 & 1u) * 119u : (uint32_t)(state >> 33) % 120u;
      const uint32_t bits = (67u + power) << 23 | (uint32_t)(state >> 41);
      v[j] = tl_math_float(bits == 67u << 23 ? bits + 1 : bits);
    }
    try_pair(v[0], v[1], &t);
  }
  return t;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void try_fast(uint32_t step, int count, tally *t) {
  t[0] = try_hardest(step), t[1] = try_range(count);
}
#endif

int main(int argc, char **argv) {
  const uint32_t step = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1u;
  tally t[2];
#if defined(__x86_64__)
  if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
    try_fast(step, 1 << 20, t);
  } else
#endif
  {
    t[0] = try_hardest(step), t[1] = try_range(1 << 20);
  }
  printf("%lld of %lld, %lld of %lld\n", t[0].wrong, t[0].tried, t[1].wrong, t[1].tried);
  return 0;
}
