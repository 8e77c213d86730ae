/* reciprocal.c - how often tl_reciprocal is not the division 1 / x: of all numbers from 1 to 4, of
** every 9973rd from there to 2^124, and of that. */
#include "../../kernels/math.h"

#include <stdio.h>

static long long count_wrong(uint32_t first, uint32_t last, uint32_t step) {
  long long wrong = 0;
  for (uint32_t bits = first; bits <= last; bits += step) {
    const float x = tl_math_float(bits);
    wrong += tl_math_bits(tl_reciprocal(x)) != tl_math_bits(1.0f / x);
  }
  return wrong;
}

int main(void) {
  const uint32_t one = tl_math_bits(1.0f), four = tl_math_bits(4.0f), most = tl_math_bits(0x1p124f);
  printf("%lld, %lld, %lld\n", count_wrong(one, four, 1), count_wrong(four, most, 9973),
         count_wrong(most, most, 1));
  return 0;
}
