/* rope_cuda.h - the arguments of rope_rows, for launchers of kernels that do more in one go. */
#ifndef TL_ROPE_CUDA_H
#define TL_ROPE_CUDA_H

#include "../op.h"
#include "elementwise_args.h"

/* Of a call that tl_rope_rows_check took. */
void tl_rope_rows_args(const tl_call *call, tl_rope_args *out);

#endif
