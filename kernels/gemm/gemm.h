/* gemm.h - products of matrices. This text is the specification.
**
**   linear               y_i[t, n]    = round( sum over k of x[t, k] * weight_i[n, k] + bias_i[n] )
**   linear_grad_input    dx[t, k]     = round( sum over parts i and features n of
**                                              dy_i[t, n] * weight_i[n, k] )
**   linear_grad_weight   dweight[n, k] = sum over rows t of dy[t, n] * x[t, k]
**
**   x, dx (T, K)   weight_i (N_i, K)   bias_i (N_i)   y_i, dy_i (T, N_i)   dweight (N, K) f32
**
** Projections that read one input (q, k, v; gate, up) are one linear with several parts.
**
** Arithmetic. Both factors f32: a chain of fmaf over ascending k, from +0. Both bf16: a chain of
** "sm_90" tensor core steps of 16 (kernels/tensorcore.h) over ascending k, from +0, the last step
** filled up with zeros. Other pairs are an error. All else is f32.
**
** Leaves. A sum over features is cut into `leaves` runs, a power of two that the policy fixes. Each
** is a chain of its own, and a tree adds them. K = 10, leaves = 4:
**
**     |k0 k1|k2 k3 k4|k5 k6|k7 k8 k9|     run j: floor(j K / 4) .. floor((j + 1) K / 4) - 1
**        \   /           \   /
**       l0 + l1     +    l2 + l3          one f32 addition each; an empty run is +0
**
** linear
**   Run j of K is leaf j. Then + bias in f32, then one rounding to y's dtype (none when y is f32).
** linear_grad_input
**   Leaf j is one chain over run j of part 0, run j of part 1, ..., without a break: steps of 16 go
**   on across the border of parts, and only the end of a leaf is filled up. `ranges` has (first,
**   count) for each part: the features that take part; runs cut `count`. One rounding to dx's
**   dtype.
** linear_grad_weight
**   The rows are `samples` pieces of `length` rows. Piece i begins at row first + i * stride, where
**   stride >= length. Each piece begins a new step of 16, and its last step is filled up. Pieces
**   are cut into `leaves` leaves of equally many, each a chain over its pieces; a tree adds them.
**     mode 0   dweight = the tree of chains from +0
**     mode 1   the chain resumes from what dweight holds: a chain over pieces in several calls has
**              the bits of one call; one leaf
**     mode 2   dweight = dweight + (the tree of chains from +0), one f32 addition
**
** An element's bits depend on its own row of one factor, its own row of the other, and the ints
** above. Tiles, blocks of k, threads and vector width are free. Every element of every output is
** written, also when there is nothing to sum (+0, or the bias).
**
** Panels. On the host an f32 weight_i of linear may lie in panels (kernels/panels.h); then all of a
** call do.
**
** How it is computed (gemm_core.c): a task owns a tile of outputs; for each block of k it packs
** both factors into panels and runs a small kernel over them (gemm_f32_*.c, tensorcore*.c)
** that keeps one accumulator for each output and stores it between blocks of k.
**
**        k ->                          panel of B: 32 columns
**   A  +------+   panel of A         +--+--+--+
**      |======|   14 rows        k   |  |##|  |          C  +--+--+--+
**      |      |                  |   |  |##|  |   =>        |  |##|  |  14 x 32 accumulators
**      +------+                  v   +--+--+--+             +--+--+--+
*/
#ifndef TL_GEMM_H
#define TL_GEMM_H

#include "../op.h"

enum { TL_GEMM_LEAVES_MAX = 1 << 16 };

/* in: x, weight_i..., then bias_i... when biases is 1. out: y_i... . ints: parts biases leaves. */
tl_status tl_host_linear(const tl_call *call);

/* in: dy_i..., weight_i... . out: dx. ints: parts leaves, then (first, count) for each part. */
tl_status tl_host_linear_grad_input(const tl_call *call);

/* in: dy, x. out: dweight, read first unless mode is 0. ints: first samples length stride mode
** leaves. */
tl_status tl_host_linear_grad_weight(const tl_call *call);

#endif
