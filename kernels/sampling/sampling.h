/* sampling.h - the next token of a row of logits, and how it comes back. This text is the
** specification.
**
**   sample   z (T, V') f32, next (T) i32, controls (T, 2) f32, draws (T, 6) i32 -> ids (T) i32
**            int columns: V true columns, V <= V'
**
** next[t] >= 0   ids[t] = next[t]: the token is known (a prompt)
** next[t] = -2   ids[t] = -1: the row is none
** next[t] = -1   ids[t] is chosen from z[t, 0 .. V - 1], by
**
**   controls   temperature >= 0, top_p in (0, 1]
**   draws      top_k (0: all), seed low, seed high, request low, request high, position
**
** m is the largest z. Temperature 0 takes the lowest id with z = m. Otherwise, in f32, one
** operation for each sign:
**
**   w_j = exp2(((z_j - m) / temperature) * log2e)                 tl_exp2 of math.h
**
**   candidates   all ids ascending, where top_k is 0 or at least V and top_p is 1; otherwise ids by
**                falling z, equal ones by rising id, the first top_k of them where top_k is not 0
**
**   S(i)         sums over candidates 0 .. i, in blocks of 256 from candidate 0 on: inside a block
**                a chain s from +0; B = +0, and after a block B = B + s;  S(i) = B + s
**
**       candidate   0 .. 255           256 .. 511           512 ..
**       S           0 + chain          B_0 + chain          B_1 + chain       B_b: S at a border
**
**   top_p < 1    total = S(last), over the ids ascending where top_k is 0 (or >= V), else over the
**                candidates; those behind the first i with S(i) >= top_p * total leave
**   the token    u = (word 0 >> 8) * 2^-24 of random.h, key (seed, XXH64 of "sample"), counter
**                (position, request); the first candidate i with S(i) > u * S(last); the last
**                candidate where there is none
**
** So a token depends on its row of logits, its controls, seed, request and position: not on rows
** beside it and not on time. A NaN or +infinity among z, or -infinity everywhere, is an error that
** names the row, and so are controls that are out of range. A GPU cannot say so: there the id of
** a row with such logits is -1.
**
** The token's log-probability needs no operator: it is minus the loss of the token (loss.h), taken
** from the logits as they are, whatever the controls.
**
**   follow   fed (T) i32, made (M) i32 -> ids (T) i32
**
** The token of a row that goes on with what a step before chose, which the host need not have seen:
**
** fed[t] >= -1   ids[t] = fed[t]: a token, or none
** fed[t] < -1    ids[t] = made[-2 - fed[t]], the choice of that row; a row from M on is an error,
**                and -1 on a GPU, which cannot say so
*/
#ifndef TL_SAMPLING_H
#define TL_SAMPLING_H

#include "../op.h"
#include "sampling_args.h"

enum { TL_SAMPLE_COLUMNS_MAX = TL_SCRATCH_BYTES / 8 /* weights and candidates of one row */ };

tl_status tl_host_sample(const tl_call *call);
/* Shapes and dtypes; no operand is read. */
tl_status tl_sample_check(const tl_call *call);

/* What the kernel of a call is passed, which tl_sample_check took; for launchers of kernels that do
** more in one go. */
tl_status tl_sample_args_of(const tl_call *call, tl_sample_args *out);

tl_status tl_host_follow(const tl_call *call);
tl_status tl_follow_check(const tl_call *call);
tl_status tl_follow_args_of(const tl_call *call, tl_follow_args *out); /* after tl_follow_check */

#endif
