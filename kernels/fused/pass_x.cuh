/* pass_x.cuh - x of a product comes to shared memory, as it is or through a norm.
**
** Each block norms for itself: a row is short, and its way through memory is not. Of several rows
** that are one span each and not added to (norm_short) it has every other one, its neighbour in the
** cluster the rest (pass_share.h). All readers of the block have left the phase before, whose x is
** overwritten. Of one row each piece is put where chains want it (put_x).
*/
#ifndef TL_PASS_X_CUH
#define TL_PASS_X_CUH

#include "../cache/cache_device.cuh"
#include "pass_mail.cuh"
#include "pass_ring.cuh"

enum {
  READERS = 32 * TL_PASS_WARPS,
  ALL = 15, /* names of barriers: of all readers, of the warps that share a tile */
  TEAM = 2,
  SPAN = TL_DEVICE_PARTIALS
};

/* Where the request of a row stands. */
struct RowPlace {
  int request, position, page, place;  // page -1: nothing is kept of it
};

/* Shared memory beside the ring and x. */
struct alignas(16) Room {
  tl_pass_phase phase[2], ahead[2];  // of the readers; of the warps that bring
  RowPlace row[TL_PASS_ROWS];
  float sums[TL_PASS_ROWS * TL_PASS_PIECES];
  float2 folds[2 * TL_PASS_WARPS * 32];
  uint64_t arrived[4];  // barriers of the phases
  unsigned char *mail;  // of this launch
  Marks marks;          // of the ring
  int table_row;        // whose pages these are; -1: nobody's
  int meetings;         // so far
  int table[TL_PASS_ENTRIES];
  uint64_t left, came;                 // barriers: the other block has left x, has sent its rows
  uint64_t folded[2 * TL_PASS_WARPS];  // sums of the other block's leaves, of a round and warp
};
static_assert(sizeof(Room) <= TL_PASS_ROOM && sizeof(Room) % 16 == 0, "x lies behind it");

/* threadIdx.x, where what is made of it shall not be kept in registers from phase to phase. */
TL_GPU int thread_now(void) {
  int own;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(own));
  return own;
}

TL_GPU void all_meet(void) { named_sync<READERS>(ALL); }

/* All readers of the block have left the phase before: the next one is asked for. */
TL_GPU void all_have_left(const Script &script, int phase) {
  all_meet();
  if (threadIdx.x == READERS - 32) script.ask(phase + 1);
}

