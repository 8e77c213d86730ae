/* pass_linear.cuh - one product of a pass: chains, and what follows them.
**
** A warp has a tile of 8 features, or a leaf of one. Rows of x are the rows of a step, features its
** columns; lane 4 g + t ends with row g, columns 2 t and 2 t + 1. Columns 0 .. 3 are the tile's low
** group, 4 .. 7 its high one, so that what belongs together, a gate and its up, the two channels of
** a pair of rope, is two lanes apart.
*/
#ifndef TL_PASS_LINEAR_CUH
#define TL_PASS_LINEAR_CUH

#include "pass_x.cuh"

/* --- chains ----------------------------------------------------------------------------------- */

/* The second of two steps, of w words 2, 3 and of x words 1, 3. Rows 8 .. of a step are nobody's:
** the first one takes x as it was loaded, whatever its words 1 and 3 are, and the second costs two
** moves. */
TL_GPU void second_step(const uint32_t (&x)[4], const uint32_t (&w)[4], float *sum) {
  const uint32_t later[4] = {x[1], x[1], x[3], x[3]};
  step(sum, later, w + 2);
}
TL_GPU void two_steps(const uint32_t (&x)[4], const uint32_t (&w)[4], float *sum) {
  step(sum, x, w);
  second_step(x, w, sum);
}

/* x of a pair of steps: k 0 .. 7, 16 .. 23, 8 .. 15, 24 .. 31. One row is woven (put_x), and all
** rows of the step are that one. */
TL_GPU void load_row(uint32_t x, int pair, uint32_t *words) {
  if (!ONE_ROW) return load_matrices(x + pair * 64, words);
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(x + pair * 64)
               : "memory");
}

/* Operands of a few steps, loaded while those of the steps before are multiplied. */
enum { AHEAD = 4 };  // pairs of steps
struct Operands {
  uint32_t w[AHEAD][4], x[AHEAD][4];
};

/* Where a lane finds w of four pairs of steps; the next four are `step` further. */
struct Columns {
  uint32_t at[4], step;
};

/* Lines have a feature's k side by side. Boxes have 64 k of 4 features in rows of 128 bytes, whose
** piece c stands at c ^ (row of 128 bytes in shared memory) % 8. A matrix has four rows of the low
** half and four of the high one; the halves are an odd number of four rows apart, so that all eight
** are in banks of their own. */
TL_GPU Columns columns_of(const Weights &ring) {
  const int lane = thread_now() % 32, own = lane % 8, piece = lane / 8;
  if (!ring.boxed) {
    const uint32_t at = own * TL_PASS_PITCH + piece * 16;
    return {
        {at, at + 64, at + 128, at + 192},
        256
    };
  }
  const int high = own / 4;
  const uint32_t at = high * ring.high + own % 4 * 128 + (piece ^ own % 4 ^ 4 * high) * 16;
  return {
      {at, at ^ 64, 512 + (at ^ 64), 512 + at},
      1024
  };
}

/* The warp meets behind its loads: else the compiler puts each right before its use. */
TL_GPU void load_operands(uint32_t w, const Columns &c, uint32_t x, int pair, Operands &o) {
#pragma unroll
  for (int i = 0; i < AHEAD; i++) {
    load_matrices(w + c.at[i], o.w[i]);
    load_row(x, pair + i, o.x[i]);
  }
  __syncwarp();
}

TL_GPU void multiply_operands(const Operands &o, float *sum) {
#pragma unroll
  for (int i = 0; i < AHEAD; i++) two_steps(o.x[i], o.w[i], sum);
}

/* The first slot of a job in registers. It is taken there while x is not, and what it had of the
** ring is free for what comes behind. */
struct Held {
  uint32_t w[TL_PASS_DEPTH / 32][4];
  bool is;
};

/* Loads end some time after they are begun, and whoever frees a slot must have its bytes: else the
** next copy is there first. So which slot is freed depends on a word of each load, by nothing: a
** ring has less than 65,536 slots. */
TL_GPU Turn once_there(uint32_t word, const Weights &ring, const Turn &turn) {
  return {turn.slot + (int)(word & ((uint32_t)ring.count >> 16)), turn.lap};
}
template <int count>
TL_GPU uint32_t mixed(const uint32_t (&w)[count][4]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < count; i++) word ^= w[i][3];
  return word;
}

