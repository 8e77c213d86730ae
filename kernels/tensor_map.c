/* tensor_map.c - asks the driver for a map. */
#include "tensor_map.h"

enum { /* numbers of the driver's interface */
       TYPE_F32 = 7,
       TYPE_BF16 = 9,
       INTERLEAVE_NONE = 0,
       SWIZZLE_128_BYTES = 3,
       PROMOTE_NOTHING = 0,
       PROMOTE_256_BYTES = 3,
       FILL_ZEROS = 0
};

tl_status tl_tensor_map_make(tl_cuda *cuda, const char *what, const tl_tensor_box *box,
                             tl_tensor_map *out) {
  const tl_cuda_api *api = tl_cuda_calls(cuda);
  const int64_t bytes = tl_dtype_bytes(box->dtype);
  uint64_t size[TL_TENSOR_MAP_DIMS], stride[TL_TENSOR_MAP_DIMS];
  uint32_t lengths[TL_TENSOR_MAP_DIMS];
  const uint32_t steps[TL_TENSOR_MAP_DIMS] = {1, 1, 1, 1};
  for (int32_t i = 0; i < box->dims; i++) {
    size[i] = (uint64_t)box->size[i];
    lengths[i] = (uint32_t)box->box[i];
    if (i > 0) stride[i - 1] = (uint64_t)(box->stride[i] * bytes);
  }
  return tl_cuda_check(
      api,
      api->tensor_map(out, box->dtype == TL_BF16 ? TYPE_BF16 : TYPE_F32, (uint32_t)box->dims,
                      (void *)(uintptr_t)box->data, size, stride, lengths, steps, INTERLEAVE_NONE,
                      SWIZZLE_128_BYTES, box->plain ? PROMOTE_NOTHING : PROMOTE_256_BYTES,
                      FILL_ZEROS),
      what);
}
