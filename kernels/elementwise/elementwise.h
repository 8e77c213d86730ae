/* elementwise.h - operators on single elements, and on pairs for rope.
** This text is the specification.
**
** Inputs are f32 or bf16, widened exactly; all arithmetic is f32, one IEEE operation for each sign
** written here, fmaf where written; each output element is rounded once to its tensor's dtype.
** sig is tl_sigmoid of math.h.
**
** swiglu           y = round((g * sig(g)) * u)                       g = gate, u = up
** swiglu_grad      s = sig(g)
**                  dup = round(dy * (g * s))
**                  dgate = round((dy * u) * (s * (1 + g * (1 - s))))
** unary            y = round(f(x)), unary_grad dx = round(f'(dy, x)); kinds and formulas: unary.h
** binary           y = round(a op b)    kind 0 a + b   1 a - b   2 a * b   3 a / b
**                    broadcast 0   b has the shape of a
**                              1   b is a row (d), the same for every row of a (T, d)
**                              2   b is a column (T), one number for each row of a (T, d)
** scale            y = round(x * factor)
** scale_step       y = round(x * scalars[scalar])      a number that was planned for the step
** cast             y = round(x)
** fill             y = round(value)
**
** dropout (ints key, first, length, token_first, tokens, feature_first, features; float rate)
**   x, y (samples * tokens, local features): `tokens` rows of each sample stand here, starting with
**   token token_first of a sample of `length` tokens, with the features from feature_first on:
**
**       logical activation   [sample of the global batch][token < length][feature < features]
**       row i here           sample = sample_base + first + i div tokens
**                            token  = token_first + i mod tokens
**       index = (sample * length + token) * features + feature_first + local feature
**
**   w = word 0 of random.h for (seed, key), counter (index, step); u = (w >> 8) * 2^-24
**   y = round(x * (1 / (1 - rate))) if u >= rate, else +0. rate 0: y = x. The gradient is the same
**   operator on dy: the mask is drawn again, never stored.
**
** rope (ints inverse, interleaved)
**   x, y (T, .., c)   table (P, D/2, 2) f32 = cos, sin   D <= c   cu (segment starts, i32)
**   position p = row - start of its segment; p >= P is an error that names both.
**
**       half-split   x: [ a0 a1 .. | b0 b1 .. | rest ]     pair i is (x_i, x_{i + D/2})
**       interleaved  x: [ a0 b0 a1 b1 ..      | rest ]     pair i is (x_{2i}, x_{2i+1})
**
**   ya = round(fmaf(a, cos, -(b * sin)))      yb = round(fmaf(b, cos, a * sin))
**   inverse turns back: sin is replaced by -sin (the gradient). Channels from D on are copied.
**
** rope_rows (ints inverse, interleaved)
**   rope, with p = positions[row] instead of cu (positions (T) i32): for rows of many requests.
**
** rope_table (ints kind, original; floats base, factor, low, high, magnitude)
**   table (P, n, 2), D = 2n.  f_i = E(-((2i) / D) * L(base)) in f64, one operation for
**   each sign, then rounded to f32. With x = 2^e m, m in [1, 2), and z = (m - 1) / (m + 1):
**       L(x) = e + (2 / ln2) * (z * s),  s = 1/41, then s = s * (z * z) + 1/i for i = 39, 37 .. 1
**       E(x) = 2^n * y,  n = x to a whole number, ties away from 0,  t = (x - n) * ln2,
**              y = 1, then y = 1 + t / i * y for i = 20 .. 1;  ln2 = 0x1.62e42fefa39efp-1
**   kind 0: plain. kind 1 (llama3): in f64, before rounding,
**       w = 2 pi / f      w > original / low: f / factor      w < original / high: f
**       else  t = (original / w - low) / (high - low),  f = (1 - t) * (f / factor) + t * f
**   kind 2 (yarn): in f64, before rounding, with cd(r) = D L(original / (r 2 pi)) / (2 L(base)),
**       a = max(floor(cd(high)), 0)      b = min(ceil(cd(low)), D - 1), and + 0.001 where a = b
**       t = (i - a) / (b - a), kept in 0 .. 1,  f = f / factor * t + f * (1 - t)
**   angle = f32(p) * f_i in f32;  cos = tl_cos(angle) * magnitude, sin = tl_sin(angle) * magnitude,
**   f32 products (magnitude 1 changes no bit).  P <= 2^21.
**
** The output may be the memory of an input of the same dtype: swiglu y of gate or up, dgate of dy
** or gate, dup of dy or up, unary, scale, dropout, rope and rope_rows y of x,
** binary y of a, unary_grad dx of dy.
*/
#ifndef TL_ELEMENTWISE_H
#define TL_ELEMENTWISE_H

#include "../op.h"

tl_status tl_host_swiglu(const tl_call *call);
tl_status tl_host_swiglu_grad(const tl_call *call);
tl_status tl_host_unary(const tl_call *call);
tl_status tl_host_unary_grad(const tl_call *call);
tl_status tl_host_binary(const tl_call *call);
tl_status tl_host_scale(const tl_call *call);
tl_status tl_host_scale_step(const tl_call *call);
tl_status tl_host_dropout(const tl_call *call);
tl_status tl_host_cast(const tl_call *call);
tl_status tl_host_fill(const tl_call *call);
tl_status tl_host_rope(const tl_call *call);
tl_status tl_host_rope_rows(const tl_call *call);
tl_status tl_host_rope_table(const tl_call *call);

/* What host twin and launcher refuse (elementwise_check.c). Segments are numbers in memory, which
** the host alone looks at. */
tl_status tl_swiglu_check(const tl_call *call);
tl_status tl_swiglu_grad_check(const tl_call *call);
tl_status tl_unary_check(const tl_call *call);
tl_status tl_unary_grad_check(const tl_call *call);
tl_status tl_binary_check(const tl_call *call);
tl_status tl_scale_check(const tl_call *call);
/* `scalar_count`: numbers that a step has. */
tl_status tl_scale_step_check(const tl_call *call, int32_t scalar_count);
tl_status tl_dropout_check(const tl_call *call);
tl_status tl_cast_check(const tl_call *call);
tl_status tl_fill_check(const tl_call *call);
tl_status tl_rope_check(const tl_call *call);
tl_status tl_rope_rows_check(const tl_call *call);
tl_status tl_rope_table_check(const tl_call *call);

#endif
