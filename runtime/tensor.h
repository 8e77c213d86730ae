/* tensor.h - arrays that own their memory, for Lua and for tests.
**
**   buffer   +---------------------------------+   one counted block
**   tensor          [first row .. last row]        any number of views of its rows
**
** A tl_view is what kernels see: a plain value that owns nothing. A tl_tensor is what Lua holds: a
** view and one reference on its buffer. Always dense and row-major, so a view takes whole rows of
** dim 0. Dims count from 0 here and from 1 in Lua; runtime/bind/ converts, nobody else does.
*/
#ifndef TL_TENSOR_H
#define TL_TENSOR_H

#include "view.h"

typedef struct tl_tensor tl_tensor;

/* All elements +0. Fails for dims outside 1 .. TL_DIMS_MAX, a negative size, too many bytes. */
tl_status tl_tensor_new(tl_dtype dtype, int32_t dims, const int64_t *shape, tl_tensor **out);
/* The same with arbitrary elements, for a caller that sets every one. */
tl_status tl_tensor_new_unset(tl_dtype dtype, int32_t dims, const int64_t *shape, tl_tensor **out);
/* Drops the caller's reference; NULL is allowed. */
void tl_tensor_release(tl_tensor *tensor);

/* Valid as long as the tensor. */
const tl_view *tl_tensor_view(const tl_tensor *tensor);

/* Rows first .. first + count - 1 of dim 0. Shares `base`'s buffer and keeps it alive. The caller
** owns *out; on failure it is untouched. */
tl_status tl_tensor_narrow(const tl_tensor *base, int64_t first, int64_t count, tl_tensor **out);

/* Element `index` in row-major order, as bits; f32 and i32 use the low 32, bf16 16, u8 8. */
uint64_t tl_view_bits(const tl_view *view, int64_t index);
void tl_view_set_bits(const tl_view *view, int64_t index, uint64_t bits);

/* The first index where the bits differ; -1 when dtype, shape and all bits are equal; -2 when
** dtype or shape differ. */
int64_t tl_view_difference(const tl_view *a, const tl_view *b);

#endif
