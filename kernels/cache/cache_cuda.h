/* cache_cuda.h - the arguments of cache_write, for launchers of kernels that do more in one go. */
#ifndef TL_CACHE_CUDA_H
#define TL_CACHE_CUDA_H

#include "../op.h"
#include "cache_args.h"

/* Checks the call, too. */
tl_status tl_cache_write_args_of(const tl_call *call, tl_cache_write_args *out);

#endif
