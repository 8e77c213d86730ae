/* pass_linear.cuh - one product of a pass: x to shared memory, chains, what follows them.
**
** A warp has a tile of 8 features, or a leaf of one. Rows of x are the rows of a step, features its
** columns; lane 4 g + t ends with row g, columns 2 t and 2 t + 1. Columns 0 .. 3 are the tile's low
** group, 4 .. 7 its high one, so that what belongs together, a gate and its up, the two channels of
** a pair of rope, is two lanes apart.
*/
#ifndef TL_PASS_LINEAR_CUH
#define TL_PASS_LINEAR_CUH

#include "../cache/cache_device.cuh"
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
  uint64_t arrived[4];  // barriers of the phases
};
static_assert(sizeof(Room) <= TL_PASS_ROOM, "the launcher leaves room for it");

/* threadIdx.x, where what is made of it shall not be kept in registers from phase to phase. */
TL_GPU int thread_now(void) {
  int own;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(own));
  return own;
}

TL_GPU void all_meet(void) { named_sync<READERS>(ALL); }

/* --- x ---------------------------------------------------------------------------------------- */

TL_GPU void load_x(const tl_pass_phase &p, unsigned char *x) {
  const tl_gemm_few_args &g = p.product;
  const uint32_t to = shared_address(x);
  for (int row = 0; row < g.rows; row++)
    for (int i = threadIdx.x; i < g.depth / 8; i += READERS)
      copy_async(to + row * p.x_pitch + i * 16, (const uint16_t *)g.x + row * g.x_stride + i * 8,
                 16);
  copy_commit();
  copy_wait<0>();
  all_meet();
}

TL_GPU uint4 pack_piece(const float *v) {
  return make_uint4(tl_bf16_pair(v[0], v[1]), tl_bf16_pair(v[2], v[3]), tl_bf16_pair(v[4], v[5]),
                    tl_bf16_pair(v[6], v[7]));
}

/* Who has what of a norm. Share s < 8 has piece s, 256 elements, of rows 0, 2, ..; share 8 + s has
** it of rows 1, 3, .. Warp w has share w, and w + 12 where there are several rows. */
enum {
  SHARES = 2 * TL_PASS_PIECES,
  STEP = SHARES / TL_PASS_PIECES,
  OWN_ROWS = TL_PASS_ROWS / STEP
};
static_assert(TL_PASS_WARPS <= SHARES, "no warp without a share");

TL_GPU int shares_of(const tl_pass_phase &p) {
  return p.product.rows > 1 ? SHARES : TL_PASS_PIECES;
}
TL_GPU int row_of(int share, int i) { return share / TL_PASS_PIECES + STEP * i; }
TL_GPU int begin_of(int share) {
  return (share % TL_PASS_PIECES * 32 + threadIdx.x % 32) * TL_P;
}

/* x of a share's rows begins its way to shared memory, to threads that will read it there. */
TL_GPU void copy_share(const tl_pass_phase &p, int share, unsigned char *x) {
  const tl_norm_args &a = p.norm.norm;
  const uint16_t *from = (const uint16_t *)(p.before == TL_PASS_NORM ? a.x.data : p.norm.a.data);
  for (int row = row_of(share, 0); row < p.product.rows; row += STEP)
    for (int64_t at = begin_of(share); at < a.dim; at += SPAN)
      copy_async(shared_address(x) + row * p.x_pitch + at * 2, from + row * a.dim + at, 16);
}

TL_GPU void copy_shares(const tl_pass_phase &p, unsigned char *x) {
  for (int s = thread_now() / 32; s < shares_of(p); s += TL_PASS_WARPS) copy_share(p, s, x);
  copy_commit();
}

TL_GPU void fetch_gain(const tl_pass_phase &p, int share, float *gain) {
  if (begin_of(share) < p.norm.norm.dim)
    tl_load_piece(p.norm.norm.gain, begin_of(share), TL_P, gain);
}

