/* gemm_provider.c - the choices of a GPU, by shape. */
#include "gemm_provider.h"

#include <stdlib.h>
#include <string.h>

typedef struct provider {   /* kept with a tl_cuda */
  tl_gemm_library *library; /* NULL: not here */
  tl_gemm_choice *choices;
  int32_t count, room;
} provider;

static void close_provider(void *kept) {
  provider *p = kept;
  for (int32_t i = 0; i < p->count; i++) tl_gemm_problem_free(p->library, &p->choices[i].problem);
  tl_gemm_library_close(p->library);
  free(p->choices);
  free(p);
}

static tl_status open_provider(tl_cuda *cuda, int32_t needed, provider **out) {
  *out = tl_cuda_kept(cuda);
  if (*out != NULL) return TL_OK;
  provider *p = calloc(1, sizeof *p);
  if (p == NULL) return tl_fail(TL_MEMORY, "no room for choices of products");
  const tl_status status = tl_gemm_library_open(cuda, &p->library);
  if (status != TL_OK && needed) {
    free(p);
    return status;
  }
  tl_cuda_keep(cuda, p, close_provider);
  *out = p;
  return TL_OK;
}

static const tl_gemm_choice *find(const provider *p, const tl_gemm_shape *shape) {
  for (int32_t i = 0; i < p->count; i++)
    if (memcmp(&p->choices[i].problem.shape, shape, sizeof *shape) == 0) return &p->choices[i];
  return NULL;
}

tl_status tl_gemm_own(tl_gemm_product product, const tl_call *call) {
  if (product == TL_GEMM_LINEAR) return tl_cuda_linear_own(call);
  if (product == TL_GEMM_GRAD_INPUT) return tl_cuda_linear_grad_input_own(call);
  return tl_cuda_linear_grad_weight_own(call);
}

static tl_status choose(provider *p, const tl_call *call, const tl_gemm_shape *shape) {
  const tl_gemm_trial trial = {.library = p->library, .cuda = call->cuda, .own = tl_gemm_own};
  const int32_t provided = tl_cuda_get_blocks(call->cuda)->gemm_provider;
  if (find(p, shape) != NULL) return TL_OK;
  if (p->count == p->room) {
    const int32_t room = p->room == 0 ? 32 : 2 * p->room;
    tl_gemm_choice *more = realloc(p->choices, (size_t)room * sizeof *more);
    if (more == NULL) return tl_fail(TL_MEMORY, "no room for choices of products");
    p->choices = more, p->room = room;
  }
  TL_TRY(tl_gemm_choose(&trial, shape, provided == TL_GEMM_CUBLASLT, &p->choices[p->count]));
  p->count++;
  return TL_OK;
}

static int32_t product_of(tl_op op) {
  return op == TL_OP_linear               ? TL_GEMM_LINEAR
         : op == TL_OP_linear_grad_input  ? TL_GEMM_GRAD_INPUT
         : op == TL_OP_linear_grad_weight ? TL_GEMM_GRAD_WEIGHT
                                          : -1;
}

/* Our own kernel takes all parts of a linear at once, so timing one part against it is no answer:
** under "auto" only what the library takes at once too is chosen for. */
tl_status tl_gemm_prepare(tl_op op, const tl_call *call) {
  const int32_t provided = tl_cuda_get_blocks(call->cuda)->gemm_provider;
  const int32_t product = product_of(op);
  tl_gemm_cut cut;
  provider *p;
  if (provided == TL_GEMM_OWN || product < 0) return TL_OK;
  tl_gemm_cut_call((tl_gemm_product)product, call, &cut);
  if (provided == TL_GEMM_AUTO && cut.count > 1) return TL_OK;
  TL_TRY(open_provider(call->cuda, provided == TL_GEMM_CUBLASLT, &p));
  for (int32_t i = 0; i < cut.count && p->library != NULL; i++)
    TL_TRY(choose(p, call, &cut.shapes[i]));
  return TL_OK;
}

tl_status tl_gemm_by_library(tl_gemm_product product, const tl_call *call, int32_t *done) {
  const provider *p = tl_cuda_kept(call->cuda);
  const tl_gemm_choice *choices[TL_GEMM_LIBRARY_PARTS];
  tl_gemm_cut cut;
  *done = 0;
  if (p == NULL || tl_cuda_get_blocks(call->cuda)->gemm_provider == TL_GEMM_OWN) return TL_OK;
  tl_gemm_cut_call(product, call, &cut);
  for (int32_t i = 0; i < cut.count; i++) {
    choices[i] = find(p, &cut.shapes[i]);
    if (choices[i] == NULL || choices[i]->id == 0) return TL_OK;
  }
  for (int32_t i = 0; i < cut.count; i++)
    TL_TRY(
        tl_gemm_library_run(p->library, &choices[i]->problem, &choices[i]->way, &cut.operands[i]));
  *done = cut.count > 0;
  return TL_OK;
}

const tl_gemm_choice *tl_gemm_chosen(const tl_cuda *cuda, int32_t index) {
  const provider *p = tl_cuda_kept(cuda);
  return p != NULL && index < p->count ? &p->choices[index] : NULL;
}
