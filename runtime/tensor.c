/* tensor.c - counted buffers and views of their rows. */
#include "tensor.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "memory.h"

typedef struct buffer {
  _Atomic int64_t references;
  void *data;
} buffer;

struct tl_tensor {
  tl_view view;
  buffer *buffer;
};

static tl_status check_shape(tl_dtype dtype, int32_t dims, const int64_t *shape, int64_t *bytes) {
  if (dims < 1 || dims > TL_DIMS_MAX)
    return tl_fail(TL_SHAPE, "a tensor has 1 to %d dims, not %d", TL_DIMS_MAX, dims);
  *bytes = tl_dtype_bytes(dtype);
  for (int32_t i = 0; i < dims; i++) {
    if (shape[i] < 0) return tl_fail(TL_SHAPE, "dim %d has size %lld", i + 1, (long long)shape[i]);
    if (__builtin_mul_overflow(*bytes, shape[i], bytes))
      return tl_fail(TL_SHAPE, "a tensor of this shape has more than 2^63 bytes");
  }
  return TL_OK;
}

static void buffer_release(buffer *b) {
  if (b == NULL || atomic_fetch_sub(&b->references, 1) > 1) return;
  tl_memory_free(b->data);
  free(b);
}

static tl_status wrap(const tl_view *view, buffer *b, tl_tensor **out) {
  tl_tensor *tensor = malloc(sizeof *tensor);
  if (tensor == NULL) return tl_fail(TL_MEMORY, "no room for a tensor's header");
  *tensor = (tl_tensor){.view = *view, .buffer = b};
  *out = tensor;
  return TL_OK;
}

tl_status tl_tensor_new(tl_dtype dtype, int32_t dims, const int64_t *shape, tl_tensor **out) {
  TL_TRY(tl_tensor_new_unset(dtype, dims, shape, out));
  memset((*out)->view.data, 0, (size_t)tl_view_bytes(&(*out)->view));
  return TL_OK;
}

tl_status tl_tensor_new_unset(tl_dtype dtype, int32_t dims, const int64_t *shape, tl_tensor **out) {
  int64_t bytes = 0;
  TL_TRY(check_shape(dtype, dims, shape, &bytes));
  buffer *b = calloc(1, sizeof *b);
  if (b == NULL) return tl_fail(TL_MEMORY, "no room for a tensor's header");
  b->references = 1;
  tl_status status;
  TL_TRY_GOTO(status, tl_memory_alloc(TL_MEMORY_TENSOR, bytes, &b->data), done);
  tl_view view = {.data = b->data, .dtype = dtype, .dims = dims};
  for (int32_t i = 0; i < dims; i++) view.shape[i] = shape[i];
  TL_TRY_GOTO(status, wrap(&view, b, out), done);
  b = NULL;
done:
  buffer_release(b);
  return status;
}

void tl_tensor_release(tl_tensor *tensor) {
  if (tensor == NULL) return;
  buffer_release(tensor->buffer);
  free(tensor);
}

const tl_view *tl_tensor_view(const tl_tensor *tensor) { return &tensor->view; }

tl_status tl_tensor_narrow(const tl_tensor *base, int64_t first, int64_t count, tl_tensor **out) {
  tl_view view = base->view;
  if (first < 0 || count < 0 || first > view.shape[0] || count > view.shape[0] - first)
    return tl_fail(TL_SHAPE, "rows %lld..%lld of a dim of %lld", (long long)first + 1,
                   (long long)(first + count), (long long)view.shape[0]);
  view.data = (char *)view.data + first * tl_view_row(&view) * tl_dtype_bytes(view.dtype);
  view.shape[0] = count;
  TL_TRY(wrap(&view, base->buffer, out));
  atomic_fetch_add(&base->buffer->references, 1);
  return TL_OK;
}

uint64_t tl_view_bits(const tl_view *view, int64_t index) {
  const size_t size = (size_t)tl_dtype_bytes(view->dtype);
  uint64_t bits = 0; /* the supported processors are little endian: the low bytes come first */
  memcpy(&bits, (const char *)view->data + index * (int64_t)size, size);
  return bits;
}

void tl_view_set_bits(const tl_view *view, int64_t index, uint64_t bits) {
  const size_t size = (size_t)tl_dtype_bytes(view->dtype);
  memcpy((char *)view->data + index * (int64_t)size, &bits, size);
}

int64_t tl_view_difference(const tl_view *a, const tl_view *b) {
  if (a->dtype != b->dtype || a->dims != b->dims) return -2;
  for (int32_t i = 0; i < a->dims; i++)
    if (a->shape[i] != b->shape[i]) return -2;
  if (memcmp(a->data, b->data, (size_t)tl_view_bytes(a)) == 0) return -1;
  int64_t index = 0;
  while (tl_view_bits(a, index) == tl_view_bits(b, index)) index++;
  return index;
}
