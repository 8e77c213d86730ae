/* cache_args.h - what the GPU kernels of the cache are passed, and which of them there are.
**
**   cache_write_*            a thread an element of k, then of v
**   attention_cached_f32     a block of threads a row and KV head
**   attention_cached_one_w   the same in bf16 for heads of up to w channels: steps that decode
**   attention_cached_hopper_64  six warps a row and KV head: steps in which many decode
**   attention_cached_many_w  for steps of many rows: those of one request that stand side by side
**                            share a block (cache_attention.cu)
**   attention_cached_prompt_64_b  the same on sm_90a, for what most models have (cache_cuda.c says
**                            what it takes): b keys a block (cache_prompt_hopper.cu)
**
** A GPU cannot say which number is out of range: a row that names a request, a position or a page
** that there is not is not written, and its o is NaN.
*/
#ifndef TL_CACHE_ARGS_H
#define TL_CACHE_ARGS_H

#include <stdint.h>

typedef struct tl_cache_places {
  const int32_t *request, *position; /* (rows) */
  const int32_t *table;              /* (requests, pages_max) */
  int32_t rows, requests, pages_max, pages;
  int32_t page;  /* positions of a page */
  int32_t shift; /* its logarithm; -1: it is no power of two */
} tl_cache_places;

typedef struct tl_cache_write_args {
  tl_cache_places at;
  const void *k, *v;   /* (rows, kv_heads, width), (rows, kv_heads, value_width) */
  void *keys, *values; /* the pools */
  int32_t bytes;       /* of an element */
  int32_t kv_heads, width, value_width;
} tl_cache_write_args;

typedef struct tl_cached_args {
  tl_cache_places at;
  const void *q, *keys, *values;
  void *o;
  int32_t heads, kv_heads, group; /* group: query heads of a KV head */
  int32_t width, value_width;
  /* Pages hold whole pieces of 8 positions, so that threads share what they look up and copy 16
  ** bytes at once, of a key's channel and of a value's channels. */
  int32_t pages_are_shared;
  int32_t o_is_bf16;
  int32_t ahead;  /* no kernel that may still run writes request, position or table */
  int32_t tile;   /* rows of a block of threads: together where they are of one request */
  int32_t window; /* keys that a row sees at most */
  int32_t kv_block, split;
  float factor;
} tl_cached_args;

/* Heads up to this width, keys at a time, tiles of keys or values in shared memory. */
#define TL_CACHED_MANY(ROW) ROW(64, 128, 4) ROW(128, 128, 3) ROW(256, 64, 3)
#define TL_CACHED_ONE(ROW) ROW(64, 128, 3) ROW(128, 128, 3) ROW(256, 64, 3)

enum {
  TL_CACHED_THREADS = 128, /* of a block, bf16 */
  TL_CACHED_VECTORS = 64,  /* rows times query heads of a block of one request */
  TL_CACHED_F32_THREADS = 256,
  TL_CACHED_F32_HEADS = 8 /* query heads at a time */
};

/* Bytes of shared memory: of a tile; of bf16, for blocks of `block` keys, whole chunks; of f32. */
#define TL_CACHED_TILE(w, chunk)                                                  \
  ((w) * (2 * (chunk) + 16) > (chunk) * (2 * (w) + 16) ? (w) * (2 * (chunk) + 16) \
                                                       : (chunk) * (2 * (w) + 16))
#define TL_CACHED_QUERIES(w, pairs) ((pairs) * (2 * (w) + 16))
#define TL_CACHED_SCORES(block) (16 * 4 * ((block) + 4))
#define TL_CACHED_WEIGHTS(block) (16 * (2 * (block) + 16))
#define TL_CACHED_STATE (16 * 4 * 8)
#define TL_CACHED_SHARED(w, chunk, slots, pairs, block)                               \
  ((slots)*TL_CACHED_TILE(w, chunk) + TL_CACHED_QUERIES(w, pairs) + TL_CACHED_STATE + \
   TL_CACHED_SCORES(block) + TL_CACHED_WEIGHTS(block))
#define TL_CACHED_F32_SHARED(w, block) (4 * TL_CACHED_F32_HEADS * ((w) + (block) + 8))

#endif
