/* optimizer.h - the update of weights, and their first values. This text is the specification.
**
** All arithmetic is f32, one operation for each sign, fmaf where written. Elements do not touch
** each other, so any slice of a tensor may be updated anywhere.
**
** adamw (int scalar_first; floats beta1, beta2, eps, decay, lr_scale)
**   grad, m, v, master f32; weight f32 or bf16; control (2) f32 from grad_norm: clip factor, skip
**   numbers of the step, from scalars[scalar_first] on: lr, c1 = 1 / (1 - beta1^t),
**   c2 = 1 / (1 - beta2^t)
**
**   control[1] is 1: nothing is written. Otherwise, with w = master if there is one, else weight:
**       rate = lr * lr_scale
**       g = grad * control[0]
**       m = fmaf(beta1, m, (1 - beta1) * g)
**       v = fmaf(beta2, v, ((1 - beta2) * g) * g)
**       u = (m * c1) / (sqrt(v * c2) + eps)
**       w = fmaf(-rate, fmaf(decay, w, u), w)
**       master = w;  weight = round(w)
**   A bf16 weight without a master is widened, updated and rounded: small updates vanish.
**
** set_state
**   value, state, any equal count, f32; control (2) f32 as above
**   control[1] is 1: nothing is written. Otherwise state = value, every bit of it.
**   The last thing that a step does: whoever read the state before sees the value before the step.
**
** init (ints kind, name_hash, row_first, col_first, cols_full; floats first, second)
**   y (R, C): rows row_first .. and columns col_first .. of a tensor with cols_full columns (dims
**   behind the second count as columns). Element index = row * cols_full + col; words 0 and 1 are
**   those of random.h for (seed, name_hash), counter (index, 0); unit(w) = (w >> 8) * 2^-24
**
**   kind 0   y = first
**        1   normal, mean = first, deviation = second, by Box and Muller:
**            a = unit(word 0) + 2^-24              in (0, 1]
**            r = sqrt(-2 * tl_log(a))
**            y = fmaf(second, r * tl_cos(f32(2 pi) * unit(word 1)), first)
**        2   uniform, first to second:  y = fmaf(second - first, unit(word 0), first)
**   then rounded once. A value hangs on the name, the seed and the logical index alone.
*/
#ifndef TL_OPTIMIZER_H
#define TL_OPTIMIZER_H

#include "../op.h"

tl_status tl_host_adamw(const tl_call *call);
tl_status tl_host_set_state(const tl_call *call);
tl_status tl_host_init(const tl_call *call);

/* What host twin and launcher refuse (optimizer_check.c). A GPU has room for so many scalars, the
** host is told how many the step has. */
tl_status tl_adamw_check(const tl_call *call, int32_t scalar_count);
tl_status tl_set_state_check(const tl_call *call);
tl_status tl_init_check(const tl_call *call);

#endif
