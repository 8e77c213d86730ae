/* cache_hopper_args.h - what cache_hopper.cu is passed. */
#ifndef TL_CACHE_HOPPER_ARGS_H
#define TL_CACHE_HOPPER_ARGS_H

#include "../tensor_map.h"
#include "cache_args.h"

enum {
  TL_CACHED_HOPPER_KEYS = 128,       /* of a block */
  TL_CACHED_HOPPER_BLOCK = 4 * 8192, /* bytes of a block of keys and values in shared memory */
  TL_CACHED_HOPPER_REST = 4352,      /* and of what else is there */
  TL_CACHED_HOPPER_THREADS = 128,
  TL_CACHED_HOPPER_TOGETHER = 4 /* blocks on a multiprocessor at most */
};

typedef struct tl_cached_hopper_args {
  tl_tensor_map keys, values; /* (P G, w, B), box 64 x 64; (P B, G, x), box 64 x 1 x 64 */
  tl_cached_args a;
  int32_t depth; /* blocks of keys that the ring holds: 1 or 2 */
  int32_t early; /* only the rows' own places change in this section; a.ahead holds too */
} tl_cached_hopper_args;

#endif
