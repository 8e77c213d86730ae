/* selftest_args.h - the arguments of the self-test's kernels. */
#ifndef TL_SELFTEST_ARGS_H
#define TL_SELFTEST_ARGS_H

#include <stdint.h>

typedef struct tl_selftest_args {
  uint64_t *sums;        /* (blocks) */
  int64_t first;         /* block */
  const uint16_t *a, *b; /* (tiles, 16, 16), (tiles, 16, 8) bf16 */
  const float *c;        /* (tiles, 16, 8) */
  float *d;              /* (tiles, 16, 8) */
  int32_t tiles;
} tl_selftest_args;

#endif
