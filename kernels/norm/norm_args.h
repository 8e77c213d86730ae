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

/* Kernels that give a row to a warp, or two: rows up to this wide, groups of 32 lanes of the row
** rule in a warp (together all that such a row has), spans of 2,048 elements, warps. Narrower rows
** have fewer groups. */
/* clang-format off */
#define TL_NORM_WARPS(ROW) ROW(1024, 4, 1, 1) ROW(2048, 8, 1, 1) ROW(4096, 8, 2, 1)
#define TL_NORM_GRAD_WARPS(ROW) ROW(1024, 4, 1, 1) ROW(2048, 4, 1, 2)
/* clang-format on */
enum { TL_NORM_WARPS_ABOVE = 512 };

#endif
