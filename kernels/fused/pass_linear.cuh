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
  int position, page, place;  // page -1: nothing is kept of it
};

/* Shared memory of the readers. */
struct Room {
  tl_pass_phase phase[2];
  RowPlace row[TL_PASS_ROWS];
  float sums[TL_PASS_ROWS * TL_PASS_PIECES];
  float2 folds[2 * TL_PASS_WARPS * 32];
};

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

/* x, or x + y rounded, of this thread's pieces: to shared memory, and their squares. Warps of a row
** have `pieces` of its 8 pieces of 256 partials each. */
template <int pieces>
TL_GPU void take_rows(const tl_pass_phase &p, int row, int first, bool keeps, unsigned char *x,
                      float *sums) {
  const tl_norm_args &a = p.norm.norm;
  const int lane = threadIdx.x % 32;
  float q[pieces * TL_P];
#pragma unroll
  for (int i = 0; i < pieces * TL_P; i++) q[i] = 0.0f;
  for (int64_t span = 0; span < a.dim; span += SPAN) {
    uint4 as[pieces], bs[pieces];
#pragma unroll
    for (int i = 0; i < pieces; i++) {
      const int64_t at = span + ((first + i) * 32 + lane) * TL_P;
      as[i] = bs[i] = make_uint4(0, 0, 0, 0);
      if (at >= a.dim) continue;
      as[i] = tl_fetch_whole(p.before == TL_PASS_NORM ? a.x : p.norm.a, row * a.dim + at);
      if (p.before != TL_PASS_NORM) bs[i] = tl_fetch_whole(p.norm.b, row * a.dim + at);
    }
#pragma unroll
    for (int i = 0; i < pieces; i++) {
      const int64_t at = span + ((first + i) * 32 + lane) * TL_P;
      if (at >= a.dim) continue;
      float v[TL_P], w[TL_P];
      if (p.before != TL_PASS_NORM) {
        tl_widen_whole(as[i], v);
        tl_widen_whole(bs[i], w);
#pragma unroll
        for (int e = 0; e < TL_P; e++) v[e] = v[e] + w[e];
        as[i] = pack_piece(v);
        if (keeps) *(uint4 *)((uint16_t *)a.x.data + row * a.dim + at) = as[i];
      }
      *(uint4 *)(x + row * p.x_pitch + at * 2) = as[i];
      tl_widen_whole(as[i], v);
      tl_add_dot(q + i * TL_P, v, v, TL_P, at);
    }
  }
#pragma unroll
  for (int i = 0; i < pieces; i++) {
    float v = tl_tree8(q + i * TL_P);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v = v + __shfl_xor_sync(~0u, v, step);
    if (lane == 0) sums[row * TL_PASS_PIECES + first + i] = v;
  }
}

/* The norm of a row that lies in shared memory, in its place. */
template <int pieces>
TL_GPU void norm_row(const tl_pass_phase &p, int row, int first, bool keeps, unsigned char *x,
                     const float *sums) {
  const tl_norm_args &a = p.norm.norm;
  const int lane = threadIdx.x % 32;
  const float rstd = tl_rsqrt(tl_tree8(sums + row * TL_PASS_PIECES) / (float)a.dim + a.eps);
  for (int64_t span = 0; span < a.dim; span += SPAN) {
#pragma unroll
    for (int i = 0; i < pieces; i++) {
      const int64_t at = span + ((first + i) * 32 + lane) * TL_P;
      if (at >= a.dim) continue;
      float v[TL_P], gain[TL_P];
      uint4 *own = (uint4 *)(x + row * p.x_pitch + at * 2);
      tl_widen_whole(*own, v);
      tl_load_piece(a.gain, at, TL_P, gain);
#pragma unroll
      for (int e = 0; e < TL_P; e++) v[e] = (v[e] * rstd) * gain[e];
      *own = pack_piece(v);
      if (keeps) *(uint4 *)((uint16_t *)p.normed + row * a.dim + at) = *own;
    }
  }
  if (keeps && first == 0 && lane == 0 && a.rstd != nullptr) a.rstd[row] = rstd;
}

/* Block r writes row r for whoever reads it later; all blocks compute all rows. */
template <int pieces>
TL_GPU void norm_rows(const tl_pass_phase &p, unsigned char *x, float *sums) {
  constexpr int warps = TL_PASS_PIECES / pieces, together = TL_PASS_WARPS / warps;  // rows
  const int own = threadIdx.x / 32 / warps, first = threadIdx.x / 32 % warps * pieces;
  const int begin = own < together ? own : p.product.rows;
  for (int row = begin; row < p.product.rows; row += together)
    take_rows<pieces>(p, row, first, row == blockIdx.x, x, sums);
  all_meet();
  for (int row = begin; row < p.product.rows; row += together)
    norm_row<pieces>(p, row, first, row == blockIdx.x, x, sums);
  all_meet();
}

TL_GPU void prepare_x(const tl_pass_phase &p, unsigned char *x, float *sums) {
  if (p.before == TL_PASS_AS_IT_IS) return load_x(p, x);
  if (p.product.rows == 1) return norm_rows<1>(p, x, sums);
  norm_rows<4>(p, x, sums);
}

/* --- chains ----------------------------------------------------------------------------------- */

/* Two steps: of w lanes' registers 0, 1 and 2, 3; rows g + 8 of a step stand for rows g. */
TL_GPU void two_steps(const uint32_t (&x)[4], const uint32_t (&w)[4], float *sum) {
  const uint32_t low[4] = {x[0], x[0], x[1], x[1]}, high[4] = {x[2], x[2], x[3], x[3]};
  step(sum, low, w);
  step(sum, high, w + 2);
}

/* Steps 0 .. count - 1 of a slot. A chain waits for each of its steps; their operands do not. */
TL_GPU void multiply_slot(uint32_t w, uint32_t x, int count, float *sum) {
  enum { AHEAD = 4 };  // pairs of steps
  int pair = 0;
  for (; 2 * (pair + AHEAD) <= count; pair += AHEAD) {
    uint32_t ws[AHEAD][4], xs[AHEAD][4];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      load_matrices(w + (pair + i) * 64, ws[i]);
      load_matrices(x + (pair + i) * 64, xs[i]);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) two_steps(xs[i], ws[i], sum);
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
  const int lane = threadIdx.x % 32, own = lane % 8, row = own < g.rows ? own : g.rows - 1;
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
  const int warp = threadIdx.x / 32, leaf = warp & ((1 << p.leaves_log) - 1);
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
