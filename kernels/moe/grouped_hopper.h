/* grouped_hopper.h - the products of the rows of each expert through grouped_hopper.cuh; private to
** moe/.
**
** A launch fits when the GPU is of architecture 9.0, factors are bf16, and everything that the copy
** engine moves begins and strides at multiples of 16 bytes. All else goes through grouped_bf16.cu,
** with the same bits.
*/
#ifndef TL_GROUPED_HOPPER_H
#define TL_GROUPED_HOPPER_H

#include "moe.h"

/* Calls that have been checked. Launch all of it and set *done, or clear *done where it does not
** fit. */
tl_status tl_grouped_hopper_linear(const tl_call *call, int32_t *done);
tl_status tl_grouped_hopper_grad_input(const tl_call *call, int32_t *done);
tl_status tl_grouped_hopper_grad_weight(const tl_call *call, int32_t *done);

#endif