TL_GPU void to_cache(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

/* What a block can do for a norm before all have met: gains come to the second-level cache, and x
** to shared memory where the phase before does not write it. */
TL_GPU void look_ahead(const tl_pass_phase &p, unsigned char *x) {
  const tl_norm_args &a = p.norm.norm;
  const int64_t at = (int64_t)thread_now() * TL_P;
  if (p.before == TL_PASS_AS_IT_IS) return;
  if (at < a.dim) to_cache((const char *)a.gain.data + at * (a.gain.bf16 ? 2 : 4));
  if (p.first_is_early) copy_shares(p, x);
}

/* x, or x + y rounded, of one piece: to shared memory, and its squares. Block r writes row r for
** whoever reads it later; all blocks compute all rows. */
TL_GPU void take_piece(const tl_pass_phase &p, int row, int64_t at, const uint4 &b,
                       unsigned char *x, float *q) {
  const tl_norm_args &g = p.norm.norm;
  uint4 *own = (uint4 *)(x + row * p.x_pitch + at * 2), a = *own;
  float v[TL_P], w[TL_P];
  if (p.before != TL_PASS_NORM) {
    tl_widen_whole(a, v);
    tl_widen_whole(b, w);
#pragma unroll
    for (int e = 0; e < TL_P; e++) v[e] = v[e] + w[e];
    a = pack_piece(v);
    if (row == blockIdx.x) *(uint4 *)((uint16_t *)g.x.data + row * g.dim + at) = a;
    *own = a;
  }
  tl_widen_whole(a, v);
  tl_add_dot(q, v, v, TL_P, at);
}

/* A row's sum of squares over the pieces of a share, from its warp's lanes. */
TL_GPU void put_sum(int share, int row, float sum, float *sums) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum = sum + __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) sums[row * TL_PASS_PIECES + share % TL_PASS_PIECES] = sum;
}

/* Rows of one span: all their y are asked for at once. */
template <int most>
TL_GPU void take_rows(const tl_pass_phase &p, int share, unsigned char *x, float *sums) {
  const tl_norm_args &g = p.norm.norm;
  const int rows = p.product.rows, at = begin_of(share);
  uint4 bs[most];
#pragma unroll
  for (int i = 0; i < most; i++) {
    bs[i] = make_uint4(0, 0, 0, 0);
    if (p.before != TL_PASS_NORM && row_of(share, i) < rows && at < g.dim)
      bs[i] = tl_fetch_whole(p.norm.b, row_of(share, i) * g.dim + at);
  }
  copy_wait<0>();
#pragma unroll
  for (int i = 0; i < most; i++) {
    const int row = row_of(share, i);
    float q[TL_P];
    if (row >= rows) continue;
    tl_clear(q);
    if (at < g.dim) take_piece(p, row, at, bs[i], x, q);
    put_sum(share, row, tl_tree8(q), sums);
  }
}

/* Rows of several spans. */
TL_GPU void take_long_rows(const tl_pass_phase &p, int share, unsigned char *x, float *sums) {
  const tl_norm_args &g = p.norm.norm;
  copy_wait<0>();
#pragma unroll 1
  for (int row = row_of(share, 0); row < p.product.rows; row += STEP) {
    float q[TL_P];
    tl_clear(q);
#pragma unroll 2
    for (int64_t at = begin_of(share); at < g.dim; at += SPAN) {
      uint4 b = make_uint4(0, 0, 0, 0);
      if (p.before != TL_PASS_NORM) b = tl_fetch_whole(p.norm.b, row * g.dim + at);
      take_piece(p, row, at, b, x, q);
    }
    put_sum(share, row, tl_tree8(q), sums);
  }
}

/* The norm of a share that lies in shared memory, in its place. Lane r works out 1 / rms of row r:
** it takes long, and once is enough. */
TL_GPU void norm_rows(const tl_pass_phase &p, int share, const float *gain, unsigned char *x,
                      const float *sums) {
  const tl_norm_args &a = p.norm.norm;
  const int lane = threadIdx.x % 32, asked = lane < p.product.rows ? lane : 0;
  const float all = tl_rsqrt(tl_tree8(sums + asked * TL_PASS_PIECES) / (float)a.dim + a.eps);
#pragma unroll 1
  for (int row = row_of(share, 0); row < p.product.rows; row += STEP) {
    const float rstd = __shfl_sync(~0u, all, row);
    for (int64_t at = begin_of(share); at < a.dim; at += SPAN) {
      float v[TL_P], more[TL_P];
      uint4 *own = (uint4 *)(x + row * p.x_pitch + at * 2);
      tl_widen_whole(*own, v);
      if (at >= SPAN) tl_load_piece(a.gain, at, TL_P, more);
#pragma unroll
      for (int e = 0; e < TL_P; e++) v[e] = (v[e] * rstd) * (at < SPAN ? gain[e] : more[e]);
      *own = pack_piece(v);
      if (row != blockIdx.x) continue;
      *(uint4 *)((uint16_t *)p.normed + row * a.dim + at) = *own;
      if (at == 0 && a.rstd != nullptr) a.rstd[row] = rstd;
    }
  }
}

