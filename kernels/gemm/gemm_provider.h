/* gemm_provider.h - who multiplies on a GPU: our own kernels, or cuBLASLt where it has their bits.
**
**   blocks.gemm.provider    own        always our own kernels
**                           auto       per shape the faster of both, as timed at the start; what a
**                                      recipe gets that says nothing
**                           cublaslt   the library wherever it is proven, else our own
**
** A shape is chosen for once, before a section runs for the first time (tl_gemm_prepare), and kept
** with the GPU: launchers only look it up, so a captured step holds the choice. What makes a way of
** the library eligible: gemm_library.h; how it is proven: gemm_proof.h. Bits never hang on it.
*/
#ifndef TL_GEMM_PROVIDER_H
#define TL_GEMM_PROVIDER_H

#include "gemm_proof.h"

enum { TL_GEMM_OWN, TL_GEMM_AUTO, TL_GEMM_CUBLASLT }; /* tl_cuda_blocks.gemm_provider */

/* Chooses for the products of a call that are not chosen for yet; nothing for other operators.
** Waits for the device; not while a stream is captured. Fails with "cublaslt" where the library is
** not here; "auto" is then "own". */
tl_status tl_gemm_prepare(tl_op op, const tl_call *call);

/* Queues a call through the library and sets *done, or clears *done where a part of it is not
** chosen so. */
tl_status tl_gemm_by_library(tl_gemm_product product, const tl_call *call, int32_t *done);

/* The launchers of our own kernels (gemm_cuda.c). */
tl_status tl_cuda_linear_own(const tl_call *call);
tl_status tl_cuda_linear_grad_input_own(const tl_call *call);
tl_status tl_cuda_linear_grad_weight_own(const tl_call *call);

tl_status tl_gemm_own(tl_gemm_product product, const tl_call *call);

/* Choices so far, in order; NULL behind the last one. */
const tl_gemm_choice *tl_gemm_chosen(const tl_cuda *cuda, int32_t index);

#endif
