/* view.h - what kernels see: a dense row-major array that owns nothing.
**
**   data -> [shape[0]][shape[1]]...[shape[dims - 1]]      no strides, no gaps
*/
#ifndef TL_VIEW_H
#define TL_VIEW_H

#include <stdint.h>

#include "dtype.h"

enum { TL_DIMS_MAX = 4 };

typedef struct tl_view {
  void *data;
  tl_dtype dtype;
  int32_t dims; /* 1 to TL_DIMS_MAX */
  int64_t shape[TL_DIMS_MAX];
} tl_view;

static inline int64_t tl_view_count(const tl_view *view) {
  int64_t count = 1;
  for (int32_t i = 0; i < view->dims; i++) count *= view->shape[i];
  return count;
}

/* Elements of one step along dim 0: the product of the other dims. */
static inline int64_t tl_view_row(const tl_view *view) {
  int64_t count = 1;
  for (int32_t i = 1; i < view->dims; i++) count *= view->shape[i];
  return count;
}

static inline int64_t tl_view_bytes(const tl_view *view) {
  return tl_view_count(view) * tl_dtype_bytes(view->dtype);
}

#endif
