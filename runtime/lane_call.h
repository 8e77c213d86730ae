/* lane_call.h - one host kernel as a task of a lane. */
#ifndef TL_LANE_CALL_H
#define TL_LANE_CALL_H

#include "../kernels/op.h"
#include "lane.h"
#include "tensor.h"

/* Queues the call, which has a host kernel. Numbers and views are copied, and the tensors (count)
** that own the memory of the views are kept alive until the task has ended: the caller may close
** its own right away, but reads and writes them only after a wait. */
tl_status tl_lane_call(tl_lane *lane, tl_op op, const tl_call *call, tl_tensor *const *tensors,
                       int32_t count, int64_t *event);

#endif
