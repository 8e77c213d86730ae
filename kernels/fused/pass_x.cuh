/* pass_x.cuh - x of a product comes to shared memory, as it is or through a norm.
**
** All blocks compute all rows: a row is short, and its way through memory is not. Before x of the
** phase before is overwritten, all readers of the block have left that phase.
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
struct Room {
  tl_pass_phase phase[2], ahead[2];  // of the readers; of the warp that brings
  RowPlace row[TL_PASS_ROWS];
  float sums[TL_PASS_ROWS * TL_PASS_PIECES];
  float2 folds[2 * TL_PASS_WARPS * 32];
  uint64_t arrived[4];   // barriers of the phases
  unsigned char *mail;   // of this launch
  int table_row, spare;  // whose pages these are; -1: nobody's
  int table[TL_PASS_ENTRIES];
};
static_assert(sizeof(Room) <= TL_PASS_ROOM, "the launcher leaves room for it");

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

/* --- x as it is ------------------------------------------------------------------------------- */

/* Of one row: in registers, so that it is one read from the mail to shared memory. */
TL_GPU void load_one(const Source &s, int pieces, const Script &script, int phase,
                     unsigned char *x) {
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
    await(s, place, v);
    if (first == 0) all_have_left(script, phase);
#pragma unroll
    for (int i = 0; i < MOST; i++)
      if (place(i) < pieces * 8) *(uint4 *)(x + place(i) * 2) = v[i];
  }
  all_meet();
}

TL_GPU void load_x(const tl_pass_phase &p, const Room &room, const Script &script, int phase,
                   unsigned char *x) {
  enum { MOST = 4 };
  const tl_gemm_few_args &g = p.product;
  const Source s = source_in(room.mail, p.from, g.x);
  if (g.rows == 1) return load_one(s, g.depth / 8, script, phase, x);
  const int pieces = g.depth / 8, stride = (int)g.x_stride;
  int row = 0, at = thread_now();
#pragma unroll 1
  for (int left = g.rows * pieces, first = 1; left > 0; left -= MOST * READERS, first = 0) {
    uint4 v[MOST];
    int from[MOST], to[MOST];
#pragma unroll
    for (int i = 0; i < MOST; i++) {
      for (; at >= pieces; at -= pieces) row++;
      const bool there = row < g.rows;
      v[i] = make_uint4(0, 0, 0, 0);
      from[i] = row * stride + at * 8, to[i] = there ? row * p.x_pitch + at * 16 : -1;
      if (there) v[i] = peek(s.at + from[i]);
      at += READERS;
    }
    await(
        s, [&](int i) { return from[i]; }, v);
    if (first) all_have_left(script, phase);
#pragma unroll
    for (int i = 0; i < MOST; i++)
      if (to[i] >= 0) *(uint4 *)(x + to[i]) = v[i];
  }
  all_meet();
}

/* --- x through a norm ------------------------------------------------------------------------- */

/* A unit is piece u % 8, 256 elements, of row u / 8; a warp has units w, w + 12, .. , so that its
** even ones are one piece of their rows, and its odd ones another. */
enum { UNITS = TL_PASS_ROWS * TL_PASS_PIECES, OWN_UNITS = (UNITS - 1) / TL_PASS_WARPS + 1 };
static_assert(2 * TL_PASS_WARPS % TL_PASS_PIECES == 0, "even units of a warp are of one piece");

TL_GPU int begin_of(int unit, int thread) {
  return (unit % TL_PASS_PIECES * 32 + thread % 32) * TL_P;
}

TL_GPU void fetch_gain(const tl_pass_phase &p, int at, float *gain) {
  if (at < p.norm.norm.dim) tl_load_piece(p.norm.norm.gain, at, TL_P, gain);
}

