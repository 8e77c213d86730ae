/* moe.h - mixtures of experts: router, places of rows, products of experts, combine.
** This text is the specification.
**
**   logits z (T, E)  --route-->  weight, expert (T, k)         a slot is an expert's rank by score
**   expert           --expert_order-->  home order: rows by (place of the expert, token, slot)
**
**   home rank    x (T, d)  --take_rows-->  rows  --exchange-->  rows of my experts       owner rank
**   (T k rows)   y (T, d)  <--combine---   rows  <--exchange--  down(silu(gate) * up)
**
** Words. T tokens of `samples` samples on a rank, E experts, k slots. A piece is a sample, or, of a
** longer one, every 8,192 tokens from its start: `pieces` of all samples of a micro-batch together.
** A listing names experts in home order: for each wave, for each rank of the group, `slots`
** experts, -1 where there is none. Of n ranks that exchange, `share` neighbours hold runs of one
** sample.
**
** Rows of an expert at its owner come in global token order: sources of samples ascending, pieces
** ascending, then the `share` ranks that hold its runs. No capacity exists: buffers hold the worst
** case, and rows past the last are neither written nor read ("routed" below). Every sum is f32.
**
** route (ints layer, kind, groups, top_groups, normalize; float scale)
**   z (T, E) f32   bias (E) f32 or absent   weight (T, k) f32   expert (T, k) i32
**   score, from the row z, m = max z:
**     kind 0 softmax         e_j = tl_exp2(fmaf(z_j, log2e, -(m * log2e)))
**                            s_j = e_j / rule(e), the row rule of rows.h
**          1 sigmoid         s_j = tl_sigmoid(z_j)
**          2 sqrt_softplus   s_j = sqrt(l_j), u = tl_exp(z_j), w = 1 + u
**                            l_j = z_j if z_j > 20, u if w = 1, else tl_log(w) * (u / (w - 1))
**   choice c_j = s_j + bias_j (s_j without bias). With groups > 1 the experts are cut in equal
**   runs; a group counts its largest c (kind 0), or the sum of its two largest (largest + second);
**   the top_groups best groups stay. Then the k largest c, in falling order; of equal ones the
**   lowest index.
**   total = s of the slots added in slot order to +0
**   normalize 1: w_i = (s_i / total) * scale, for kinds 1 and 2 total + 1e-20 in the place of total
**   normalize 0: w_i = s_i * scale
**   A row with NaN or +infinity, or with fewer than k entries above -infinity, is an error that
**   names layer and token.
**
** route_table (ints layer, kind, normalize, samples, length, token_first; float scale)
**   z (T, E) f32   ids (samples, length) i32   table (V, k) f32   weight (T, k) f32   expert (T, k)
**   i32: routing by hash. The experts of a token stand in the table's row of its id; scores, total
**   and weights as in route, without bias and groups. Row i of a sample here is its token
**   token_first + i. Padding (id < 0) takes the row of id 0.
**   A row of z that route refuses, an id of V or more, and a row of the table that is not k
**   different numbers of experts (whole, 0 .. E - 1) are errors that name layer and token; on the
**   host id and entry too.
**
** route_grad (ints kind, normalize, samples; floats scale, balance)
**   z, expert, place (T, k) i32, dweight (T k) f32 in home order, load (samples, E) f32 or absent
**   -> dz (T, E), rounded once.  d_i = dweight[place_i]; s, total as in route; slots i ascend
**     kind 0  normalize 1: q_i = s_i / total, g = sum q_i d_i (fmaf chain from +0),
**                          dz = (scale * q_i) * (d_i - g)
**             normalize 0: g = sum s_i d_i (the same), dz_j = (scale * s_j) * (d_j - g),
**                          d_j = 0 where j has no slot
**     kind 1, 2 normalize 1: q_i, g as above with total + 1e-20,
**                          ds_i = (scale * (d_i - g)) / (total + 1e-20);  normalize 0: scale * d_i
**             kind 1: dz = ds * (s * (1 - s))
**             kind 2: dz = ds * (tl_sigmoid(z) / (s + s)), 0 if s = 0
**     Elsewhere +0. An expert that has two slots gets their sum, in slot order.
**     With load (kind 0): t_j = balance * load_j of the token's sample, r = rule(t_j * s_j),
**     dz_j = dz_j + s_j * (t_j - r) before the rounding: the slope of balance_loss.
**
** route_sums (ints samples, runs)   z, expert -> share (samples, E) f32, load (samples, E) f32
**   softmax routers. share[s] = tree over `runs` runs of the sample's tokens here (floor borders);
**   in a run blocks of 64 tokens: a chain of s_j from +0, block sums added ascending. load: slots
**   of each expert, counted.
** balance_loss (int length)         share, load -> loss (samples) f32
**   loss = E * rule((load_j / length) * (share_j / length)), length of a whole sample; one IEEE
**   operation each. weight times its mean over the samples of the step is added to what is
**   minimized; so route_grad's balance is weight * E / (length * length * samples of the step), in
**   f64, to f32.
**
** expert_counts (ints samples, pieces, block, token_first)
**   expert -> counts (samples pieces, E) i32
**   Token i of a sample here is its token token_first + i, and of piece (token_first + i) / block.
** expert_order (ints experts...: a listing)
**   expert -> place (T, k), order (T k), starts (n + 1), all i32
**   starts[p]: the first home row of listing place p; order[row] = token * k + slot; place is its
**   inverse.
** expert_load (int mode)   counts -> load (E) i64
**   The sum over pieces; mode 1: added to what load holds.
** load_sign   load (E) i64 -> y (E) f32
**   1 where an expert has fewer rows than the mean, -1 where more, 0 where as many: the sign of
**   (sum of load - E * load), in integers.
** expert_segments (ints ranks, share, position, waves, wave, experts...: a listing)
**   counts (ranks pieces, E) -> offsets (slots + 1), segments (slots, ranks / share * pieces + 1),
**   all i32: where the rows of each expert, and of each (source, piece) of it, begin at rank
**   `position` in wave `wave`.
**
** take_rows (ints per, first, last)   x, order, starts -> rows (routed)
**   rows[r] = x[order[starts[first] + r] / per], up to starts[last]: those of listing places
**   first .. last - 1.
** combine   rows (T k, d), place, weight (T, k) or absent, shared (T, d) or absent -> y (T, d)
**   a = +0; for slots ascending: a = fmaf(weight, row, a), or a = a + row;  y = round(a + shared)
**
** grouped_linear (int parts)              x, offsets, weight_i (slots, >= N K) -> y_i (routed)
** grouped_linear_grad_input (int parts)   dy_i, offsets, weight_i -> dx (routed)
**   The rows of an expert are linear and linear_grad_input of gemm.h with its weight and leaves 1.
** grouped_linear_grad_weight (ints first, samples, mode, leaves)
**   dy, x, segments -> dweight (slots, >= N K)
**   For each expert linear_grad_weight of gemm.h: `samples` pieces from piece `first` on, each as
**   long as its segment, each beginning a new step of 16, in `leaves` leaves of equally many: a
**   leaf without rows is +0. An expert without rows gets zeros in mode 0. A weight may be followed
**   by fill, so that experts lie on borders of 64 bytes; fill gets +0.
** expert_swiglu, expert_swiglu_grad   swiglu of elementwise.h on the rows that there are (routed)
** expert_scale_grad                   dy, out (R, d), weight (R) f32, offsets
**   -> dout = round(weight * dy), dweight = rule(dy * out) (routed)
**
** exchange is run by the executor: exchange.h says which rows go where.
*/
#ifndef TL_MOE_H
#define TL_MOE_H

