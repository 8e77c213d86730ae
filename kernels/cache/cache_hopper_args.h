/* cache_hopper_args.h - what cache_hopper.cu is passed. */
#ifndef TL_CACHE_HOPPER_ARGS_H
#define TL_CACHE_HOPPER_ARGS_H

#include "../tensor_map.h"
#include "cache_args.h"

enum {
  TL_CACHED_HOPPER_KEYS = 128, /* of a block */
  TL_CACHED_HOPPER_SHARED = 4 * 8192 + 4 * 8
};

typedef struct tl_cached_hopper_args {
  tl_tensor_map keys, values; /* (P G, w, B), box 64 x 64; (P B, G, x), box 64 x 1 x 64 */
  tl_cached_args a;
} tl_cached_hopper_args;

#endif