/* Nobody waits here unless x is far off: a slot that has not come stays in the ring. */
TL_GPU void hold(const tl_pass_phase &p, const Weights &ring, const Turn &turn, bool far,
                 Held &held) {
  const Columns c = columns_of(ring);
  if (p.product.run < TL_PASS_DEPTH) return;
  if (far) wait_until_come(ring, turn);
  held.is = __all_sync(~0u, has_come(ring, turn));
  if (!held.is) return;
  uint32_t w = ring.slots + turn.slot * ring.slot;
#pragma unroll
  for (int i = 0; i < TL_PASS_DEPTH / 32; i += 4, w += c.step)
#pragma unroll
    for (int j = 0; j < 4; j++) load_matrices(w + c.at[j], held.w[i + j]);
  const Turn own = once_there(mixed(held.w), ring, turn);
  __syncwarp();
  if (thread_now() % 32 == 0) free_slot(ring, own);
}

TL_GPU void multiply_held(const Held &held, uint32_t x, float *sum) {
  enum { FEW = 2 };
  uint32_t xs[2][FEW][4];
#pragma unroll
  for (int i = 0; i < FEW; i++) load_row(x, i, xs[0][i]);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < TL_PASS_DEPTH / 32; i += FEW) {
    const int own = i / FEW % 2;
#pragma unroll
    for (int j = 0; j < FEW; j++)
      if (i + FEW + j < TL_PASS_DEPTH / 32) load_row(x, i + FEW + j, xs[1 - own][j]);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < FEW; j++) two_steps(xs[own][j], held.w[i + j], sum);
  }
}

/* Less than a whole slot: the last one of a leaf. A word of each load of w. */
TL_GPU uint32_t multiply_rest(uint32_t w, const Columns &c, uint32_t x, int count, float *sum) {
  Operands o;
  uint32_t word = 0;
  for (; count >= 2 * AHEAD; count -= 2 * AHEAD, w += c.step, x += 64 * AHEAD) {
    load_operands(w, c, x, 0, o);
    multiply_operands(o, sum);
    word ^= mixed(o.w);
  }
#pragma unroll
  for (int pair = 0; pair < AHEAD; pair++) {
    if (2 * pair >= count) break;
    load_matrices(w + c.at[pair], o.w[pair]);
    load_row(x, pair, o.x[pair]);
    step(sum, o.x[pair], o.w[pair]);
    if (2 * pair + 1 < count) second_step(o.x[pair], o.w[pair], sum);
    word ^= o.w[pair][3];
  }
  return word;
}

/* Where a lane finds x of a job's leaf. */
TL_GPU uint32_t begin_of_x(const tl_pass_phase &p, const unsigned char *x, int leaf) {
  const int lane = thread_now() % 32, own = lane % 8, row = own < rows_of(p) ? own : rows_of(p) - 1;
  const uint32_t at = shared_address(x) + leaf * p.product.run * 2;
  if (ONE_ROW) return at + lane % 4 * 16;
  return at + row * p.x_pitch + (lane / 16 + lane / 8 % 2 * 2) * 16;
}

