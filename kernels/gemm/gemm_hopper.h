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

#endif
