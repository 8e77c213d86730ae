/* attention.h - causal softmax attention over packed segments. This text is the specification.
**
**   rows of q, k, v, o    | segment 0    | segment 1 | segment 2          | rows of no segment |
**   cu_seqlens            0              7           12                   T'                   T
**
**   o_i = sum_j p_ij v_j / sum_j p_ij      p_ij = 2^(s_ij c - t_i)      s_ij = q_i . k_j
**
**   attention       q (T, H, w), k (T, G, w), v (T, G, x), cu (n + 1) i32
**                   -> o (T, H, x), lse (T, H) f32
**   attention_grad  q, k, v, o, lse, do (T, H, x), cu -> dq (T, H, w), dk (T, G, w), dv (T, G, x)
**
** T rows, H query heads, G key/value heads, w and x up to 256. Query head h reads KV head
** h / (H / G). All numbers of one call are f32, or all are bf16, except lse (always f32) and the
** outputs, which may each be f32 or bf16: bf16 is rounded once, f32 holds what would be rounded.
**
** Who sees whom. Segment s is rows cu[s] .. cu[s + 1] - 1; empty segments are allowed anywhere.
** Everything below counts rows from the segment's own start. Query i sees key j iff j <= i and
** (window = 0 or i - j < window). A row past the last segment sees nothing: o = +0, lse = -inf,
** and all its gradients are +0. No number of another segment is ever an operand.
**
** Numbers. scale > 0 and finite; log2e = 0x1.715476p+0 (f32); c = scale * log2e, rounded to f32.
** exp2 and log2 are tl_exp2 and tl_log2 of kernels/math.h. max is the larger (a NaN operand stays
** visible through p). Everything is f32 and every operation rounds to nearest, ties to even.
**
** Two arithmetics, chosen by the dtype of the inputs. "dot" is a chain over channels, "chain" one
** over rows; both start at +0 or resume what is named.
**
**   f32   fma      acc = fmaf(a, b, acc), ascending. Rows that are not seen take no part.
**   bf16  sm_90    steps of 16 of kernels/tensorcore.h, ascending. Steps over channels count from
**                  channel 0, steps over rows from the segment's start; what a step lacks (channels
**                  past the width, rows past the segment, rows not seen) is zero in both operands
**                  or has weight +0. A step in which no row is seen stands beside steps in which
**                  some are, so it changes no bit and may be left out.
**   bf(x)          x rounded to bf16; in f32 read bf(x) as x.
**
** Forward, per (row i, head). Keys come in blocks of kv_block from the segment's start, ascending,
** and every `split` keys form a part (split is a multiple of kv_block, so no block lies in two).
** Blocks and parts in which the row sees no key are left out. A part starts with
**
**   m = -inf, t = -inf, l0 = l1 = l2 = l3 = +0, O = (+0, ...)       O has x numbers
**
** and for each of its blocks, with j over the keys of the block that the row sees, ascending:
**
**   s_j = dot(q_i, k_j)
**   m   = max(m, s_j over all j)
**   u   = m * c                                       rounded
**   a   = 1 where u = t, else exp2(t - u)             exp2(0) is 1 too; this covers -inf - -inf
**   t   = u
**   l_r = l_r * a                                     r = 0 .. 3
**   p_j = exp2(fmaf(s_j, c, -t))
**   l_r = l_r + p_j, ascending                        r = (j mod 8) / 2, j from the block's start
**   O   = O * a, then the chain over j of bf(p_j) * v_j resumes O
**
**      column of the block   0 1 | 2 3 | 4 5 | 6 7 | 8 9 | ...    (the lanes of a tensor-core tile)
**      partial sum           l0    l1    l2    l3    l0
**
** A part ends with l = (l0 + l1) + (l2 + l3). The first part of a row is its state (t, l, O); each
** later part (t', l', O') is merged into it, ascending:
**
**   u = max(t, t');  f = 1 where u = t, else exp2(t - u);  f' likewise;  t = u
**   l = l * f + l' * f';  O = O * f + O' * f'         two products and one sum, each rounded
**
** At the end o = O / l (IEEE), rounded once to the dtype of o, and lse = t + log2(l): the
** logarithm to base 2 of sum_j 2^(s_ij c).
**
** Backward. It reads o as stored. delta_i is the row rule over the x channels of do_i and o_i:
** partial e is fmaf(do_e, o_e, +0); partials are added pairwise, neighbours first, as if there
** were 2,048 with +0 for the missing ones. For each pair that sees each other:
**
**   s  = dot(q_i, k_j)             p  = exp2(fmaf(s, c, -lse_i))
**   g  = dot(do_i, v_j)            ds = p * (g - delta_i)
**
**   dq_i = scale    * chain over keys j ascending of              bf(ds) * k_j
**   dk_j = dk_scale * tree over leaves of the chains over i of    bf(ds) * q_i
**   dv_j =            tree over leaves of the chains over i of    bf(p) * do_i
**
** The H / G query heads of a KV head are cut into head_leaves equal runs (head_leaves is a power
** of two that divides them). The chain of a leaf takes its heads ascending, in each head the rows
** ascending; in bf16 each head begins a new step of 16. The tree adds leaves pairwise: (e0 + e1) +
** (e2 + e3). The factors multiply once, in f32, before the one rounding. A layout that gives a KV
** head to several ranks asks for dk_scale = 1 and f32 outputs, folds the ranks' roots, and
** multiplies afterwards.
**
** So a row's bits depend on its own segment alone: not on neighbours, not on how many rows or
** segments a call has, not on threads and not on the processor's vector width. A number that is
** not finite voids this for its own segment.
**
** Errors: shapes, dtypes and numbers that do not fit the above; kv_block not a multiple of 8
** (bf16: 16) from 8 to 1,024; split not a multiple of kv_block; bad cu_seqlens, with the entry and
** its value.
*/
#ifndef TL_ATTENTION_H
#define TL_ATTENTION_H

#include "../op.h"

enum { TL_ATTENTION_WIDTH_MAX = 256, TL_ATTENTION_BLOCK_MAX = 1024, TL_ATTENTION_LEAVES_MAX = 64 };

tl_status tl_host_attention(const tl_call *call);
tl_status tl_host_attention_grad(const tl_call *call);

#endif