TL_GPU void take_and_norm(const tl_pass_phase &p, unsigned char *x, float *sums) {
  const int warp = thread_now() / 32;
  float gain[TL_P];
  if (!p.first_is_early) copy_shares(p, x);
#pragma unroll 1
  for (int s = warp; s < shares_of(p); s += TL_PASS_WARPS)
    if (p.norm.norm.dim > SPAN)
      take_long_rows(p, s, x, sums);
    else if (p.product.rows <= STEP)
      take_rows<1>(p, s, x, sums);
    else
      take_rows<OWN_ROWS>(p, s, x, sums);
  fetch_gain(p, warp, gain);
  all_meet();
#pragma unroll 1
  for (int s = warp; s < shares_of(p); s += TL_PASS_WARPS) {
    if (s != warp) fetch_gain(p, s, gain);
    norm_rows(p, s, gain, x, sums);
  }
  all_meet();
}

TL_GPU void prepare_x(const tl_pass_phase &p, unsigned char *x, float *sums) {
  if (p.before == TL_PASS_AS_IT_IS) return load_x(p, x);
  take_and_norm(p, x, sums);
}

/* --- chains ----------------------------------------------------------------------------------- */

/* Two steps: of w lanes' registers 0, 1 and 2, 3; rows g + 8 of a step stand for rows g. */
TL_GPU void two_steps(const uint32_t (&x)[4], const uint32_t (&w)[4], float *sum) {
  const uint32_t low[4] = {x[0], x[0], x[1], x[1]}, high[4] = {x[2], x[2], x[3], x[3]};
  step(sum, low, w);
  step(sum, high, w + 2);
}

/* Operands of a few steps, loaded while those of the steps before are multiplied. */
enum { AHEAD = 2, GROUPS = TL_PASS_DEPTH / 16 / (2 * AHEAD) };  // pairs of steps; of a full slot
struct Operands {
  uint32_t w[AHEAD][4], x[AHEAD][4];
};

TL_GPU void load_operands(uint32_t w, uint32_t x, int group, Operands &o) {
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    load_matrices(w + (group * AHEAD + i) * 64, o.w[i]);
    load_matrices(x + (group * AHEAD + i) * 64, o.x[i]);
  }
}

TL_GPU void multiply_operands(const Operands &o, float *sum) {
#pragma unroll
  for (int i = 0; i < AHEAD; i++) two_steps(o.x[i], o.w[i], sum);
}

/* Steps 0 .. count - 1 of a slot. A chain waits for each of its steps; their operands do not. */
TL_GPU void multiply_slot(uint32_t w, uint32_t x, int count, float *sum) {
  Operands even, odd;
  int pair = 0;
  if (count == TL_PASS_DEPTH / 16) {
    load_operands(w, x, 0, even);
#pragma unroll
    for (int i = 0; i < GROUPS; i += 2) {
      load_operands(w, x, i + 1, odd);
      multiply_operands(even, sum);
      if (i + 2 < GROUPS) load_operands(w, x, i + 2, even);
      multiply_operands(odd, sum);
    }
    return;
  }
  for (; 2 * (pair + 2 * AHEAD) <= count; pair += 2 * AHEAD) {
    load_operands(w, x, pair / AHEAD, even);
    load_operands(w, x, pair / AHEAD + 1, odd);
    multiply_operands(even, sum);
    multiply_operands(odd, sum);
  }
  for (; 2 * pair < count; pair++) {
    uint32_t ws[4], xs[4];
    load_matrices(w + pair * 64, ws);
    load_matrices(x + pair * 64, xs);
    const uint32_t low[4] = {xs[0], xs[0], xs[1], xs[1]}, high[4] = {xs[2], xs[2], xs[3], xs[3]};
    step(sum, low, ws);
    if (2 * pair + 1 < count) step(sum, high, ws + 2);
  }
}

