/* heads.h - channels of heads taken apart and put together, and sums over heads.
** This text is the specification.
**
**   split_heads   x (T, H, c) -> y_i (T, H, c_i)
**   join_heads    x_i (T, H, c_i) or (T, 1, c_i) -> y (T, H, c)
**   sum_heads     x (T, H, c) -> y (T, w)
**
**   a head of x   | first ..  | c_0       | c_1          | ..        |
**   split_heads                 y_0         y_1            left out
**   join_heads                | x_0       | x_1          |             c = c_0 + c_1 + ..
**
** T rows, H heads. Latent attention is made of these: a head's query and key have channels that
** turn with the position beside channels that do not, and one turned part of the key serves all
** heads. Elements are f32 or bf16, each operand with its own dtype; what is copied is rounded once
** to the output's dtype, so between equal dtypes the bits stay (a NaN stays a NaN).
**
** split_heads (int first): piece i has the channels from first + c_0 + .. + c_{i-1} on.
** join_heads: pieces side by side, the first one first; a piece with one head is every head's.
** sum_heads (ints first, leaves): y_j is the sum of channel first + j of x over the H heads, in
**   f32, rounded once. The heads are cut into `leaves` equal runs (a power of two, at most 64, that
**   divides H); a run is a chain from +0, heads ascending; the tree adds runs pairwise:
**   (r0 + r1) + (r2 + r3) .. A rank that has some of the heads makes an f32 root of its own runs,
**   and the ranks' roots go on in the same tree.
**
** The gradient of split_heads is join_heads of the pieces' gradients; that of join_heads is
** split_heads for a piece that each head has of its own, sum_heads for one that they share.
**
** No row is an operand of another. The output may not be the memory of an input.
*/
#ifndef TL_HEADS_H
#define TL_HEADS_H

#include "../op.h"

enum { TL_HEADS_LEAVES_MAX = 64 };

/* A piece: `width` channels of one view, from `from_first` on, to those of another from `to_first`
** on. A source with one head serves every head. */
typedef struct tl_heads_piece {
  const tl_view *from, *to;
  int64_t rows, heads;
  int64_t from_heads, from_channels, from_first;
  int64_t to_channels, to_first;
  int64_t width;
} tl_heads_piece;

tl_status tl_host_split_heads(const tl_call *call);
tl_status tl_host_join_heads(const tl_call *call);
tl_status tl_host_sum_heads(const tl_call *call);

/* What host twin and launcher refuse (heads_check.c); no operand is read. */
tl_status tl_split_heads_check(const tl_call *call);
tl_status tl_join_heads_check(const tl_call *call);
tl_status tl_sum_heads_check(const tl_call *call);

/* Piece i of a checked call. */
tl_heads_piece tl_split_heads_piece(const tl_call *call, int32_t i);
tl_heads_piece tl_join_heads_piece(const tl_call *call, int32_t i);

#endif
