/* gemm_few_cuda.h - linear of bf16 for up to 16 rows on a GPU of compute capability 9.0. */
#ifndef TL_GEMM_FEW_CUDA_H
#define TL_GEMM_FEW_CUDA_H

#include "gemm_core.h"
#include "gemm_few_args.h"

/* *done: 1 where the kernel was queued, 0 where it is not for this product and nothing happened:
** more rows, other dtypes, leaves that are not whole steps of 16, more x than a block has room. */
tl_status tl_gemm_few_cuda(const tl_gemm *gemm, const tl_call *call, int32_t *done);

/* What it is passed; *fits: 0 where it is not for this product, and nothing is written. */
tl_status tl_gemm_few_args_of(const tl_gemm *gemm, const tl_call *call, tl_gemm_few_args *out,
                              int32_t *fits);

#endif
