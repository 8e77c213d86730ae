/* dtype.c - the table of element types. */
#include "dtype.h"

static const struct {
  const char *name;
  int64_t bytes;
} dtypes[] = {
#define DTYPE(name, text, bytes) {text, bytes},
#include "dtype.def"
#undef DTYPE
};

int64_t tl_dtype_bytes(tl_dtype dtype) { return dtypes[dtype].bytes; }

const char *tl_dtype_name(tl_dtype dtype) { return dtypes[dtype].name; }

tl_status tl_dtype_parse(const char *name, tl_dtype *out) {
  for (int i = 0; i < TL_DTYPE_COUNT; i++)
    if (strcmp(name, dtypes[i].name) == 0) {
      *out = (tl_dtype)i;
      return TL_OK;
    }
  return tl_fail(TL_DTYPE, "unknown dtype %s; there are f32, bf16, i32, i64, u8", name);
}