#include "../op.h"

enum { TL_MOE_EXPERTS_MAX = 1024, TL_MOE_SLOTS_MAX = 64 };

/* What route on a GPU finds (tl_cuda_found): | place 24 | layer 12 | token 26 | fault 2 |. */
enum { TL_ROUTE_TOKEN_BITS = 26, TL_ROUTE_LAYER_BITS = 12 };
uint64_t tl_route_note(int32_t place, int64_t layer);
/* The error that the number stands for; TL_OK where nothing was found. */
tl_status tl_route_found(uint64_t found);

tl_status tl_host_route(const tl_call *call);
tl_status tl_host_route_table(const tl_call *call);
tl_status tl_host_route_grad(const tl_call *call);
tl_status tl_host_route_sums(const tl_call *call);
tl_status tl_host_balance_loss(const tl_call *call);
tl_status tl_host_expert_counts(const tl_call *call);
tl_status tl_host_expert_order(const tl_call *call);
tl_status tl_host_expert_load(const tl_call *call);
tl_status tl_host_load_sign(const tl_call *call);
tl_status tl_host_expert_segments(const tl_call *call);
tl_status tl_host_take_rows(const tl_call *call);
tl_status tl_host_combine(const tl_call *call);
tl_status tl_host_grouped_linear(const tl_call *call);
tl_status tl_host_grouped_linear_grad_input(const tl_call *call);
tl_status tl_host_grouped_linear_grad_weight(const tl_call *call);
tl_status tl_host_expert_swiglu(const tl_call *call);
tl_status tl_host_expert_swiglu_grad(const tl_call *call);
tl_status tl_host_expert_scale_grad(const tl_call *call);

#endif
