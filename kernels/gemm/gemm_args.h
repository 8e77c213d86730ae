/* gemm_args.h - what one launch of a product needs, for launcher and kernel.
**
**   out (rows, columns) = tree over leaves of a chain over the runs of k in the leaf
**
** A run is a stretch of k in which both factors have constant strides. Its share of leaf j is
** floor(j count / leaves) .. floor((j + 1) count / leaves) - 1. Shares of one leaf stand one behind
** the other; kernels count `positions` in this order:
**
**   runs 0, 1 of leaf j     |k k k k k|k k k|              parts of linear_grad_input: no gap
**   pieces of a chain       |k k k k k . . .|k k k k k . . .|   each takes `span` positions
**
** Where a factor lies: element (i, k), i a row of A or a column of B, is data[i * stride + k] when
** k runs along its rows, data[k * stride + i] when it runs across them.
**
**                        A        B
**   linear               along    along
**   linear_grad_input    along    across
**   linear_grad_weight   across   across
*/
#ifndef TL_GEMM_ARGS_H
#define TL_GEMM_ARGS_H

#include <stdint.h>

enum { TL_GEMM_RUNS_MAX = 32 };

typedef struct tl_gemm_stretch {
  const void *a, *b; /* k = 0 of the run */
  int64_t a_stride, b_stride;
  int64_t count;
  int32_t a_aligned, b_aligned; /* address and stride are multiples of 16 bytes */
} tl_gemm_stretch;

typedef struct tl_gemm_args {
  tl_gemm_stretch run[TL_GEMM_RUNS_MAX];
  int32_t runs; /* linear_grad_weight: pieces of a leaf, all like run[0], `piece_stride` k apart */
  int64_t piece_stride;
  int64_t span;            /* positions of a piece: its rows, filled up to whole steps */
  const int32_t *segments; /* pieces of unequal length (moe/): piece i has rows segments[i] ..
                              segments[i + 1] - 1; `span` is then what they are filled up to */
  int64_t rows, columns;
  int64_t row_tiles, column_tiles;
  int32_t leaves_log; /* leaves = 1 << leaves_log */
  int32_t start;      /* tl_gemm_start of gemm_core.h: 0 zero, 1 resume, 2 add */
  void *out;
  const void *bias; /* (columns), or NULL */
  int32_t out_is_bf16, bias_is_bf16;
  int32_t pairs; /* two neighbours in a row of `out` may be one access */
  float *stack;  /* leaves that wait for a partner: leaves_log sums for each block */
} tl_gemm_args;

#endif