TL_GPU uint32_t round_two(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/* Of results of arithmetic, whose NaN has one form. */
TL_GPU uint4 round_piece(const float *v) {
  return make_uint4(round_two(v[0], v[1]), round_two(v[2], v[3]), round_two(v[4], v[5]),
                    round_two(v[6], v[7]));
}

/* A piece of x, `at` a multiple of 8. One row by itself is woven: what a lane of a chain takes for
** two steps stands side by side, in 16 bytes, and four lanes read it for a warp. */
TL_GPU uint32_t *woven_place(unsigned char *x, int at) {
  const int piece = at / 8 % 4;
  return (uint32_t *)(x + at / TL_PASS_WEAVE * (2 * TL_PASS_WEAVE)) + piece / 2 + piece % 2 * 2;
}
TL_GPU void put_x(const tl_pass_phase &p, unsigned char *x, int row, int at, const uint4 &v) {
  if (!ONE_ROW) {
    *(uint4 *)(x + row * p.x_pitch + at * 2) = v;
    return;
  }
  uint32_t *to = woven_place(x, at);
  to[0] = v.x, to[4] = v.y, to[8] = v.z, to[12] = v.w;
}
TL_GPU uint4 take_x(const tl_pass_phase &p, const unsigned char *x, int row, int at) {
  if (!ONE_ROW) return *(const uint4 *)(x + row * p.x_pitch + at * 2);
  const uint32_t *from = woven_place((unsigned char *)x, at);
  return make_uint4(from[0], from[4], from[8], from[12]);
}

/* --- x as it is ------------------------------------------------------------------------------- */

/* Of one row: in registers, so that it is one read from the mail to shared memory. */
template <class Early>
TL_GPU void load_one(const tl_pass_phase &p, const Source &s, int pieces, unsigned char *x,
                     const Early &early) {
  enum { MOST = 2 };
  const int own = thread_now();
#pragma unroll 1
  for (int first = 0; first < pieces; first += MOST * READERS) {
    const auto place = [&](int i) { return (first + own + i * READERS) * 8; };
    uint4 v[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      v[i] = make_uint4(0, 0, 0, 0);
      if (place(i) < pieces * 8) v[i] = peek(s.at + place(i));
    }
    if (first == 0) early();
    await(s, place, v);
#pragma unroll
    for (int i = 0; i < MOST; i++)
      if (place(i) < pieces * 8) put_x(p, x, 0, place(i), v[i]);
  }
  all_meet();
}

/* One piece of all rows, side by side in registers. One warp has made them at once, so that whoever
** waits looks at the first row's alone until it is there. */
TL_GPU void take_rows(const Source &s, int at, int stride, int rows, uint4 (&v)[TL_PASS_ROWS]) {
  const auto place = [&](int i) { return i * stride + at; };
#pragma unroll
  for (int i = 0; i < TL_PASS_ROWS; i++)
    if (i < rows) v[i] = peek(s.at + place(i));
  await(s, place, v);
}

template <class Early>
TL_GPU void load_x(const tl_pass_phase &p, const Room &room, unsigned char *x, const Early &early) {
  const tl_gemm_few_args &g = p.product;
  Source s = source_in(room.mail, p.from, g.x);
  const int pieces = g.depth / 8 >> has_half(p);
  if (rows_of(p) > 1) early();
  s.at += has_half(p) * rank_now() * pieces * 8;
  if (rows_of(p) == 1) return load_one(p, s, pieces, x, early);
#pragma unroll 1
  for (int first = 0; first < pieces; first += READERS) {
    const int own = first + thread_now();
    uint4 v[TL_PASS_ROWS] = {};
    if (own < pieces) take_rows(s, own * 8, (int)g.x_stride, g.rows, v);
#pragma unroll
    for (int i = 0; i < TL_PASS_ROWS; i++)
      if (i < g.rows && own < pieces) *(uint4 *)(x + i * p.x_pitch + own * 16) = v[i];
  }
  all_meet();
}

/* --- x through a norm ------------------------------------------------------------------------- */

/* A unit is piece u % 8, 256 elements, of row u / 8. */
TL_GPU int begin_of(int unit, int thread) {
  return (unit % TL_PASS_PIECES * 32 + thread % 32) * TL_P;
}

TL_GPU void fetch_gain(const tl_pass_phase &p, int at, float *gain) {
  const tl_array &a = p.norm.norm.gain;
  if (at >= p.norm.norm.dim) return;
  if (a.bf16) return tl_widen_whole(*(const uint4 *)((const uint16_t *)a.data + at), gain);
  const float4 *from = (const float4 *)((const float *)a.data + at);
  const float4 low = from[0], high = from[1];
  gain[0] = low.x, gain[1] = low.y, gain[2] = low.z, gain[3] = low.w;
  gain[4] = high.x, gain[5] = high.y, gain[6] = high.z, gain[7] = high.w;
}

TL_GPU void to_cache(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

/* What can be done before x is there: gains come to the second-level cache. */
TL_GPU void look_ahead(const tl_pass_phase &p) {
  const tl_norm_args &a = p.norm.norm;
  const int64_t at = (int64_t)thread_now() * TL_P;
  if (p.before == TL_PASS_AS_IT_IS || at >= a.dim) return;
  to_cache((const char *)a.gain.data + at * (a.gain.bf16 ? 2 : 4));
}

/* The row that a block keeps for whoever reads it later: the last blocks have one each. */
TL_GPU int kept_row(void) { return gridDim.x - 1 - block_now(); }

/* x, or x + y rounded, of one piece. */
TL_GPU uint4 sum_of(const tl_pass_phase &p, const Room &room, int row, int at, const uint4 &a,
                    const uint4 &b) {
  const tl_norm_args &g = p.norm.norm;
  float v[TL_P], w[TL_P];
  if (p.before == TL_PASS_NORM) return b;
  tl_widen_whole(a, v);
  tl_widen_whole(b, w);
#pragma unroll
  for (int e = 0; e < TL_P; e++) v[e] = v[e] + w[e];
  const uint4 sum = round_piece(v);
  if (row != kept_row()) return sum;
  const int to = row * (int)g.dim + at;
  if (p.to_sum >= 0) post_piece(room.mail + (int64_t)p.to_sum * 16 + to * 2, sum);
  *(uint4 *)((uint16_t *)g.x.data + to) = sum;
  return sum;
}

TL_GPU void add_squares(const uint4 &sum, int at, float *q) {
  float v[TL_P];
  tl_widen_whole(sum, v);
  tl_add_dot(q, v, v, TL_P, at);
}

/* A row's sum of squares over the elements of a unit, from its warp's lanes. */
TL_GPU void put_sum(int unit, float sum, float *sums) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum = sum + __shfl_xor_sync(~0u, sum, step);
  if (thread_now() % 32 == 0) sums[unit] = sum;
}

/* 1 / rms of all rows, each by one lane: it takes long, and once is enough. */
TL_GPU float rstd_of_lane(const tl_pass_phase &p, const float *sums, int rows) {
  const tl_norm_args &a = p.norm.norm;
  const int lane = thread_now() % 32, asked = lane < rows ? lane : 0;
  return tl_rsqrt(tl_tree8(sums + asked * TL_PASS_PIECES) / (float)a.dim + a.eps);
}

TL_GPU uint4 normed_of(const uint4 &sum, float rstd, const float *gain) {
  float v[TL_P];
  tl_widen_whole(sum, v);
#pragma unroll
  for (int e = 0; e < TL_P; e++) v[e] = (v[e] * rstd) * gain[e];
  return round_piece(v);
}
TL_GPU void put_normed(const tl_pass_phase &p, int row, int at, const uint4 &sum, float rstd,
                       const float *gain, unsigned char *x) {
  put_x(p, x, row, at, normed_of(sum, rstd, gain));
}
/* A row that is in x is kept for whoever reads it beside the product; `rstd`: of row
** thread % 32, or of that of the block's own rows. */
TL_GPU void keep_normed(const tl_pass_phase &p, const unsigned char *x, float rstd, bool pairs) {
  const tl_norm_args &a = p.norm.norm;
  const int row = kept_row(), thread = thread_now();
  all_meet();
  if (row >= p.product.rows) return;
  for (int at = thread * TL_P; at < a.dim; at += READERS * TL_P)
    *(uint4 *)((uint16_t *)p.normed + row * (int)a.dim + at) = take_x(p, x, row, at);
  if (thread == (pairs ? row / 2 : row) && a.rstd != nullptr) a.rstd[row] = rstd;
}

/* What is added up, or normed as it is. */
struct Terms {
  Source a, b;
};
TL_GPU Terms terms_of(const tl_pass_phase &p, const Room &room) {
  if (p.before == TL_PASS_NORM) {
    const Source x = source_in(room.mail, p.from, p.norm.norm.x.data);
    return {x, x};
  }
  return {source_in(room.mail, p.from_a, p.norm.a.data),
          source_in(room.mail, p.from, p.norm.b.data)};
}

/* The block norms every other row for both of its pair: the one that it keeps, too. */
TL_GPU int row_of_pair(int i) { return 2 * i + 1 - rank_now(); }

/* The other block may write its rows into this one's x. */
TL_GPU void open_to_pair(const tl_pass_phase &p, Room &room) {
  const int bytes = (p.product.rows + 1 - rank_now()) / 2 * (int)p.norm.norm.dim * 2;
  if (thread_now() != 0) return;
  barrier_expect(shared_address(&room.came), bytes);
  barrier_arrive_cluster(in_block(shared_address(&room.left), 1 - rank_now()));
}

/* Rows of one span, not added to: a warp has one piece of all of them, in registers. */
template <int most, bool pairs, class Early>
TL_GPU void norm_short(const tl_pass_phase &p, Room &room, unsigned char *x, uint32_t &turns,
                       const Early &early) {
  const int dim = (int)p.norm.norm.dim, rows = rows_of(p);
  const int thread = thread_now(), warp = thread / 32, at = begin_of(warp, thread);
  const bool has = warp < TL_PASS_PIECES, there = has && at < dim;
  const Source s = source_in(room.mail, p.from, p.norm.norm.x.data);
  const auto row = [&](int i) { return pairs ? row_of_pair(i) : i; };
  const auto place = [&](int i) { return row(i) * dim + at; };
  if (pairs) open_to_pair(p, room);
  uint4 v[most] = {};
  float gain[TL_P];
  if (there) {
#pragma unroll
    for (int i = 0; i < most; i++)
      if (row(i) < rows) v[i] = peek(s.at + place(i));
    fetch_gain(p, at, gain);
  }
  early();
  if (pairs)
    await_all(s, place, v);
  else
    await(s, place, v);
  if (has) {
    float sum[most];
#pragma unroll
    for (int i = 0; i < most; i++) {
      float q[TL_P];
      add_squares(v[i], 0, q);
      sum[i] = tl_tree8(q);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
#pragma unroll
      for (int i = 0; i < most; i++) sum[i] = sum[i] + __shfl_xor_sync(~0u, sum[i], step);
#pragma unroll
    for (int i = 0; i < most; i++)
      if (thread % 32 == 0 && row(i) < rows) room.sums[i * TL_PASS_PIECES + warp] = sum[i];
  }
  all_meet();
  if (pairs) barrier_wait(shared_address(&room.left), turns & 1);
  const float all = rstd_of_lane(p, room.sums, pairs ? (rows + rank_now()) / 2 : rows);
  const uint32_t other = pairs ? in_block(shared_address(x), 1 - rank_now()) : 0;
  const uint32_t came = pairs ? in_block(shared_address(&room.came), 1 - rank_now()) : 0;
#pragma unroll
  for (int i = 0; i < most; i++) {
    const float rstd = most > 1 ? __shfl_sync(~0u, all, i) : all;
    if (!there || row(i) >= rows) continue;
    const uint4 normed = normed_of(v[i], rstd, gain);
    if (pairs) send(other + row(i) * p.x_pitch + at * 2, normed, came);
    put_x(p, x, row(i), at, normed);
  }
  keep_normed(p, x, all, pairs);
  if (!pairs) return;
  barrier_wait(shared_address(&room.came), turns & 1);
  turns ^= 1;
}

/* Rows of several spans, or sums: they lie in shared memory, in the place of x, until they are
** normed. */
template <class Early>
TL_GPU void norm_long(const tl_pass_phase &p, Room &room, unsigned char *x, const Early &early) {
  const int dim = (int)p.norm.norm.dim;
  const int thread = thread_now(), warp = thread / 32, units = rows_of(p) * TL_PASS_PIECES;
  const Terms terms = terms_of(p, room);
  early();
#pragma unroll 1
  for (int u = warp; u < units; u += TL_PASS_WARPS) {
    const int row = u / TL_PASS_PIECES;
    float q[TL_P];
    tl_clear(q);
#pragma unroll 1
    for (int at = begin_of(u, thread); at < dim; at += SPAN) {
      const auto place = [&](int) { return row * dim + at; };
      uint4 a[1] = {make_uint4(0, 0, 0, 0)}, b[1] = {peek(terms.b.at + place(0))};
      if (p.before == TL_PASS_ADD_NORM) {
        a[0] = peek(terms.a.at + place(0));
        await(terms.a, place, a);
      }
      await(terms.b, place, b);
      const uint4 sum = sum_of(p, room, row, at, a[0], b[0]);
      put_x(p, x, row, at, sum);
      add_squares(sum, at, q);
    }
    put_sum(u, tl_tree8(q), room.sums);
  }
  all_meet();
  const float all = rstd_of_lane(p, room.sums, p.product.rows);
#pragma unroll 1
  for (int u = warp; u < units; u += TL_PASS_WARPS) {
    const int row = u / TL_PASS_PIECES;
    const float rstd = __shfl_sync(~0u, all, row);
#pragma unroll 1
    for (int at = begin_of(u, thread); at < dim; at += SPAN) {
      float gain[TL_P];
      fetch_gain(p, at, gain);
      const uint4 sum = take_x(p, x, row, at);
      put_normed(p, row, at, sum, rstd, gain, x);
    }
  }
  keep_normed(p, x, all, false);
}

/* `early` is done while x is on its way. */
template <class Early>
TL_GPU void prepare_x(const tl_pass_phase &p, Room &room, unsigned char *x, uint32_t &turns,
                      const Early &early) {
  if (p.before == TL_PASS_AS_IT_IS)
    load_x(p, room, x, early);
  else if (p.norm.norm.dim > SPAN || p.before == TL_PASS_ADD_NORM)
    norm_long(p, room, x, early);
  else if (!ONE_ROW && p.pairs == TL_PASS_HALF_ROWS)
    norm_short<TL_PASS_ROWS / 2, true>(p, room, x, turns, early);
  else
    norm_short<1, false>(p, room, x, turns, early);
}

#endif
