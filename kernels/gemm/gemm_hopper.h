/* gemm_hopper.h - the products of gemm.h through gemm_hopper.cuh; private to gemm/.
**
** A launch fits when the GPU is of architecture 9.0, factors are bf16, everything that the copy
** engine moves begins and strides at multiples of 16 bytes, leaves are 1, 2, 4 or 8, and ends of k
** inside a leaf are whole steps. All else goes through gemm_bf16.cu, with the same bits.
*/
#ifndef TL_GEMM_HOPPER_H
#define TL_GEMM_HOPPER_H

#include "../../runtime/cuda.h"
#include "gemm_core.h"

typedef enum tl_gemm_product {
  TL_GEMM_LINEAR,
  TL_GEMM_GRAD_INPUT,
  TL_GEMM_GRAD_WEIGHT,
  TL_GEMM_PRODUCTS
} tl_gemm_product;

/* Launches all of `gemm` and sets *done, or clears *done where it does not fit. piece_stride: rows
** from piece to piece of linear_grad_weight. */
tl_status tl_gemm_hopper(tl_gemm_product product, const tl_gemm *gemm, int64_t piece_stride,
                         tl_cuda *cuda, int32_t *done);

/* A tile of gemm_hopper_pair.cu: `features` of gate, and the same of up. */
typedef struct tl_gemm_pair_tile {
  int32_t rows, features;
  const char *kernel;
} tl_gemm_pair_tile;

/* The largest tile that leaves a block for three of four multiprocessors, or the smallest; NULL
** where not all blocks run at once, or rows are too few or too many. Bits do not depend on it. */
const tl_gemm_pair_tile *tl_gemm_pair_choose(int64_t rows, int64_t columns,
                                             int64_t multiprocessors);

/* y (rows, columns) bf16 = swiglu (elementwise.h) of the two outputs of `gemm`, a linear of gate
** and up, which are rounded as it says and written nowhere. Sets *done, or clears it where that
** does not fit: 9 to 256 rows, bf16, no bias, one leaf. */
tl_status tl_gemm_hopper_pair(const tl_gemm *gemm, void *y, tl_cuda *cuda, int32_t *done);

/* sums (leaves, rows, columns) f32 = each leaf of `gemm`, a linear of one output and some leaves,
** for who adds them up (kernels/fused/leaves.cu). Sets *done, or clears it where that does not fit:
** 9 to 256 rows, bf16, no bias, all blocks at once. */
tl_status tl_gemm_hopper_leaves(const tl_gemm *gemm, float *sums, tl_cuda *cuda, int32_t *done);

/* A product of q, k and v in heads of 64 channels, for rope_hopper.cu. */
typedef struct tl_gemm_heads_tile {
  int32_t rows, columns[3]; /* of q, k and v; those of k are the fewest */
  const char *kernel;
} tl_gemm_heads_tile;

struct tl_gemm_hopper_few_args;
/* The arguments and the grid of that kernel in tiles `t`, or *done is cleared where `gemm`, a
** linear of three outputs, does not fit: bf16, no bias, one leaf, whole heads. */
tl_status tl_gemm_hopper_heads(const tl_gemm *gemm, const tl_gemm_heads_tile *t, tl_cuda *cuda,
                               struct tl_gemm_hopper_few_args *args, tl_cuda_grid *grid,
                               int32_t *done);

#endif
