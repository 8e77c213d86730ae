/* fused.h - several instructions that follow each other, as one kernel of a GPU.
**
**   follow, embedding                                       fused_tokens: the begin of a step
**   binary (a sum of equal shapes), rms_norm of it          fused_add_norm: the end of a residual
**   linear of several leaves, then those two                linear_hopper_leaf_*, fused_leaves_*
**   rope_rows of q, rope_rows of k, cache_write of k and v  fused_rope_write
**       both in steps of many rows                          fused_add_norm_*, fused_rope_write_rows
**   linear of q, k and v, then those three                  rope_hopper_*
**   linear of gate and up, swiglu, linear of that           swiglu_hopper_*, then the last linear,
**                                                           with the two behind it as above
**   sample, row_max, row_sum_exp, cross_entropy             fused_choice*: the end of a step
**
** A value that leaves an instruction is rounded where it was before, so no bit changes; what is
** saved is the time between kernels, which is most of the time of rows that are few. Instructions
** that are looked at one by one (traces, checks, faults) are queued one by one.
**
** Memory. The planner may put an output where an operand of an earlier instruction lay; one kernel
** has both at once. So calls are only fused when no output meets an operand of another call, or
** when it is exactly that operand, element by element. The turned k goes to the pages alone, so it
** may be fused where the program reads it nowhere else, and rstd is left out where nothing reads
** it: who asks says so.
*/
#ifndef TL_FUSED_H
#define TL_FUSED_H

#include "../op.h"

enum { TL_FUSED_MAX = 5 };

typedef struct tl_fused_call {
  tl_op op;
  tl_call call;
  int32_t only_next_reads; /* of rope_rows, linear, swiglu, row_sum_exp: nothing after the next
                              instruction reads an output; of row_max: after the next two; of a
                              linear before rope_rows: after the next three */
  int32_t rstd_is_unread;  /* of rms_norm: nothing reads rstd, which need not be written */
} tl_fused_call;

/* Whether some kernel here does a call of `op` and those behind it. */
int32_t tl_fused_begins(tl_op op);

/* *done: how many of the first of `count` calls were queued, as one kernel; 0: none. */
tl_status tl_fused(const tl_fused_call *calls, int32_t count, int32_t *done);

#endif
