/* norm_args.h - arguments of the norm kernels. */
#ifndef TL_NORM_ARGS_H
#define TL_NORM_ARGS_H

#include "../device_args.h"

typedef struct tl_norm_args {
  tl_array x, dy, gain, bias, out; /* those that the operator has */
  float *mean, *rstd;
  int64_t rows, dim;
  int32_t lanes; /* threads of a row */
  float eps;
} tl_norm_args;

#endif
