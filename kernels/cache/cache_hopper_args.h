/* cache_hopper_args.h - what cache_hopper.cu is passed. */
#ifndef TL_CACHE_HOPPER_ARGS_H
#define TL_CACHE_HOPPER_ARGS_H

#include "../tensor_map.h"
#include "cache_args.h"

enum {
  TL_CACHED_HOPPER_KEYS = 128,     /* of a block */
  TL_CACHED_HOPPER_BLOCKS = 2,     /* of a group */
  TL_CACHED_HOPPER_BOX = 64 * 128, /* bytes of a box of 64 keys or values */
  TL_CACHED_HOPPER_SLOTS = 16,     /* boxes that the ring holds at most */
  /* and bytes of what else is in shared memory: weights of a group, f32 and bf16, and the state */
  TL_CACHED_HOPPER_REST = TL_CACHED_HOPPER_BLOCKS * TL_CACHED_HOPPER_KEYS * 8 * 6 + 2048,
  TL_CACHED_HOPPER_MAPS = 4,
  TL_CACHED_HOPPER_THREADS = 6 * 32,
  TL_CACHED_HOPPER_TOGETHER = 4 /* blocks on a multiprocessor at most */
};

typedef struct tl_cached_hopper_args {
  /* Boxes of 64 positions, of which only the first 16, 32, 48 or all are read, the others zeros:
  ** (P G, w, B / 64, 64) and (P B / 64, 64, G, x). */
  tl_tensor_map keys[TL_CACHED_HOPPER_MAPS], values[TL_CACHED_HOPPER_MAPS];
  tl_cached_args a;
  int32_t depth;  /* boxes that the ring holds */
  int32_t spread; /* all warps ask for the first boxes */
  int32_t early;  /* only the rows' own places change in this section; a.ahead holds too */
} tl_cached_hopper_args;

#endif