/* The chain of a job: from slot to slot, `count` jobs apart. */
TL_GPU void chain(const tl_pass_phase &p, const Weights &ring, Turn turn, int count, int leaf,
                  const unsigned char *x, float *sum) {
  const tl_gemm_few_args &g = p.product;
  const int lane = thread_now() % 32, own = lane % 8, row = own < g.rows ? own : g.rows - 1;
  uint32_t from = shared_address(x) + row * p.x_pitch + lane / 8 * 16 + leaf * g.run * 2;
  const uint32_t w = ring.slots + own * TL_PASS_PITCH + lane / 8 * 16;
  for (int k = 0; k < g.run; k += TL_PASS_DEPTH) {
    const int left = g.run - k, deep = left < TL_PASS_DEPTH ? left : TL_PASS_DEPTH;
    barrier_wait(ring.empty + 8 * turn.slot, turn.parity ^ 1);
    barrier_wait(ring.full + 8 * turn.slot, turn.parity);
    multiply_slot(w + turn.slot * TL_PASS_SLOT, from, deep / 16, sum);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty + 8 * turn.slot);
    turn.advance(ring, count);
    from += 2 * TL_PASS_DEPTH;
  }
}

/* The tree over the leaves of a tile, for the first of its warps. */
TL_GPU void fold(const tl_pass_phase &p, int round, float2 *folds, float *sum) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, leaves = 1 << p.leaves_log;
  float2 *own = folds + (round % 2 * TL_PASS_WARPS + (warp & -leaves)) * 32 + lane;
  own[(warp & (leaves - 1)) * 32] = make_float2(sum[0], sum[1]);
  asm volatile("bar.sync %0, %1;" ::"r"(TEAM + (warp >> p.leaves_log)), "r"(32 * leaves)
               : "memory");
  float even = 0.0f, odd = 0.0f;
  if (leaves == 2) {
    even = own[0].x + own[32].x, odd = own[0].y + own[32].y;
  } else if (leaves == 4) {
    even = (own[0].x + own[32].x) + (own[64].x + own[96].x);
    odd = (own[0].y + own[32].y) + (own[64].y + own[96].y);
  } else {
    even = ((own[0].x + own[32].x) + (own[64].x + own[96].x)) +
           ((own[128].x + own[160].x) + (own[192].x + own[224].x));
    odd = ((own[0].y + own[32].y) + (own[64].y + own[96].y)) +
          ((own[128].y + own[160].y) + (own[192].y + own[224].y));
  }
  sum[0] = even, sum[1] = odd;
}

/* --- what follows ----------------------------------------------------------------------------- */

/* Cosine and sine of two pairs; asked for before the chain begins. */
struct Angles {
  float2 a, b;
};

/* Which channel of which head the lane's first column is, for q and k. */
struct Channel {
  int head, channel, pair;
};

TL_GPU Channel channel_of(const tl_pass_phase &p, const Place &at) {
  const int t = threadIdx.x % 4, width = 2 * p.half, head = at.low / width;
  const int pair = at.low - head * width + t % 2 * 2;
  return {head, t < 2 ? pair : pair + p.half, pair};
}

TL_GPU Angles angles_of(const tl_pass_phase &p, const Place &at, const RowPlace &row) {
  const float nan = tl_math_float(TL_NAN_BITS);
  if (row.position < 0 || row.position >= p.positions)
    return {
        {nan, nan},
        {nan, nan}
    };
  const float2 *from =
      (const float2 *)p.angles + (int64_t)row.position * p.half + channel_of(p, at).pair;
  return {from[0], from[1]};
}

TL_GPU float bias_of(const tl_gemm_few_args &g, int part, int feature) {
  if (!g.bias_is_bf16) return ((const float *)g.bias[part])[feature];
  return tl_math_float(uint32_t(((const uint16_t *)g.bias[part])[feature]) << 16);
}

