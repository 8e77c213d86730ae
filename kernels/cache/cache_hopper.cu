// cache_hopper.cu - attention_cached of bf16 for steps in which many requests decode: a block of
// four warps has a row and a KV head, and the copy engine brings what it reads.
//
//   block of 128 keys   slot 0         slot 1          slot 2           slot 3
//                       keys 0 .. 63   keys 64 .. 127  values 0 .. 63   values 64 .. 127
//
//   scores, weights     warp w: keys 32 w .. of the block, 8 heads; the largest ones meet
//   values              warp w: channels 16 w .., all keys; weights come through shared memory
//   sums of weights     warp 0, in the order of keys
//
// A box is 64 positions of one page and head, 8 KiB: keys [channel][position], values [position]
// [channel]. The ring holds one block of keys or two, which the launcher says: where there are few
// rows, more is on its way. A page that is not there is read past the end of the pool: as zeros.
//
// The sums are those of cache_one.cuh and cache_many.cuh; here a request is one part (no split), a
// block has 128 keys, and there is no window, which the launcher looks at.
#include "../attention/attention_bf16.cuh"
#include "../hopper.cuh"
#include "cache_hopper_args.h"

enum {
  KEYS = TL_CACHED_HOPPER_KEYS,
  BOX = 64,  // positions, and channels
  BYTES = BOX * BOX * 2,
  HEADS = 8,
  WARPS = 4,
  OWN = KEYS / WARPS  // keys of a warp
};

struct Shared {
  uint64_t bars[8];
  float most[WARPS][HEADS];
  float l[HEADS];
  float2 weight[KEYS / 8][32];  // of 8 keys, by lane: keys 2 (lane % 4), + 1 of head lane / 4
};
static_assert(sizeof(Shared) <= TL_CACHED_HOPPER_REST, "shared memory");

struct Unit {
  int request, last, kv_head;
  int pages, first_page;  // this lane's entry of 32, and which the first of them is
};

// The entries of the table around a block, one a lane.
GPU void look_up(const tl_cached_args &g, Unit &u, int position) {
  const int entry = position >> g.at.shift;
  if (entry < u.first_page + 32) return;
  u.first_page = entry;
  const int own = entry + threadIdx.x;
  u.pages =
      own << g.at.shift <= u.last ? g.at.table[(int64_t)u.request * g.at.pages_max + own] : -1;
  if (u.pages < 0 || u.pages >= g.at.pages) u.pages = g.at.pages;
}

// The first of the two slots of keys, or of values, of the block at `block`.
GPU int slot_of(const tl_cached_hopper_args &k, int block, int values) {
  return block / KEYS % k.depth * 4 + 2 * values;
}

// Asks for keys or values of the block at `block`, as far as the row goes; warp 0 comes.
GPU void ask(const tl_cached_hopper_args &k, Unit &u, uint32_t ring, uint32_t bars, int block,
             int values) {
  const tl_cached_args &g = k.a;
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    const int position = block + half * BOX, slot = slot_of(k, block, values) + half;
    if (position > u.last) return;
    look_up(g, u, position);
    const int page = __shfl_sync(~0u, u.pages, (position >> g.at.shift) - u.first_page);
    if (threadIdx.x != 0) continue;
    const int place = position & (g.at.page - 1);
    barrier_expect(bars + 8 * slot, BYTES);
    if (!values)
      box_load(ring + slot * BYTES, &k.keys, bars + 8 * slot, place, 0,
               page * g.kv_heads + u.kv_head);
    else
      box_load(ring + slot * BYTES, &k.values, bars + 8 * slot, 0, u.kv_head,
               page * g.at.page + place);
  }
}

// Piece `piece` of 16 bytes of row `row` of a box.
GPU uint32_t piece_at(uint32_t box, int row, int piece) {
  return box + row * 128 + ((piece ^ (row & 7)) << 4);
}

// q of 8 heads as the rows of steps; rows 8 .. 15 stand for rows 0 .. 7.
GPU void load_queries(const tl_cached_args &g, int64_t row, int kv_head, uint32_t (&q)[4][2]) {
  const int lane = threadIdx.x % 32, head = lane / 4 < g.group ? lane / 4 : g.group - 1;
  const uint32_t *from = (const uint32_t *)((const uint16_t *)g.q +
                                            (row * g.heads + kv_head * g.group + head) * g.width) +
                         lane % 4;
#pragma unroll
  for (int i = 0; i < 4; i++) q[i][0] = from[8 * i], q[i][1] = from[8 * i + 4];
}

