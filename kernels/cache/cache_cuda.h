/* cache_cuda.h - arguments of the cache's kernels, for launchers of kernels that do more. */
#ifndef TL_CACHE_CUDA_H
#define TL_CACHE_CUDA_H

#include "../op.h"
#include "cache_args.h"

/* They check the call, too. */
tl_status tl_cache_write_args_of(const tl_call *call, tl_cache_write_args *out);
tl_status tl_attention_cached_args_of(const tl_call *call, tl_cached_args *out);

#endif
