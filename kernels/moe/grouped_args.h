/* grouped_args.h - products of the rows of each expert, for kernels that take any shape
** (grouped.cuh) and their launcher.
*/
#ifndef TL_GROUPED_ARGS_H
#define TL_GROUPED_ARGS_H

#include "../gemm/gemm_args.h"

enum { TL_GROUPED_PARTS = 8 }; /* TL_MOE_PARTS_MAX */

typedef struct tl_grouped_args {
  tl_gemm_args product;            /* of expert 0, with all rows */
  const int32_t *offsets;          /* (experts + 1); of weight gradients: segments */
  int64_t each, first;             /* segments of an expert; the first that counts */
  int64_t stack[TL_GROUPED_PARTS]; /* numbers from expert to expert: of weights of run i, or out */
  int32_t experts;
} tl_grouped_args;

/* The fill behind each expert's gradient: +0 from `used` on. */
typedef struct tl_grouped_fill_args {
  float *stack;
  int64_t stride, used;
  int32_t experts;
} tl_grouped_fill_args;

#endif
