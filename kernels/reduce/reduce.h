/* reduce.h - sums over tokens, leaves and whole tensors. This text is the specification.
**
** All arithmetic is f32, one operation for each sign, fmaf where written.
**
** sum_tokens (ints kind, first, samples, length, runs, mode)
**   acc (runs, d) f32, read and written      dy (T, d), x (T, d): f32 or bf16
**   rstd, mean (T, G) f32: G parts of d / G neighbouring columns that were normalized apart (the
**   heads of a row); G is what rstd has for a row, 1 where rows were normalized whole
**
**   rows first .. first + samples * length - 1, as `samples` pieces of `length` rows:
**
**     piece     [ run 0        | run 1        | ... ]      run r: floor(r length / runs) ..
**     run r     [ 64 | 64 | 64 | rest ]                    blocks from the run's own start
**
**   for each piece, ascending; for each block of run r, ascending:
**       s = +0;  for each row of the block, ascending:  s = term(row, s);   acc[r] = acc[r] + s
**
**   kind 0   s + dy                            biases, losses
**        1   fmaf(dy, x, s)                    elementwise gains
**        2   fmaf(dy, x * rstd, s)             gain of rms_norm, rstd of the column's part
**        3   fmaf(dy, (x - mean) * rstd, s)    gain of layer_norm
**   mode 0: acc starts at +0. mode 1: acc goes on from what it holds, so pieces given in several
**   calls make the bits of one call. dy may be (T): d = 1.
**
** fold       x (n, d) -> y (d), n a power of two: y = round(tree over the n rows), where
**            tree: ((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7)) ...  y is f32 or bf16
**
** square_sum (ints axis, begin, extent, parts, slot_first)
**   g, any shape, f32 or bf16; slots f32, of which part p takes slots[slot_first + p].
**   Indices begin .. begin + extent - 1 of dim `axis` are cut into `parts` runs at floor borders;
**   part p is the sub-array of run p, read row-major in chunks of 65,536 elements:
**       slot = +0, then for each chunk, ascending: slot = slot + rule(g * g)
**   with the row rule of rows.h inside a chunk (element i of the chunk to partial i mod 2,048).
**   All other slots are +0; parts 0 leaves nothing but zeros, as for a rank that owns no part.
**
** square_sum_rows (ints places...)
**   g (n, d), f32 or bf16; slots f32, read and written: slots[places[i]] = square_sum of row i of g
**   as one part. Place -1: the row is left out. No other slot is touched. Numbers of +0 at the end
**   of a row, what fills an expert of a stack up to a border, change no bit.
**
** grad_norm (ints counts...; float clip)
**   slots (sum of counts) f32: counts[0] slots of the first tensor, counts[1] of the second, ...,
**   each a power of two; count (1) i64: targets of the step; loss (1) f32
**       total = +0, then for each tensor: total = total + tree over its slots
**       norm = sqrt(total)
**       control[0] = clip > 0 and q < 1 ? q : 1,  q = clip / (norm + f32(1e-6))
**       control[1] = 1 if count is 0, or norm or loss is not finite, else 0: adamw then changes
**                    nothing
*/
#ifndef TL_REDUCE_H
#define TL_REDUCE_H

#include "../op.h"

tl_status tl_host_sum_tokens(const tl_call *call);
/* Checks rstd and mean of sum_tokens and finds G; rows and columns are those of dy. */
tl_status tl_sum_tokens_parts(const tl_call *call, int64_t rows, int64_t dim, int64_t *out);
tl_status tl_host_fold(const tl_call *call);
tl_status tl_host_square_sum(const tl_call *call);
tl_status tl_host_square_sum_rows(const tl_call *call);
/* Whether operands and places suit each other, for both twins. */
tl_status tl_square_sum_rows_check(const tl_call *call);
tl_status tl_host_grad_norm(const tl_call *call);

#endif