/* The chain of a job from k on: from slot to slot, `count` jobs apart. Operands come ahead over the
** end of a slot, too, if the next one has come. All ways to the next turn of the loop set them:
** what is set on some ways only is kept in registers from phase to phase. */
TL_GPU void chain(const tl_pass_phase &p, const Weights &ring, Turn turn, int count, int k,
                  uint32_t from, float *sum) {
  const tl_gemm_few_args &g = p.product;
  const int lane = thread_now() % 32;
  const Columns columns = columns_of(ring);
  from += 2 * k;
  if (k > 0) turn.advance(ring, count);
  int full = (g.run - k) / TL_PASS_DEPTH;
  if (full > 0) {
    Operands even, odd;
    wait_until_come(ring, turn);
    load_operands(ring.slots + turn.slot * ring.slot, columns, from, 0, even);
#pragma unroll 1
    for (;; full--) {
      const uint32_t w = ring.slots + turn.slot * ring.slot;
      load_operands(w + columns.step, columns, from, AHEAD, odd);
      multiply_operands(even, sum);
      load_operands(w + 2 * columns.step, columns, from, 2 * AHEAD, even);
      multiply_operands(odd, sum);
      load_operands(w + 3 * columns.step, columns, from, 3 * AHEAD, odd);
      multiply_operands(even, sum);
      const Turn own = once_there(mixed(odd.w), ring, turn);
      if (lane == 0) free_slot(ring, own);
      turn.advance(ring, count);
      from += 2 * TL_PASS_DEPTH;
      if (full == 1) {
        multiply_operands(odd, sum);
        break;
      }
      const uint32_t next = ring.slots + turn.slot * ring.slot;
      if (__all_sync(~0u, has_come(ring, turn))) {
        load_operands(next, columns, from, 0, even);
        multiply_operands(odd, sum);
      } else {
        multiply_operands(odd, sum);
        wait_until_come(ring, turn);
        load_operands(next, columns, from, 0, even);
      }
    }
  }
  const int rest = (g.run - k) % TL_PASS_DEPTH / 16;
  if (rest == 0) return;
  wait_until_come(ring, turn);
  const uint32_t w = ring.slots + turn.slot * ring.slot;
  const uint32_t word = multiply_rest(w, columns, from, rest, sum);
  const Turn own = once_there(word, ring, turn);
  __syncwarp();
  if (lane == 0) free_slot(ring, own);
}

