/* grouped_hopper_args.h - what one launch of grouped_hopper.cuh needs: the product as if of one
** expert with all rows, and where the rows of each expert are.
**
** Maps of weights and of their gradients have the expert as one more dim:
**
**   along    (k, expert, row)        grouped_linear: weights
**   across   (row, k, expert)        grouped_linear_grad_input: weights
**   out      (column, expert, row)   grouped_linear_grad_weight: dweight
*/
#ifndef TL_GROUPED_HOPPER_ARGS_H
#define TL_GROUPED_HOPPER_ARGS_H

#include "../gemm/gemm_hopper_args.h"

typedef struct tl_grouped_hopper_args {
  tl_gemm_hopper_args product; /* rows, row_tiles: of a weight gradient */
  const int32_t *offsets;      /* (experts + 1), or segments (experts, each) */
  int32_t experts;
  int32_t each, first, pieces; /* of weight gradients: segments of an expert, those that count */
  int32_t leaves;              /* the same: each of `pieces` */
  int32_t is_listed;           /* slots of every expert and leaf have room in shared memory */
  int64_t stack;               /* the same: numbers from expert to expert of dweight */
} tl_grouped_hopper_args;

#endif
