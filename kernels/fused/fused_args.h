/* fused_args.h - what the kernels of fused.cu are passed. */
#ifndef TL_FUSED_ARGS_H
#define TL_FUSED_ARGS_H

#include "../cache/cache_args.h"
#include "../elementwise/elementwise_args.h"
#include "../norm/norm_args.h"

typedef struct tl_add_norm_args {
  tl_array a, b;
  tl_norm_args norm; /* x: the sum */
} tl_add_norm_args;

typedef struct tl_fused_norm_args {
  tl_add_norm_args sum;
  int32_t ahead; /* no kernel that may still run writes the gain */
} tl_fused_norm_args;

typedef struct tl_rope_write_args {
  tl_rope_args q, k; /* k.y: nothing is written there */
  tl_cache_write_args write;
  int32_t wide;  /* values are copied 16 bytes at a time */
  int32_t ahead; /* no kernel that may still run writes request, position, a table */
} tl_rope_write_args;

enum { TL_ROPE_WRITE_THREADS = 320 };

#endif
