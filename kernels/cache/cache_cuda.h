/* cache_cuda.h - arguments of the cache's kernels, for launchers of kernels that do more. */
#ifndef TL_CACHE_CUDA_H
#define TL_CACHE_CUDA_H

#include "../op.h"
#include "cache_args.h"

/* They check the call, too. */
tl_status tl_cache_write_args_of(const tl_call *call, tl_cache_write_args *out);
tl_status tl_attention_cached_args_of(const tl_call *call, tl_cached_args *out);

/* How units of work, a row and a KV head each, are shared out among blocks of cache_hopper.cu:
** blocks, bytes of shared memory of each, boxes in its ring. */
typedef struct tl_cached_plan {
  int64_t blocks, shared;
  int32_t depth;
} tl_cached_plan;

tl_cached_plan tl_cached_hopper_plan(int64_t units, int64_t multiprocessors);

#endif