// Scores of the warp's keys, which stand in a box from piece `piece` of each channel on.
GPU void measure(const uint32_t (&q)[4][2], uint32_t box, int piece, float (&s)[OWN / 8][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < OWN / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[i][e] = 0.0f;
#pragma unroll
  for (int c = 0; c < BOX / 16; c++) {
    const uint32_t a[4] = {q[c][0], q[c][0], q[c][1], q[c][1]};
#pragma unroll
    for (int i = 0; i < OWN / 16; i++) {
      uint32_t b[4];
      load_matrices_across(piece_at(box, c * 16 + lane % 16, piece + 2 * i + lane / 16), b);
      step(s[2 * i], a, b);
      step(s[2 * i + 1], a, b + 2);
    }
  }
}

struct Level {
  float m, t, l;
};

// The largest of the warp's scores of a head, of keys 0 .. count - 1 of the block.
GPU float largest(const float (&s)[OWN / 8][4], int first, int count) {
  float m = -TL_INFINITY;
#pragma unroll
  for (int i = 0; i < OWN / 8; i++)
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (first + 8 * i + e < count) m = fmaxf(m, s[i][e]);
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
  return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
}

// Scores of keys 0 .. count - 1 become weights, the others +0, for all warps to read.
GPU void soften(const tl_cached_args &g, const float (&s)[OWN / 8][4], int first, int count,
                float u, Shared &shared) {
  const int lane = threadIdx.x % 32, tile = threadIdx.x / 32 * (OWN / 8);
#pragma unroll
  for (int i = 0; i < OWN / 8; i++) {
    float p[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
      p[e] = first + 8 * i + e < count ? tl_exp2(fmaf(s[i][e], g.factor, -u)) : 0.0f;
    shared.weight[tile + i][lane] = make_float2(p[0], p[1]);
  }
}

// The sums of a lane's weights, one after the other.
GPU void add_weights(const Shared &shared, float &l) {
#pragma unroll
  for (int i = 0; i < KEYS / 8; i++) {
    const float2 p = shared.weight[i][threadIdx.x % 32];
    l = l + p.x;
    l = l + p.y;
  }
}

// Values of positions that the row does not see become zeros in the channels of the warp: what lies
// in a page by chance is not added up. Steps of 16 positions behind them are left out.
GPU void clear_rows(uint32_t box, int first) {
  const uint32_t zeros[4] = {0, 0, 0, 0};
  const int row = first + threadIdx.x % 32 / 2, piece = threadIdx.x / 32 * 2 + threadIdx.x % 2;
  if (row < (first + 15) / 16 * 16) store_shared(piece_at(box, row, piece), zeros);
  fence_async();  // the copy engine writes there again
  __syncwarp();
}

// 64 positions, of which the row sees `count`: the channels of the warp.
GPU void add_values(const float2 (*weight)[32], uint32_t box, int count, float (&o)[2][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int j = 0; j < BOX / 16; j++) {
    if (16 * j >= count) break;
    const float2 one = weight[2 * j][lane], two = weight[2 * j + 1][lane];
    const uint32_t low = bf16_pair(one.x, one.y), high = bf16_pair(two.x, two.y);
    const uint32_t a[4] = {low, low, high, high};
    uint32_t b[4];
    load_matrices_across(piece_at(box, j * 16 + lane % 16, 2 * warp + lane / 16), b);
    step(o[0], a, b);
    step(o[1], a, b + 2);
  }
}

GPU void store(const tl_cached_args &g, int64_t row, int kv_head, float l, const float (&o)[2][4]) {
  const int lane = threadIdx.x % 32, head = lane / 4;
  if (head >= g.group) return;
  const tl_attention_output out = {g.o, g.value_width, g.value_width, g.o_is_bf16, 1};
  const int64_t to = row * g.heads + kv_head * g.group + head;
#pragma unroll
  for (int i = 0; i < 2; i++)
    store_two(out, to, 0, threadIdx.x / 32 * 16 + 8 * i + lane % 4 * 2, o[i][0] / l, o[i][1] / l);
}

// A row that is none: +0; one whose request or position there is not: NaN.
GPU void fill_row(const tl_cached_args &g, int64_t row, int kv_head, uint32_t bits) {
  const int count = g.group * g.value_width;
  const int64_t first = row * g.heads * g.value_width + (int64_t)kv_head * count;
  for (int i = threadIdx.x; i < count; i += 32 * WARPS) {
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[first + i] = uint16_t(bits >> 16);
    else
      ((uint32_t *)g.o)[first + i] = bits;
  }
}

GPU void attend(const tl_cached_hopper_args &k, int64_t row, Unit &u, uint32_t ring, uint32_t bars,
                Shared &shared) {
  const tl_cached_args &g = k.a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, ahead = k.depth * KEYS;
  const int first = warp * OWN + lane % 4 * 2;  // of the lane's keys
  uint32_t q[4][2];
  float s[OWN / 8][4], o[2][4] = {};
  Level level = {-TL_INFINITY, -TL_INFINITY, 0.0f};
  load_queries(g, row, u.kv_head, q);
#pragma unroll 1
  for (int block = 0; block <= u.last; block += KEYS) {
    const int count = u.last - block + 1 < KEYS ? u.last - block + 1 : KEYS;
    const uint32_t parity = block / ahead & 1;
    const int keys = slot_of(k, block, 0) + warp / 2, values = slot_of(k, block, 1);
    float most = -TL_INFINITY;
    if (warp / 2 * BOX < count) {
      barrier_wait(bars + 8 * keys, parity);
      measure(q, ring + keys * BYTES, warp % 2 * (OWN / 8), s);
      most = largest(s, first, count);
    }
    if (lane % 4 == 0) shared.most[warp][lane / 4] = most;
    __syncthreads();
    if (warp == 0) ask(k, u, ring, bars, block + ahead, 0);  // these keys have been read
#pragma unroll
    for (int i = 0; i < WARPS; i++) level.m = fmaxf(level.m, shared.most[i][lane / 4]);
    const float t = level.m * g.factor, a = fading(level.t, t);
    level.t = t;
    soften(g, s, first, count, t, shared);
#pragma unroll
    for (int i = 0; i < 2; i++) o[i][0] = o[i][0] * a, o[i][1] = o[i][1] * a;
    __syncthreads();
    if (warp == 0) {
      level.l = level.l * a;
      add_weights(shared, level.l);
    }
#pragma unroll 1
    for (int half = 0; half < 2 && half * BOX < count; half++) {
      const uint32_t box = ring + (values + half) * BYTES;
      const int seen = count - half * BOX;
      barrier_wait(bars + 8 * (values + half), parity);
      if (seen < BOX) clear_rows(box, seen);
      add_values(shared.weight + half * (BOX / 8), box, seen, o);
    }
    __syncthreads();
    if (warp == 0) ask(k, u, ring, bars, block + ahead, 1);
  }
  const float l = sum_of_four(level.l);
  if (warp == 0 && lane % 4 == 0) shared.l[lane / 4] = l;
  __syncthreads();
  store(g, row, u.kv_head, shared.l[lane / 4], o);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 6)
    attention_cached_hopper_64(const __grid_constant__ tl_cached_hopper_args k) {
  extern __shared__ __align__(1024) unsigned char boxes[];
  const tl_cached_args &g = k.a;
  Shared &shared = *(Shared *)(boxes + k.depth * 4 * BYTES);
  const uint32_t ring = shared_address(boxes), bars = shared_address((unsigned char *)&shared);
  const int row = blockIdx.x / g.kv_heads;
  next_begin();
  if (threadIdx.x < 4 * k.depth) barrier_make(bars + 8 * threadIdx.x, 1);
  barriers_made();
  if (threadIdx.x == 32) map_prefetch(&k.keys);
  if (threadIdx.x == 64) map_prefetch(&k.values);
  __syncthreads();
  if (!g.ahead) earlier_wait();
  const int request = g.at.request[row], position = g.at.position[row];
  Unit u = {request, position, int(blockIdx.x % g.kv_heads), 0, -32};
  const bool exists = request >= 0 && request < g.at.requests && position >= 0 &&
                      position >> g.at.shift < g.at.pages_max;
  if (exists && g.ahead && threadIdx.x < 32) look_up(g, u, 0);
  if (g.ahead) earlier_wait();
  if (!exists) return fill_row(g, row, u.kv_head, request < 0 ? 0 : 0x7fffffffu);
  if (threadIdx.x < 32)
    for (int i = 0; i < 2 * k.depth; i++) ask(k, u, ring, bars, i / 2 * KEYS, i % 2);
  attend(k, row, u, ring, bars, shared);
}