TL_GPU void to_cache(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

/* What can be done before x is there: gains come to the second-level cache. */
TL_GPU void look_ahead(const tl_pass_phase &p) {
  const tl_norm_args &a = p.norm.norm;
  const int64_t at = (int64_t)thread_now() * TL_P;
  if (p.before == TL_PASS_AS_IT_IS || at >= a.dim) return;
  to_cache((const char *)a.gain.data + at * (a.gain.bf16 ? 2 : 4));
}

/* x, or x + y rounded, of one piece. Block r keeps row r for whoever reads it later. */
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
  if (row != blockIdx.x) return sum;
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
TL_GPU float rstd_of_lane(const tl_pass_phase &p, const float *sums) {
  const tl_norm_args &a = p.norm.norm;
  const int lane = thread_now() % 32, asked = lane < p.product.rows ? lane : 0;
  return tl_rsqrt(tl_tree8(sums + asked * TL_PASS_PIECES) / (float)a.dim + a.eps);
}

TL_GPU void put_normed(const tl_pass_phase &p, int row, int at, const uint4 &sum, float rstd,
                       const float *gain, unsigned char *x) {
  const tl_norm_args &a = p.norm.norm;
  float v[TL_P];
  tl_widen_whole(sum, v);
#pragma unroll
  for (int e = 0; e < TL_P; e++) v[e] = (v[e] * rstd) * gain[e];
  const uint4 y = round_piece(v);
  *(uint4 *)(x + row * p.x_pitch + at * 2) = y;
  if (row != blockIdx.x) return;
  *(uint4 *)((uint16_t *)p.normed + row * (int)a.dim + at) = y;
  if (at == 0 && a.rstd != nullptr) a.rstd[row] = rstd;
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

/* One row of one span: a warp has one unit, in registers. */
TL_GPU void norm_one(const tl_pass_phase &p, Room &room, const Script &script, int phase,
                     unsigned char *x) {
  const int dim = (int)p.norm.norm.dim, thread = thread_now(), unit = thread / 32;
  const int at = begin_of(unit, thread);
  const bool has = unit < TL_PASS_PIECES, there = has && at < dim;
  const Terms terms = terms_of(p, room);
  const auto place = [&](int) { return at; };
  uint4 a[1] = {make_uint4(0, 0, 0, 0)}, b[1] = {make_uint4(0, 0, 0, 0)};
  float gain[TL_P], q[TL_P];
  if (there) {
    b[0] = peek(terms.b.at + at), a[0] = peek(terms.a.at + at);
    fetch_gain(p, at, gain);
    await(terms.a, place, a);
    await(terms.b, place, b);
  }
  tl_clear(q);
  if (there) {
    b[0] = sum_of(p, room, 0, at, a[0], b[0]);
    add_squares(b[0], at, q);
  }
  if (has) put_sum(unit, tl_tree8(q), room.sums);
  all_have_left(script, phase);
  const float rstd = __shfl_sync(~0u, rstd_of_lane(p, room.sums), 0);
  if (there) put_normed(p, 0, at, b[0], rstd, gain, x);
  all_meet();
}

/* Pieces of a warp, of rows of one span. */
template <int most>
struct Units {
  int dim, count, thread;

  /* Element of unit i, among all rows; its column; whether it is there. */
  __device__ __forceinline__ int unit(int i) const { return thread / 32 + i * TL_PASS_WARPS; }
  __device__ __forceinline__ int row(int i) const { return unit(i) / TL_PASS_PIECES; }
  __device__ __forceinline__ int column(int i) const { return begin_of(unit(i), thread); }
  __device__ __forceinline__ bool is_there(int i) const {
    return unit(i) < count && column(i) < dim;
  }
  __device__ __forceinline__ void take(const Source &s, uint4 (&v)[most]) const {
    const auto place = [&](int i) { return row(i) * dim + column(i); };
#pragma unroll
    for (int i = 0; i < most; i++) {
      v[i] = make_uint4(0, 0, 0, 0);
      if (is_there(i)) v[i] = peek(s.at + place(i));
    }
    await(s, place, v);
  }
};

/* Rows of one span. What is added to waits in shared memory. */
template <int most>
TL_GPU void norm_short(const tl_pass_phase &p, Room &room, const Script &script, int phase,
                       unsigned char *x) {
  const Units<most> own = {(int)p.norm.norm.dim, p.product.rows * TL_PASS_PIECES, thread_now()};
  const Terms terms = terms_of(p, room);
  uint4 v[most];
  float gain[2][TL_P];
  if (most == 1) fetch_gain(p, own.column(0), gain[0]);
  all_have_left(script, phase);
  if (p.before == TL_PASS_ADD_NORM) {
    own.take(terms.a, v);
#pragma unroll
    for (int i = 0; i < most; i++)
      if (own.is_there(i)) *(uint4 *)(x + own.row(i) * p.x_pitch + own.column(i) * 2) = v[i];
  }
  own.take(terms.b, v);
#pragma unroll
  for (int i = 0; i < most; i++) {
    if (!own.is_there(i)) continue;
    uint4 *at = (uint4 *)(x + own.row(i) * p.x_pitch + own.column(i) * 2);
    *at = sum_of(p, room, own.row(i), own.column(i), *at, v[i]);
  }
#pragma unroll
  for (int i = 0; i < 2 && most > 1; i++) fetch_gain(p, own.column(i), gain[i]);
#pragma unroll 3
  for (int i = 0; i < most; i++) {
    float q[TL_P];
    if (own.unit(i) >= own.count) break;
    tl_clear(q);
    if (own.is_there(i))
      add_squares(*(const uint4 *)(x + own.row(i) * p.x_pitch + own.column(i) * 2), own.column(i),
                  q);
    put_sum(own.unit(i), tl_tree8(q), room.sums);
  }
  all_meet();
  const float all = rstd_of_lane(p, room.sums);
#pragma unroll 2
  for (int i = 0; i < most; i++) {
    if (own.unit(i) >= own.count) break;
    const float rstd = __shfl_sync(~0u, all, own.row(i));
    if (!own.is_there(i)) continue;
    const uint4 sum = *(const uint4 *)(x + own.row(i) * p.x_pitch + own.column(i) * 2);
    put_normed(p, own.row(i), own.column(i), sum, rstd, gain[i % 2], x);
  }
  all_meet();
}

/* Rows of several spans: sums lie in shared memory, in the place of x, until they are normed. */
TL_GPU void norm_long(const tl_pass_phase &p, Room &room, const Script &script, int phase,
                      unsigned char *x) {
  const int dim = (int)p.norm.norm.dim;
  const int thread = thread_now(), warp = thread / 32, units = p.product.rows * TL_PASS_PIECES;
  const Terms terms = terms_of(p, room);
  all_have_left(script, phase);
#pragma unroll 1
  for (int u = warp; u < units; u += TL_PASS_WARPS) {
    const int row = u / TL_PASS_PIECES;
    float q[TL_P];
    tl_clear(q);
#pragma unroll 1
    for (int at = begin_of(u, thread); at < dim; at += SPAN) {
      const auto place = [&](int) { return row * dim + at; };
      uint4 a[1] = {peek(terms.a.at + place(0))}, b[1] = {peek(terms.b.at + place(0))};
      await(terms.a, place, a);
      await(terms.b, place, b);
      const uint4 sum = sum_of(p, room, row, at, a[0], b[0]);
      *(uint4 *)(x + row * p.x_pitch + at * 2) = sum;
      add_squares(sum, at, q);
    }
    put_sum(u, tl_tree8(q), room.sums);
  }
  all_meet();
  const float all = rstd_of_lane(p, room.sums);
#pragma unroll 1
  for (int u = warp; u < units; u += TL_PASS_WARPS) {
    const int row = u / TL_PASS_PIECES;
    const float rstd = __shfl_sync(~0u, all, row);
#pragma unroll 1
    for (int at = begin_of(u, thread); at < dim; at += SPAN) {
      float gain[TL_P];
      fetch_gain(p, at, gain);
      const uint4 sum = *(const uint4 *)(x + row * p.x_pitch + at * 2);
      put_normed(p, row, at, sum, rstd, gain, x);
    }
  }
  all_meet();
}

TL_GPU void prepare_x(const tl_pass_phase &p, Room &room, const Script &script, int phase,
                      unsigned char *x) {
  if (p.before == TL_PASS_AS_IT_IS)
    load_x(p, room, script, phase, x);
  else if (p.norm.norm.dim > SPAN)
    norm_long(p, room, script, phase, x);
  else if (p.product.rows == 1)
    norm_one(p, room, script, phase, x);
  else
    norm_short<OWN_UNITS>(p, room, script, phase, x);
}

#endif
