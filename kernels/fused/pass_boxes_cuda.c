/* pass_boxes_cuda.c - see pass_boxes.h. */
#include "pass_boxes.h"

int32_t tl_pass_has_boxes(const tl_pass_phase *phases, int32_t count) {
  for (int32_t i = 0; i < count; i++)
    if (phases[i].kind == TL_PASS_LINEAR && phases[i].product.run % TL_PASS_GROUP != 0) return 0;
  return 1;
}

tl_status tl_pass_maps(tl_cuda *cuda, const tl_pass_phase *phase, tl_tensor_map *out) {
  const tl_gemm_few_args *g = &phase->product;
  const int32_t groups = TL_PASS_DEPTH / TL_PASS_GROUP;
  for (int32_t i = 0; phase->kind == TL_PASS_LINEAR && i < g->parts; i++) {
    const tl_tensor_box box = {
        .data = g->weight[i],
        .dtype = TL_BF16,
        .dims = 4,
        .size = {TL_PASS_GROUP, g->columns[i],        g->run / TL_PASS_GROUP, g->leaves},
        .stride = {1,             g->weight_stride[i],  TL_PASS_GROUP,          g->run   },
        .box = {TL_PASS_GROUP, TL_PASS_FEATURES / 2, groups,                 1        },
        .plain = 1,
    };
    TL_TRY(tl_tensor_map_make(cuda, "map of weights of a pass", &box, &out[i]));
  }
  return TL_OK;
}
