/* gemm_proof.h - which way of the library, if any, computes a product; private to gemm/.
**
**   own kernel --> out  \
**                        compared bit for bit --> equal: a candidate; else refused
**   a way ------> out' /                          the fastest equal one is the choice
**
** The factors of the trial are of the product's own shape and of the worst kinds of numbers: rows
** of pairs that cancel but for the last bit, exponents over 40 powers of two, subnormals, zeros of
** both signs, sums that overflow, infinities and NaN. Whatever is not a number counts as equal to
** whatever else is not. A choice never changes a bit, so it may hang on a stopwatch.
**
** Memory for a trial is taken beside the run's and given back; where there is none, the product
** keeps its own kernel.
*/
#ifndef TL_GEMM_PROOF_H
#define TL_GEMM_PROOF_H

#include "gemm_library.h"

typedef struct tl_gemm_trial {
  tl_gemm_library *library;
  tl_cuda *cuda; /* NULL: all memory is the host's, and nothing is timed */
  tl_team *team; /* of the host */
  /* The product by our own kernel. */
  tl_status (*own)(tl_gemm_product product, const tl_call *call);
} tl_gemm_trial;

typedef struct tl_gemm_choice {
  tl_gemm_problem problem;
  tl_gemm_way way;
  int32_t id;               /* of the way's algorithm; 0: our own kernel */
  int32_t offered, refused; /* ways, and those that gave other bits */
  float own_us, us;         /* of our kernel, of the choice; 0 where nothing was timed */
} tl_gemm_choice;

/* `always`: the fastest proven way even where our own kernel is faster. Fails where a device does;
** ways that fail are refused. The caller frees out->problem. */
tl_status tl_gemm_choose(const tl_gemm_trial *trial, const tl_gemm_shape *shape, int32_t always,
                         tl_gemm_choice *out);

#endif
