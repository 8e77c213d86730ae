/* attention_hopper.h - launches Hopper's kernels of attention, where they take a call.
**
** They take bf16 heads of up to 256 channels, multiples of 8, in memory that begins at multiples
** of 16 bytes, and in the forward pass a bf16 output and blocks of 64 keys, or of 128 where heads
** have up to 128 channels. What they do not take goes to the plain kernels (attention_cuda.c), with
** the same bits.
*/
#ifndef TL_ATTENTION_HOPPER_H
#define TL_ATTENTION_HOPPER_H

#include "attention_args.h"
#include "attention_call.h"

/* Whether they run this call: if they take it and blocks.attention.q (tl_cuda_blocks) is not 64.
** Where it is 128, a call that they do not take is an error that says what they take. */
tl_status tl_attention_hopper_runs(const tl_call *call, const tl_attention_sizes *sizes,
                                   const tl_attention_args *args, int *out);
tl_status tl_attention_hopper(const tl_call *call, const tl_attention_sizes *sizes,
                              const tl_attention_args *args);

/* dq, dk and dv of the heads that args name, after attention_grad_sums. `scratch` lies behind the
** sums. `is_first`: these are the first heads, so rows of no segment are written too. */
tl_status tl_attention_hopper_runs_grad(const tl_call *call, const tl_attention_sizes *sizes,
                                        const tl_attention_args *args, int *out);
tl_status tl_attention_hopper_grad(const tl_call *call, const tl_attention_sizes *sizes,
                                   const tl_attention_args *args, void *scratch, int is_first);

#endif
