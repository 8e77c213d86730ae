/* loss.h - softmax cross entropy in pieces that a sharded vocabulary can join.
** This text is the specification.
**
**   z (T, W) logits, f32 or bf16: W columns of the padded vocabulary, of which the first `columns`
**   are true ids first, first + 1, ...; the rest is padding and never read as a value
**   m, s, zt, zsum, loss, dloss, lse (T) f32     targets (T) i32, below 0 = ignored
**
**     z --> row_max --> m ==(max over ranks)==> row_sum_exp --> s, zt, zsum ==(trees over ranks)==>
**       --> cross_entropy --> loss            cross_entropy_grad: z, m, s --> dz
**
** All arithmetic is f32, one operation for each sign, fmaf where written. L = f32(log2 e);
** log(x) = tl_log2(x) * f32(ln 2); exp(z - m) is everywhere
**
**     E(z, m) = tl_exp2(fmaf(z, L, -(m * L)))          exactly 1 for the largest logit of a row
**
** row_max (int columns)        m = the largest true column, + 0 (no -0); -infinity without any
** row_sum_exp (ints columns, first, leaves)
**   The W columns are cut into `leaves` (a power of two, a divisor of W) equal runs; within a run
**   the row rule of rows.h over its true columns, index from the run's start; a run without true
**   columns gives +0:
**       s    = tree over runs of rule(E(z, m))       zsum = tree over runs of rule(z - m)
**       zt   = z[target - first] + 0 if the target is one of this part's true columns, else +0
**   zt has one owner; s and zsum of ranks join by the same tree, so W may be any aligned part.
**
** cross_entropy (int vocab; floats smoothing, z)      V = vocab, all true columns
**   l = log(s)
**   loss = l - (zt - m)                                              the plain loss
**   loss = (1 - smoothing) * loss + smoothing * (l - zsum / V)       if smoothing is not 0
**   loss = loss + z * ((m + l) * (m + l))                            if z is not 0
**   +0 where the target is ignored. Smoothing is uniform over all V ids.
**
** cross_entropy_grad (ints columns, first, vocab; floats smoothing, z)    dz may be the memory of z
**   p = E(z, m) / s       q = p
**   q = q - smoothing / V                      if smoothing is not 0
**   q = q - (1 - smoothing)                    at the target
**   q = q + (2 * z) * (m + log(s)) * p         if z is not 0, products left to right
**   dz = round(q * dloss)                      +0 in padding and where the target is ignored
**
** logsumexp         lse = m + log(s)
** logsumexp_grad    dz = round((E(z, m) / s) * dlse), +0 in padding (int columns); may be z itself
** loss_seed         dloss = 1 / f32(count) where target >= 0, else +0; count (1) i64: targets of
**                   the whole batch; all +0 for count 0
** loss_mask         y = loss where target >= 0, else +0: sum_tokens then adds what counts
** loss_finish       loss = sum / f32(count), +0 for count 0
*/
#ifndef TL_LOSS_H
#define TL_LOSS_H

#include "../op.h"

enum { TL_LOSS_LEAVES_MAX = 1024 }; /* of row_sum_exp */

tl_status tl_host_row_max(const tl_call *call);
tl_status tl_host_row_sum_exp(const tl_call *call);
tl_status tl_host_cross_entropy(const tl_call *call);
tl_status tl_host_cross_entropy_grad(const tl_call *call);
tl_status tl_host_logsumexp(const tl_call *call);
tl_status tl_host_logsumexp_grad(const tl_call *call);
tl_status tl_host_loss_seed(const tl_call *call);
tl_status tl_host_loss_mask(const tl_call *call);
tl_status tl_host_loss_finish(const tl_call *call);

/* What host twin and launcher refuse (loss_check.c). */
tl_status tl_row_max_check(const tl_call *call);
tl_status tl_row_sum_exp_check(const tl_call *call);
tl_status tl_cross_entropy_check(const tl_call *call);
tl_status tl_cross_entropy_grad_check(const tl_call *call);
tl_status tl_logsumexp_check(const tl_call *call);
tl_status tl_logsumexp_grad_check(const tl_call *call);
tl_status tl_loss_seed_check(const tl_call *call);
tl_status tl_loss_mask_check(const tl_call *call);
tl_status tl_loss_finish_check(const tl_call *call);

#endif
