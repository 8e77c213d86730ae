/* gemm_library.h - one product through cuBLASLt; private to gemm/.
**
** A product is in the bit class when it is one chain: one leaf, whole tensors, no bias. Its sum
** over k may then also be made by those ways of the library that keep k whole and are known to add
** in ascending order (bf16: algorithms 21, 23, 66; f32: 20, 55). Which of them do is not believed
** but proven for every shape: gemm_proof.h.
**
**                       rows   columns   depth     factors as the library sees them
**   linear              T      N         K         weight^T x      along, along
**   linear_grad_input   T      K         N         weight dy       across, along
**   linear_grad_weight  N      K         T         x dy^T          across, across
*/
#ifndef TL_GEMM_LIBRARY_H
#define TL_GEMM_LIBRARY_H

#include "../../runtime/cublaslt.h"
#include "../../runtime/cuda.h"
#include "gemm_core.h"
#include "gemm_hopper.h"

/* What decides which ways there are; compared as bytes, so made from zeros. */
typedef struct tl_gemm_shape {
  int32_t product; /* tl_gemm_product */
  int32_t dtype, out_dtype;
  int32_t add; /* the chain's end is added to the output */
  int64_t rows, columns, depth;
  int64_t parts; /* of a linear that are multiplied at once: all of these columns */
} tl_gemm_shape;

/* Addresses: rows are a's, columns b's; elements of b and out from part to part. */
typedef struct tl_gemm_operands {
  const void *a, *b;
  void *out;
  int64_t b_step, out_step;
} tl_gemm_operands;

/* How the library takes a call: as one product, which may have several parts where these have the
** same width and lie at even distances, or part by part. Sets *count, 0 where a part is not in the
** class, or not of addresses and widths that are multiples of 16 bytes. */
enum { TL_GEMM_LIBRARY_PARTS = 4 };
typedef struct tl_gemm_cut {
  int32_t count;
  tl_gemm_shape shapes[TL_GEMM_LIBRARY_PARTS];
  tl_gemm_operands operands[TL_GEMM_LIBRARY_PARTS];
} tl_gemm_cut;
void tl_gemm_cut_call(tl_gemm_product product, const tl_call *call, tl_gemm_cut *out);

/* The library, opened for a GPU, or for the host where `cuda` is NULL: the tests' own library
** multiplies there. */
typedef struct tl_gemm_library tl_gemm_library;
tl_status tl_gemm_library_open(tl_cuda *cuda, tl_gemm_library **out);
void tl_gemm_library_close(tl_gemm_library *library);

/* A shape, described to the library. */
typedef struct tl_gemm_problem {
  tl_gemm_shape shape;
  void *product, *a, *b, *out;
} tl_gemm_problem;
tl_status tl_gemm_problem_make(tl_gemm_library *library, const tl_gemm_shape *shape,
                               tl_gemm_problem *out);
void tl_gemm_problem_free(tl_gemm_library *library, tl_gemm_problem *problem);

/* Ways of the class that the library offers, likely fast ones first. None is no failure. */
enum { TL_GEMM_WAYS_MAX = 12 };
typedef struct tl_gemm_way {
  tl_cublaslt_way way;
  int32_t id; /* of the algorithm */
} tl_gemm_way;
tl_status tl_gemm_library_list(tl_gemm_library *library, const tl_gemm_problem *problem,
                               tl_gemm_way *out, int32_t *count);

/* Queues it; the workspace is the lane's scratch memory. */
tl_status tl_gemm_library_run(tl_gemm_library *library, const tl_gemm_problem *problem,
                              const tl_gemm_way *way, const tl_gemm_operands *operands);

#endif
