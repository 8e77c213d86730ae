/* bind_cuda.h - GPUs that a Lua state has opened. */
#ifndef TL_BIND_CUDA_H
#define TL_BIND_CUDA_H

#include "../cuda.h"
#include "bind.h"

/* GPU `ordinal`, opened at first use and kept as long as the state. */
tl_cuda *bind_cuda(lua_State *L, lua_Integer ordinal);

#endif