TL_GPU uint32_t round_two(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
TL_GPU float low_of(uint32_t pair) { return tl_math_float(pair << 16); }
TL_GPU float high_of(uint32_t pair) { return tl_math_float(pair & 0xffff0000u); }

/* k, turned, and v go to the page of the row. */
TL_GPU void keep_key(const tl_cache_write_args &w, const RowPlace &row, const Channel &c,
                     uint32_t pair) {
  if (row.page < 0) return;
  uint16_t *to = (uint16_t *)w.keys +
                 (((int64_t)row.page * w.kv_heads + c.head) * w.width + c.channel) * w.at.page +
                 row.place;
  to[0] = (uint16_t)pair, to[w.at.page] = (uint16_t)(pair >> 16);
}
TL_GPU void keep_value(const tl_cache_write_args &w, const RowPlace &row, int feature,
                       uint32_t pair) {
  if (row.page < 0) return;
  const int64_t values = (int64_t)w.kv_heads * w.value_width;
  *(uint32_t *)((uint16_t *)w.values + ((int64_t)row.page * w.at.page + row.place) * values +
                feature) = pair;
}

TL_GPU void turn_and_keep(const tl_pass_phase &p, const Place &at, const Room &room,
                          const Angles &angles, int feature, uint32_t own) {
  const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const uint32_t other = __shfl_xor_sync(~0u, own, 2);
  if (row >= p.product.rows) return;
  if (at.part == 2) return keep_value(p.write, room.row[row], feature, own);
  const float x[2] = {low_of(own), high_of(own)}, y[2] = {low_of(other), high_of(other)};
  const float cosine[2] = {angles.a.x, angles.b.x}, sine[2] = {angles.a.y, angles.b.y};
  float z[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    z[i] = t < 2 ? fmaf(x[i], cosine[i], -(y[i] * sine[i])) : fmaf(x[i], cosine[i], y[i] * sine[i]);
  const uint32_t turned = tl_bf16_pair(z[0], z[1]);
  if (at.part == 1) return keep_key(p.write, room.row[row], channel_of(p, at), turned);
  *(uint32_t *)((uint16_t *)p.turned + (int64_t)row * p.product.columns[0] + feature) = turned;
}

TL_GPU void gate(const tl_pass_phase &p, int feature, uint32_t own) {
  const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const uint32_t up = __shfl_xor_sync(~0u, own, 2);
  if (t >= 2 || row >= p.product.rows) return;
  const float a = low_of(own), b = high_of(own);
  *(uint32_t *)((uint16_t *)p.gated + (int64_t)row * p.product.columns[0] + feature) =
      tl_bf16_pair((a * tl_sigmoid(a)) * low_of(up), (b * tl_sigmoid(b)) * high_of(up));
}

TL_GPU void finish(const tl_pass_phase &p, const Place &at, const Room &room, const Angles &angles,
                   const float *sum) {
  const tl_gemm_few_args &g = p.product;
  const int row = threadIdx.x % 32 / 4, t = threadIdx.x % 4, part = t < 2 ? at.part : at.high_part;
  const int feature = t < 2 ? at.low + 2 * t : at.high + 2 * t - 4;
  const int64_t to = (int64_t)row * g.columns[part] + feature;
  float v[2] = {sum[0], sum[1]};
  if (g.bias[part] != nullptr)
    v[0] = v[0] + bias_of(g, part, feature), v[1] = v[1] + bias_of(g, part, feature + 1);
  if (!g.out_is_bf16) {
    if (row < g.rows) *(float2 *)((float *)g.out[part] + to) = make_float2(v[0], v[1]);
    return;
  }
  const uint32_t pair = round_two(v[0], v[1]);
  if (row < g.rows) *(uint32_t *)((uint16_t *)g.out[part] + to) = pair;
  if (p.after == TL_PASS_SWIGLU) gate(p, feature, pair);
  if (p.after == TL_PASS_ROPE) turn_and_keep(p, at, room, angles, feature, pair);
}

TL_GPU void multiply(const tl_pass_phase &p, const Weights &ring, Turn &turn, Room &room,
                     unsigned char *x) {
  const int warp = thread_now() / 32, leaf = warp & ((1 << p.leaves_log) - 1);
  const int slots = (p.product.run + TL_PASS_DEPTH - 1) / TL_PASS_DEPTH;  // of a job
  const Share own = share_of(p);
  prepare_x(p, x, room.sums);
  for (int first = 0, round = 0; first < own.jobs; first += round_of(p), round++) {
    const int left = own.jobs - first, count = left < round_of(p) ? left : round_of(p);
    if (warp < count) {
      const Place at = place_of(p, own.first + ((first + warp) >> p.leaves_log) * gridDim.x);
      const bool turns = p.after == TL_PASS_ROPE && at.part < 2;
      const int row = threadIdx.x % 32 / 4;
      Angles angles = {
          {0.0f, 0.0f},
          {0.0f, 0.0f}
      };
      if (turns && row < p.product.rows) angles = angles_of(p, at, room.row[row]);
      Turn mine = turn;
      mine.advance(ring, warp);
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      chain(p, ring, mine, count, leaf, x, sum);
      if (p.leaves_log > 0) fold(p, round, room.folds, sum);
      if (leaf == 0) finish(p, at, room, angles, sum);
    }
    turn.advance(ring, count * slots);
  }
}

#endif
