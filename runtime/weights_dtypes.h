/* weights_dtypes.h - element types that a safetensors file may name. Private to weights_*.c. */
#ifndef TL_WEIGHTS_DTYPES_H
#define TL_WEIGHTS_DTYPES_H

#include <string.h>

#include "dtype.h"

typedef struct tl_weights_dtype {
  const char *name;
  int64_t bytes;
  int32_t dtype; /* tl_dtype, or -1 */
} tl_weights_dtype;

static const tl_weights_dtype tl_weights_dtypes[] = {
    {"F32",     4, TL_F32 },
    {"BF16",    2, TL_BF16},
    {"I32",     4, TL_I32 },
    {"I64",     8, TL_I64 },
    {"U8",      1, TL_U8  },
    {"F64",     8, -1     },
    {"F16",     2, -1     },
    {"F8_E4M3", 1, -1     },
    {"F8_E5M2", 1, -1     },
    {"F8_E8M0", 1, -1     },
    {"I8",      1, -1     },
    {"I16",     2, -1     },
    {"U16",     2, -1     },
    {"U32",     4, -1     },
    {"U64",     8, -1     },
    {"BOOL",    1, -1     },
};

enum { TL_WEIGHTS_DTYPE_COUNT = sizeof tl_weights_dtypes / sizeof tl_weights_dtypes[0] };

static inline const tl_weights_dtype *tl_weights_dtype_find(const char *name) {
  for (int i = 0; i < TL_WEIGHTS_DTYPE_COUNT; i++)
    if (strcmp(tl_weights_dtypes[i].name, name) == 0) return &tl_weights_dtypes[i];
  return NULL;
}

static inline const tl_weights_dtype *tl_weights_dtype_of(tl_dtype dtype) {
  for (int i = 0; i < TL_WEIGHTS_DTYPE_COUNT; i++)
    if (tl_weights_dtypes[i].dtype == (int32_t)dtype) return &tl_weights_dtypes[i];
  return NULL;
}

#endif
