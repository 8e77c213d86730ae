/* gemm_hopper_args.h - what one launch of gemm_hopper.cuh needs, for launcher and kernel.
**
**   out_part (rows, columns_part) = tree over leaves of a chain over the runs of k in the leaf
**
** Factors come as maps of three dims (tensor_map.h), so that the copy engine finds leaves, pieces
** and ends of k by itself; past an end it writes zeros, which leave a chain as it is:
**
**   along    (k of a leaf, leaf, row)        linear: both; linear_grad_input: dy
**   across   (row, k of a leaf, leaf)        linear_grad_input: weight; linear_grad_weight: both,
**                                            where pieces of all leaves stand for leaves
**
**                     linear           linear_grad_input    linear_grad_weight
**   outputs           parts            1                    1
**   runs of a leaf    1                parts                pieces, all through one map
**   a[i]              a[0]             run i                a[0]
**   b[i]              part i           run i                b[0]
**
** Which launches fit: gemm_hopper_cuda.c.
*/
#ifndef TL_GEMM_HOPPER_ARGS_H
#define TL_GEMM_HOPPER_ARGS_H

#include "../tensor_map.h"

enum { TL_GEMM_HOPPER_PARTS = 4 };

typedef struct tl_gemm_hopper_args {
  tl_tensor_map a[TL_GEMM_HOPPER_PARTS], b[TL_GEMM_HOPPER_PARTS];
  tl_tensor_map out[TL_GEMM_HOPPER_PARTS];  /* boxes of 64 rows, 128 bytes each */
  int32_t slots[TL_GEMM_HOPPER_PARTS];      /* of 64 k: of a run in a leaf, of a piece */
  int32_t runs, pieces;                     /* pieces: leaves, or pieces of all leaves */
  int32_t row_tiles, column_tiles;          /* a row tile: of all blocks of a cluster */
  int32_t first_tile[TL_GEMM_HOPPER_PARTS]; /* of columns of output i */
  int32_t columns[TL_GEMM_HOPPER_PARTS];    /* of output i */
  int32_t outputs;
  int32_t rows;
  int32_t start; /* tl_gemm_start; not 0: one leaf, f32 */
  int32_t out_is_bf16, bias_is_bf16;
  void *data[TL_GEMM_HOPPER_PARTS];       /* of output i, for stores without the copy engine */
  const void *bias[TL_GEMM_HOPPER_PARTS]; /* (columns), or NULL */
} tl_gemm_hopper_args;

/* The same for gemm_hopper_few.cu and _split.cu: shorter, since a short launch waits for its
** arguments too. In gemm_hopper_pair.cu b has gate and up, data[0] is y; in gemm_hopper_leaf.cu
** data[0] is the leaves' sums. */
typedef struct tl_gemm_hopper_few_args {
  tl_tensor_map a, b[TL_GEMM_HOPPER_PARTS];
  int32_t slots, pieces; /* of 64 k in a leaf; leaves */
  int32_t row_tiles, column_tiles;
  int32_t first_tile[TL_GEMM_HOPPER_PARTS], columns[TL_GEMM_HOPPER_PARTS];
  int32_t outputs;
  int32_t rows;
  int32_t out_is_bf16, bias_is_bf16;
  int32_t ring, box_rows; /* slots of a block's ring, rows of a box of x */
  int32_t x_ring;         /* of gemm_hopper_pair.cu, whose `ring` is of weights alone */
  int32_t ahead; /* weights are read before earlier kernels have ended: none of them writes any */
  void *data[TL_GEMM_HOPPER_PARTS];
  const void *bias[TL_GEMM_HOPPER_PARTS];
} tl_gemm_hopper_few_args;

/* PAIR(rows, features): the tiles of gemm_hopper_pair.cu, as many features of gate and of up. */
#define TL_GEMM_PAIRS(PAIR) PAIR(64, 48) PAIR(128, 48) PAIR(128, 88)

/* LEAF(rows, columns, window): the tiles of gemm_hopper_leaf.cu, for up to 64, 128 and 256 rows. */
#define TL_GEMM_LEAVES(LEAF) LEAF(64, 64, 3) LEAF(128, 64, 0) LEAF(128, 128, 0)

#endif
