/* cache_prompt_args.h - what cache_prompt_hopper.cu is passed. */
#ifndef TL_CACHE_PROMPT_ARGS_H
#define TL_CACHE_PROMPT_ARGS_H

#include "../tensor_map.h"
#include "cache_args.h"

enum {
  TL_CACHED_PROMPT_PAIRS = 128,       /* rows times query heads of a tile at most */
  TL_CACHED_PROMPT_QUERIES = 3,       /* tiles whose queries are there */
  TL_CACHED_PROMPT_THREADS = 384,     /* two warpgroups, and one that loads */
  TL_CACHED_PROMPT_BYTES = 128 << 10, /* slots for blocks of keys and of values */
  TL_CACHED_PROMPT_GROUP = 16,        /* query heads of a KV head at most */
  TL_CACHED_PROMPT_ROWS = 16384,      /* of a step at most: the list of tiles is in shared memory */
  TL_CACHED_PROMPT_STATE = 2560       /* bytes: what is told of tiles, barriers */
};

/* Bytes of shared memory: queries of tiles, slots, state, and for each 32 rows a word and a
** count, for each row a place in the list of tiles. */
#define TL_CACHED_PROMPT_SHARED(rows)                                                 \
  (TL_CACHED_PROMPT_QUERIES * TL_CACHED_PROMPT_PAIRS * 128 + TL_CACHED_PROMPT_BYTES + \
   TL_CACHED_PROMPT_STATE + 8 * (((rows) + 31) / 32) + 2 * ((rows) + 2))

typedef struct tl_cached_prompt_args {
  tl_tensor_map q;            /* (T, H, w): heads of a KV head of `a.tile` rows */
  tl_tensor_map keys, values; /* boxes of 64 positions */
  tl_cached_args a;
} tl_cached_prompt_args;

#endif