/* The tree over the leaves of a tile, for the first of its warps. */
TL_GPU void fold(const tl_pass_phase &p, int round, float2 *folds, float *sum) {
  const int warp = thread_now() / 32, lane = thread_now() % 32, leaves = 1 << p.leaves_log;
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

/* The same where the other block of the pair has half of the leaves: tiles of a round are summed by
** one block and the other in turn. Whether this warp has the sum. */
TL_GPU bool fold_halves(const tl_pass_phase &p, int round, Room &room, uint32_t &turns,
                        float *sum) {
  const int warp = thread_now() / 32, lane = thread_now() % 32, log = p.leaves_log - 1;
  const int tile = warp >> log, half = 1 << log, own = warp & (half - 1);
  const int bit = 1 + round % 2;
  float2 *from = room.folds + (round % 2 * TL_PASS_WARPS + (tile / 2 << p.leaves_log)) * 32 + lane;
  float2 *to = from + (rank_now() * half + own) * 32;
  uint64_t *folded = room.folded + round % 2 * TL_PASS_WARPS + (warp - own);
  if (tile % 2 != rank_now()) {
    const int other = 1 - rank_now();
    send(in_block(shared_address(to), other), make_float2(sum[0], sum[1]),
         in_block(shared_address(folded), other));
    return false;
  }
  *to = make_float2(sum[0], sum[1]);
  if (half > 1) asm volatile("bar.sync %0, %1;" ::"r"(TEAM + tile), "r"(32 * half) : "memory");
  if (own != 0) return false;
  __syncwarp();
  if (lane == 0) barrier_expect(shared_address(folded), half * 32 * (int)sizeof(float2));
  barrier_wait(shared_address(folded), turns >> bit & 1);
  turns ^= 1 << bit;
  sum[0] = from[0].x + from[32].x, sum[1] = from[0].y + from[32].y;
  if (half == 1) return true;
  sum[0] = sum[0] + (from[64].x + from[96].x);
  sum[1] = sum[1] + (from[64].y + from[96].y);
  return true;
}

/* --- what follows ----------------------------------------------------------------------------- */

/* Cosine and sine of two pairs; of ADD: a.x has the bits of what is added to. Asked for before x is
** there. */
struct Angles {
  float2 a, b;
};

/* Which channel of which head the lane's first column is, for q and k. */
struct Channel {
  int head, channel, pair;
};

TL_GPU Channel channel_of(const tl_pass_phase &p, const Place &at) {
  const int t = thread_now() % 4, width = 2 * p.half, head = at.low / width;
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

/* Where a lane's two sums go, known before there are any: others wait for what is made of them. */
struct Exit {
  int mail;  // element of the mail; -1: they are not sent
  int to;    // element of the part
  int what;  // part | after << 4 | HAS_ROW | HAS_BIAS
  enum { HAS_ROW = 256, HAS_BIAS = 512 };
  __device__ __forceinline__ int part() const { return what & 15; }
  __device__ __forceinline__ int after() const { return what >> 4 & 15; }
  __device__ __forceinline__ bool has_row() const { return what & HAS_ROW; }
};

TL_GPU Exit exit_of(const tl_pass_phase &p, const Place &at) {
  const tl_gemm_few_args &g = p.product;
  const int row = thread_now() % 32 / 4, t = thread_now() % 4;
  const int part = t < 2 ? at.part : at.high_part, turns = p.after == TL_PASS_ROPE;
  const int to = row * g.columns[part] + (t < 2 ? at.low + 2 * t : at.high + 2 * t - 4);
  const int piece = turns && part == 1 ? p.to_k : turns && part == 2 ? p.to_v : p.to;
  return {piece < 0 ? -1 : piece * 8 + to, to,
          part | p.after << 4 | (row < g.rows ? Exit::HAS_ROW : 0) |
              (g.bias[part] != nullptr ? Exit::HAS_BIAS : 0)};
}
TL_GPU int feature_of(const tl_pass_phase &p, const Exit &e) {
  return e.to - thread_now() % 32 / 4 * p.product.columns[e.part()];
}
TL_GPU void send_on(const Room &room, const Exit &e, uint32_t pair) {
  if (e.mail >= 0) post(room.mail + (int64_t)e.mail * 2, pair);
}

TL_GPU void turn_and_keep(const tl_pass_phase &p, int tile, const Room &room, const Angles &angles,
                          const Exit &e, uint32_t own) {
  const int row = thread_now() % 32 / 4, t = thread_now() % 4;
  const uint32_t other = __shfl_xor_sync(~0u, own, 2);
  if (!e.has_row()) return;
  if (e.part() == 2) {
    send_on(room, e, own);
    return keep_value(p.write, room.row[row], feature_of(p, e), own);
  }
  const float x[2] = {low_of(own), high_of(own)}, y[2] = {low_of(other), high_of(other)};
  const float cosine[2] = {angles.a.x, angles.b.x}, sine[2] = {angles.a.y, angles.b.y};
  float z[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    z[i] = t < 2 ? fmaf(x[i], cosine[i], -(y[i] * sine[i])) : fmaf(x[i], cosine[i], y[i] * sine[i]);
  const uint32_t turned = tl_bf16_pair(z[0], z[1]);
  send_on(room, e, turned);
  if (e.part() == 1)
    return keep_key(p.write, room.row[row], channel_of(p, place_of(p, tile)), turned);
  *(uint32_t *)((uint16_t *)p.turned + e.to) = turned;
}

TL_GPU void gate(const tl_pass_phase &p, const Room &room, const Exit &e, uint32_t own) {
  const uint32_t up = __shfl_xor_sync(~0u, own, 2);
  if (thread_now() % 4 >= 2 || !e.has_row()) return;
  const float a = low_of(own), b = high_of(own);
  const uint32_t pair =
      round_two((a * tl_sigmoid(a)) * low_of(up), (b * tl_sigmoid(b)) * high_of(up));
  send_on(room, e, pair);
  *(uint32_t *)((uint16_t *)p.gated + e.to) = pair;
}

TL_GPU void add_other(const tl_pass_phase &p, const Room &room, const Exit &e, uint32_t other,
                      uint32_t own) {
  const Source s = source_in(room.mail, p.from_other, p.other);
  while (other == TL_PASS_ABSENT && s.comes) other = peek_word(s.at + e.to);
  const uint32_t sum = round_two(low_of(other) + low_of(own), high_of(other) + high_of(own));
  send_on(room, e, sum);
  *(uint32_t *)((uint16_t *)p.summed + e.to) = sum;
}

TL_GPU void finish(const tl_pass_phase &p, int tile, const Room &room, const Angles &angles,
                   const Exit &e, const float *sum) {
  const tl_gemm_few_args &g = p.product;
  float v[2] = {sum[0], sum[1]};
  if (e.what & Exit::HAS_BIAS) {
    const int feature = feature_of(p, e);
    v[0] = v[0] + bias_of(g, e.part(), feature), v[1] = v[1] + bias_of(g, e.part(), feature + 1);
  }
  const uint32_t pair = round_two(v[0], v[1]);
  if (e.after() == TL_PASS_ADD && e.has_row())
    add_other(p, room, e, tl_math_bits(angles.a.x), pair);
  if (e.after() == TL_PASS_SWIGLU) gate(p, room, e, pair);
  if (e.after() == TL_PASS_ROPE) turn_and_keep(p, tile, room, angles, e, pair);
  if (e.after() == TL_PASS_STORE && e.has_row() && g.out_is_bf16) send_on(room, e, pair);
  if (!e.has_row()) return;
  if (g.out_is_bf16)
    *(uint32_t *)((uint16_t *)g.out[e.part()] + e.to) = pair;
  else
    *(float2 *)((float *)g.out[e.part()] + e.to) = make_float2(v[0], v[1]);
}

TL_GPU Place place_of_job(const tl_pass_phase &p, const Share &own, int job) {
  return place_of(p, own.tile_of(job));
}

/* What ROPE turns a job by; known before x is there. */
TL_GPU Angles angles_of_job(const tl_pass_phase &p, const Share &own, int job, const Room &room) {
  const int row = thread_now() % 32 / 4;
  if (p.after != TL_PASS_ROPE && p.after != TL_PASS_ADD) return {};
  if (job >= own.jobs || row >= p.product.rows) return {};
  const Place at = place_of_job(p, own, job);
  if (p.after == TL_PASS_ADD) {
    const Source s = source_in(room.mail, p.from_other, p.other);
    const int to = row * p.product.columns[0] + at.low + thread_now() % 4 * 2;
    return {
        {tl_math_float(peek_word(s.at + to)), 0.0f},
        {0.0f,                                0.0f}
    };
  }
  return at.part < 2 ? angles_of(p, at, room.row[row]) : Angles{};
}

TL_GPU void multiply(const tl_pass_phase &p, const Weights &ring, Turn &turn, Room &room,
                     const Script &script, int phase, uint32_t &turns, unsigned char *x) {
  const int warp = thread_now() / 32;
  const int slots = (p.product.run + TL_PASS_DEPTH - 1) / TL_PASS_DEPTH;  // of a job
  const Share own = share_of(p);
  const int leaf = warp & ((1 << own.log) - 1);  // of those that the block has
  all_have_left(script, phase);
  if (thread_now() == 0) set_flight(ring, ring.calm);
  if (block_now() < p.spared) return;
  Angles angles = {};
  Held held = {};
  Exit exit = {};
  if (block_now() >= p.behind && warp < own.jobs && warp < round_of(p)) {
    Turn mine = turn;
    mine.advance(ring, warp);
    hold(p, ring, mine, p.behind > 0, held);
  }
  const auto early = [&] {
    angles = angles_of_job(p, own, warp, room);
    if (warp < own.jobs) exit = exit_of(p, place_of_job(p, own, warp));
  };
  prepare_x(p, room, x, turns, early);
  if (thread_now() == 0) set_flight(ring, ring.hurried);
  const uint32_t from = begin_of_x(p, x, leaf);
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (held.is) multiply_held(held, from, sum);  // here, not in the loop, which needs its registers
  int k = held.is ? TL_PASS_DEPTH : 0;
  for (int first = 0, round = 0; first < own.jobs; first += round_of(p), round++) {
    const int left = own.jobs - first, count = left < round_of(p) ? left : round_of(p);
    if (warp < count) {
      Turn mine = turn;
      mine.advance(ring, warp);
      if (first > 0) {
        angles = angles_of_job(p, own, first + warp, room);
        exit = exit_of(p, place_of_job(p, own, first + warp));
      }
      chain(p, ring, mine, count, k, from, sum);
      bool sums = leaf == 0;
      if (has_half(p))
        sums = fold_halves(p, round, room, turns, sum);
      else if (p.leaves_log > 0)
        fold(p, round, room.folds, sum);
      if (sums) finish(p, own.tile_of(first + warp), room, angles, exit, sum);
      sum[0] = sum[1] = sum[2] = sum[3] = 0.0f, k = 0;
    }
    turn.advance(ring, count * slots);
  }
}

#endif
