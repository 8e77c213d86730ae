/* reciprocal.c - how often tl_reciprocal is not the division 1 / x: of all numbers from 1 to 4, of
** every 9973rd from there to 2^124 (of all with an argument), and of that; then how often it is a
** number where x is none. So swiglu.cuh has with it what tl_sigmoid is for every x: 1 + exp2(..) is
** 1 or more or no number, and above 2^124 it divides. */
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

static long long count_numbers(void) {
  long long numbers = 0;
  for (uint32_t bits = 0x7f800001u; bits < 0x80000000u; bits++) {
    const float y = tl_reciprocal(tl_math_float(bits));
    const float z = tl_reciprocal(tl_math_float(bits | 0x80000000u));
    numbers += (y == y) + (z == z);
  }
  return numbers;
}

int main(int argc, char **argv) {
  (void)argv;
  const uint32_t one = tl_math_bits(1.0f), four = tl_math_bits(4.0f), most = tl_math_bits(0x1p124f);
  printf("%lld, %lld, %lld, %lld\n", count_wrong(one, four, 1),
         count_wrong(four, most, argc > 1 ? 1 : 9973), count_wrong(most, most, 1), count_numbers());
  return 0;
}
