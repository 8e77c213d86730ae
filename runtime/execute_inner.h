/* execute_inner.h - what the executors of both devices share. */
#ifndef TL_EXECUTE_INNER_H
#define TL_EXECUTE_INNER_H

#include "execute.h"

/* Runs a data instruction into `out`, views of host memory in the order of its outputs. */
tl_status tl_execute_data(const tl_executor *executor, const tl_instruction *instruction,
                          int64_t step, const tl_view *out);

/* Looks for NaN and Inf in output `position` of an instruction, whose values are in `view`. */
tl_status tl_execute_check(const tl_executor *executor, int32_t index, int32_t position,
                           const tl_view *view);

/* What a test asked for at this instruction: before it, or after it. */
tl_status tl_execute_faults(const tl_executor *executor, int32_t index, int64_t step,
                            int32_t after);

/* How long delay_us makes this rank wait before this instruction, in ns. */
int64_t tl_execute_delay(const tl_executor *executor, int32_t index, int64_t step);

/* Every GPU kernel that the program needs must be there before anything runs. */
tl_status tl_execute_kernels(const tl_program *program);

/* Puts the place (rank, step, micro-batch, instruction, recipe line) in front of the thread's
** message; returns `status`. */
tl_status tl_execute_locate(const tl_executor *executor, int32_t index, const tl_step *step,
                            tl_status status);

#endif
