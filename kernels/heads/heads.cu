/* heads.cu - channels of heads on a GPU.
**
** heads_copy: a thread takes a piece of 8 neighbouring channels of one head.
** heads_sum: a thread takes one channel of a row, neighbours in neighbouring threads, and walks the
** heads. Finished runs wait in `waiting`, one for each level of the tree, for their partner:
**
**   run      0      1            2      3
**   level 0  r0     r0 + r1      r2     r2 + r3
**   level 1         waits               (r0 + r1) + (r2 + r3)
*/
#include "../device.cuh"
#include "heads_args.h"

TL_KERNEL heads_copy(const __grid_constant__ tl_heads_copy_args a) {
  const tl_place_of p = tl_row_piece(tl_thread(), a.width);
  if (p.row >= a.rows * a.heads) return;
  const int64_t row = tl_quotient(p.row, a.heads);
  const int64_t source = a.from_heads == 1 ? row : p.row;
  const int n = tl_piece_length(a.width, p.at);
  float x[TL_P];
  tl_load_piece(a.from, source * a.from_channels + a.from_first + p.at, n, x);
  tl_store(a.to, p.row * a.to_channels + a.to_first + p.at, n, x);
}

TL_KERNEL heads_sum(const __grid_constant__ tl_heads_sum_args a) {
  const int64_t at = tl_thread();
  if (at >= a.rows * a.width) return;
  const int64_t row = tl_quotient(at, a.width), channel = at - row * a.width;
  int64_t place = row * a.heads * a.channels + a.first + channel;
  float waiting[TL_HEADS_LEVELS], sum = 0.0f;
#pragma unroll
  for (int level = 0; level < TL_HEADS_LEVELS; level++) waiting[level] = 0.0f;
  for (int64_t head = 0, leaf = 0; head < a.heads; leaf++) {
    sum = 0.0f;
    for (const int64_t end = head + a.run; head < end; head++, place += a.channels) {
      sum = sum + tl_load_one(a.x, place);
    }
    bool moves = true;
#pragma unroll
    for (int level = 0; level < TL_HEADS_LEVELS; level++) {
      if (moves && (leaf >> level & 1) != 0) {
        sum = waiting[level] + sum;
      } else if (moves) {
        waiting[level] = sum;
        moves = false;
      }
    }
  }
  tl_store_one(a.y, at, sum);
}
