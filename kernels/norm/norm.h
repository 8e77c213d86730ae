/* norm.h - normalization over the last dim. This text is the specification.
**
**   x, dy, y, dx (T, d), or any shape whose rows of d = elements of gain are normalized one by one
**   gain, bias (d)     mean, rstd (T) f32     x, gain, bias, dy, y, dx: f32 or bf16
**
**          row of x ----> rule(x * x) ----> rstd ----.
**              |                                     v
**              +--------------------------> (x * rstd) * gain ----> y, rounded once
**
** All arithmetic is f32, one IEEE operation for each sign written here; rule(..) is the row rule of
** rows.h over the row's d elements; d is converted to f32.
**
** rms_norm (float eps)
**   square = rule(x * x)          rstd = 1 / sqrt(square / d + eps)
**   y = round((x * rstd) * gain)
**
** rms_norm_grad
**   g = dy * gain                 dot = rule(g * x)
**   c = (rstd * rstd) * (dot / d)
**   dx = round(rstd * (g - x * c))
**
** layer_norm (float eps)
**   mean = rule(x) / d            e = x - mean
**   rstd = 1 / sqrt(rule(e * e) / d + eps)
**   y = round((e * rstd) * gain + bias)
**
** layer_norm_grad
**   g = dy * gain                 h = (x - mean) * rstd
**   a = rule(g) / d               b = rule(g * h) / d
**   dx = round(rstd * ((g - a) - h * b))
**
** Gradients of gain and bias are sums over tokens: sum_tokens of reduce.h with kinds 2, 3 and 0.
** A row's bits depend on that row only. dx may be the memory of dy or of x; y that of x.
*/
#ifndef TL_NORM_H
#define TL_NORM_H

#include "../op.h"

tl_status tl_host_rms_norm(const tl_call *call);
tl_status tl_host_rms_norm_grad(const tl_call *call);
tl_status tl_host_layer_norm(const tl_call *call);
tl_status tl_host_layer_norm_grad(const tl_call *call);

/* What host twin and launcher refuse (norm_check.c). */
tl_status tl_rms_norm_check(const tl_call *call);
tl_status tl_rms_norm_grad_check(const tl_call *call);
tl_status tl_layer_norm_check(const tl_call *call);
tl_status tl_layer_norm_grad_check(const tl_call *call);

#endif
