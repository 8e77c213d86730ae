/* call_cuda.h - one operator on a GPU, with operands in host memory: copied in, run, copied out.
**
** For tests and the REPL; a run keeps its tensors on the device (execute_cuda.h). Operands that are
** the same host memory are the same device memory too, so that in-place calls stay in place.
*/
#ifndef TL_CALL_CUDA_H
#define TL_CALL_CUDA_H

#include "../kernels/op.h"
#include "cuda.h"

enum { TL_CALL_OPERANDS_MAX = 64 };

/* `call` as for the host twin; its step is host memory. Waits for the result. With `repeats` above
** 0 the operator then runs twice that many times more, as graphs, and *ms is the time of one run of
** the second half by events of the GPU: outputs that the operator also reads go on from there. */
tl_status tl_call_on_gpu(tl_cuda *cuda, tl_op op, const tl_call *call, int32_t repeats, float *ms);

/* The same with operands that the GPU reaches at their addresses, such as those of a span
** (span_cuda.h); its step is host memory. Waits for the end. */
tl_status tl_call_in_place(tl_cuda *cuda, tl_op op, const tl_call *call);

#endif
