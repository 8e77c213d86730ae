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
// A block takes rows and KV heads (units) gridDim.x apart, and asks for the first boxes of the next
// one while it still works on this one: blocks of keys are counted on from unit to unit.
//
//   unit   |   u: blocks n, n + 1, n + 2   |   v: blocks n + 3, ..   |    slot: of n mod depth
//
// Boxes of the first unit that no row of this step writes hold what earlier steps wrote; they are
// asked for before earlier kernels have ended. Which those are follows from all rows' places.
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
  ASKS = WARPS - 1,  // the warp that asks for boxes; warp 0 adds weights up
  OWN = KEYS / WARPS  // keys of a warp
};

struct Shared {
  uint64_t bars[8];
  int box[4];        // of the first unit, -1: none
  uint32_t written;  // a bit for each of them
  float most[WARPS][HEADS];
  float l[HEADS];
  float2 weight[KEYS / 8][32];  // of 8 keys, by lane: keys 2 (lane % 4), + 1 of head lane / 4
};
static_assert(sizeof(Shared) <= TL_CACHED_HOPPER_REST, "shared memory");

struct Unit {
  int row, kv_head, request, last;
  int count;              // of blocks of keys; 0: no such row, request or position
  int pages, first_page;  // this lane's entry of 32, and which the first of them is
};

GPU Unit unit_at(const tl_cached_args &g, int index) {
  Unit u = {index / g.kv_heads, index % g.kv_heads, -1, -1, 0, 0, -32};
  if (u.row >= g.at.rows) return u;
  u.request = g.at.request[u.row], u.last = g.at.position[u.row];
  const bool exists = u.request >= 0 && u.request < g.at.requests && u.last >= 0 &&
                      u.last >> g.at.shift < g.at.pages_max;
  u.last = exists ? u.last : -1;
  u.count = exists ? u.last / KEYS + 1 : 0;
  return u;
}

// The entries of the table around a position, one a lane.
GPU void look_up(const tl_cached_args &g, Unit &u, int position) {
  const int entry = position >> g.at.shift;
  if (entry < u.first_page + 32) return;
  u.first_page = entry;
  const int own = entry + threadIdx.x % 32;
  u.pages =
      own << g.at.shift <= u.last ? g.at.table[(int64_t)u.request * g.at.pages_max + own] : -1;
  if (u.pages < 0 || u.pages >= g.at.pages) u.pages = g.at.pages;
}

GPU int page_of_unit(const tl_cached_args &g, Unit &u, int position) {
  look_up(g, u, position);
  return __shfl_sync(~0u, u.pages, (position >> g.at.shift) - u.first_page);
}

// The first of the two slots of keys, or of values, of block `n`.
GPU int slot_of(const tl_cached_hopper_args &k, int n, int values) {
  return (n & (k.depth - 1)) * 4 + 2 * values;
}

// Asks for 64 keys or values of the unit's block `block`, the `half` of it, into the slot of block
// `n`; behind the row's last position nothing comes. The warp that asks is here.
GPU void ask_half(const tl_cached_hopper_args &k, Unit &u, uint32_t ring, uint32_t bars, int n,
                  int block, int values, int half) {
  const tl_cached_args &g = k.a;
  const int position = block * KEYS + half * BOX, slot = slot_of(k, n, values) + half;
  const bool is_there = position <= u.last;
  const int page = is_there ? page_of_unit(g, u, position) : 0;
  if (threadIdx.x % 32 != 0) return;
  const int place = position & (g.at.page - 1);
  barrier_expect(bars + 8 * slot, is_there ? BYTES : 0);
  if (!is_there) return;
  if (!values)
    box_load(ring + slot * BYTES, &k.keys, bars + 8 * slot, place, 0,
             page * g.kv_heads + u.kv_head);
  else
    box_load(ring + slot * BYTES, &k.values, bars + 8 * slot, 0, u.kv_head,
             page * g.at.page + place);
}

// Where the asking is. `asked`: blocks whose keys, or values, have been asked for.
struct Asked {
  Unit u, next;
  int first;  // block of u's first keys
  int asked[2];
};

// Asks for the keys or values of block `n`, of this unit or the next, unless that was done, or they
// are no block of either.
GPU void ask(const tl_cached_hopper_args &k, Asked &a, uint32_t ring, uint32_t bars, int n,
             int values) {
  if (n < a.asked[values]) return;
  const int own = n - a.first, behind = own - a.u.count;
  if (behind >= a.next.count) return;
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    if (behind < 0)
      ask_half(k, a.u, ring, bars, n, own, values, half);
    else
      ask_half(k, a.next, ring, bars, n, behind, values, half);
  }
  a.asked[values] = n + 1;
}

// Which of the first unit's boxes some row of this step writes: all threads look through the rows.
GPU uint32_t find_written(const tl_cached_args &g, Unit &u, int boxes, Shared &shared) {
  const int shift = g.at.shift - 6;  // boxes of a page
  if (threadIdx.x == 0) shared.written = 0;
  if (threadIdx.x / 32 == ASKS)
    for (int i = 0; i < boxes; i++) {
      const int position = i * BOX;
      const int page = position <= u.last ? page_of_unit(g, u, position) : -1;
      const int box = (page << shift) + ((position & (g.at.page - 1)) >> 6);
      if (threadIdx.x % 32 == 0) shared.box[i] = page < 0 ? -1 : box;
    }
  __syncthreads();
  uint32_t hits = 0;
  for (int row = threadIdx.x; row < g.at.rows; row += 32 * WARPS) {
    const int request = g.at.request[row], position = g.at.position[row];
    if (request < 0 || request >= g.at.requests || position < 0) continue;
    if (position >> g.at.shift >= g.at.pages_max) continue;
    const int page = g.at.table[(int64_t)request * g.at.pages_max + (position >> g.at.shift)];
    const int box = (page << shift) + ((position & (g.at.page - 1)) >> 6);
    for (int i = 0; i < boxes; i++) hits |= uint32_t(box == shared.box[i]) << i;
  }
  if (hits != 0) atomicOr(&shared.written, hits);
  __syncthreads();
  return shared.written;
}

// The first unit's first blocks: those boxes that are in `which`.
GPU void ask_first(const tl_cached_hopper_args &k, Unit &u, uint32_t ring, uint32_t bars,
                   uint32_t which) {
#pragma unroll 1
  for (int i = 0; i < 4 * k.depth; i++) {
    const int block = i / 4, values = i / 2 % 2, half = i % 2;
    if (block < u.count && (which >> (2 * block + half) & 1))
      ask_half(k, u, ring, bars, block, block, values, half);
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

// The largest of the warp's scores of a head, of keys 0 .. count - 1 of the block, or `whole`: of
// all. So blocks that are seen whole need no branches.
template <bool whole>
GPU float largest(const float (&s)[OWN / 8][4], int first, int count) {
  float m = -TL_INFINITY;
#pragma unroll
  for (int i = 0; i < OWN / 8; i++)
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (whole || first + 8 * i + e < count) m = fmaxf(m, s[i][e]);
  m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
  return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
}

// Scores of keys 0 .. count - 1 become weights, the others +0, for all warps to read.
template <bool whole>
GPU void soften(const tl_cached_args &g, const float (&s)[OWN / 8][4], int first, int count,
                float u, Shared &shared) {
  const int lane = threadIdx.x % 32, tile = threadIdx.x / 32 * (OWN / 8);
#pragma unroll
  for (int i = 0; i < OWN / 8; i++) {
    float p[2];
#pragma unroll
    for (int e = 0; e < 2; e++)
      p[e] = whole || first + 8 * i + e < count ? tl_exp2(fmaf(s[i][e], g.factor, -u)) : 0.0f;
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

// All positions of a block that is seen whole: the channels of the warp. Weights are there before
// values are.
GPU void add_block(const Shared &shared, uint32_t boxes, uint32_t bar, uint32_t parity,
                   float (&o)[2][4]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t weight[KEYS / 8];
#pragma unroll
  for (int i = 0; i < KEYS / 8; i++) {
    const float2 p = shared.weight[i][lane];
    weight[i] = bf16_pair(p.x, p.y);
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint32_t b[BOX / 16][4];
    barrier_wait(bar + 8 * half, parity);
#pragma unroll
    for (int j = 0; j < BOX / 16; j++)
      load_matrices_across(
          piece_at(boxes + half * BYTES, j * 16 + lane % 16, 2 * warp + lane / 16), b[j]);
#pragma unroll
    for (int j = 0; j < BOX / 16; j++) {
      const uint32_t low = weight[half * 8 + 2 * j], high = weight[half * 8 + 2 * j + 1];
      const uint32_t a[4] = {low, low, high, high};
      step(o[0], a, b[j]);
      step(o[1], a, b[j] + 2);
    }
  }
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

// A block of which the row sees the first `count` positions.
GPU void add_part(const Shared &shared, uint32_t boxes, uint32_t bar, uint32_t parity, int count,
                  float (&o)[2][4]) {
#pragma unroll 1
  for (int half = 0; half < 2 && half * BOX < count; half++) {
    const uint32_t box = boxes + half * BYTES;
    const int seen = count - half * BOX;
    barrier_wait(bar + 8 * half, parity);
    if (seen < BOX) clear_rows(box, seen);
    add_values(shared.weight + half * (BOX / 8), box, seen, o);
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

// The unit asked.u, whose first block is asked.first.
GPU void attend(const tl_cached_hopper_args &k, Asked &asked, uint32_t ring, uint32_t bars,
                Shared &shared) {
  const tl_cached_args &g = k.a;
  const int row = asked.u.row, kv_head = asked.u.kv_head, last = asked.u.last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = warp * OWN + lane % 4 * 2;  // of the lane's keys
  uint32_t q[4][2];
  float s[OWN / 8][4], o[2][4] = {};
  Level level = {-TL_INFINITY, -TL_INFINITY, 0.0f};
  load_queries(g, row, kv_head, q);
#pragma unroll 1
  for (int block = 0, n = asked.first; block <= last; block += KEYS, n++) {
    const int count = last - block + 1 < KEYS ? last - block + 1 : KEYS;
    const uint32_t parity = n >> (k.depth - 1) & 1;
    const int keys = slot_of(k, n, 0) + warp / 2, values = slot_of(k, n, 1);
    const bool whole = count == KEYS;
    float most = -TL_INFINITY;
    if (warp / 2 * BOX < count) {
      barrier_wait(bars + 8 * keys, parity);
      measure(q, ring + keys * BYTES, warp % 2 * (OWN / 8), s);
      most = whole ? largest<true>(s, first, count) : largest<false>(s, first, count);
    }
    if (lane % 4 == 0) shared.most[warp][lane / 4] = most;
    __syncthreads();
    if (warp == ASKS) ask(k, asked, ring, bars, n + k.depth, 0);  // these keys have been read
#pragma unroll
    for (int i = 0; i < WARPS; i++) level.m = fmaxf(level.m, shared.most[i][lane / 4]);
    const float t = level.m * g.factor, a = fading(level.t, t);
    level.t = t;
    if (whole)
      soften<true>(g, s, first, count, t, shared);
    else
      soften<false>(g, s, first, count, t, shared);
#pragma unroll
    for (int i = 0; i < 2; i++) o[i][0] = o[i][0] * a, o[i][1] = o[i][1] * a;
    __syncthreads();
    if (warp == 0) {
      level.l = level.l * a;
      add_weights(shared, level.l);
    }
    if (whole)
      add_block(shared, ring + values * BYTES, bars + 8 * values, parity, o);
    else
      add_part(shared, ring + values * BYTES, bars + 8 * values, parity, count, o);
    __syncthreads();
    if (warp == ASKS) ask(k, asked, ring, bars, n + k.depth, 1);
  }
  const float l = sum_of_four(level.l);
  if (warp == 0 && lane % 4 == 0) shared.l[lane / 4] = l;
  __syncthreads();
  store(g, row, kv_head, shared.l[lane / 4], o);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, TL_CACHED_HOPPER_TOGETHER)
    attention_cached_hopper_64(const __grid_constant__ tl_cached_hopper_args k) {
  extern __shared__ __align__(1024) unsigned char boxes[];
  const tl_cached_args &g = k.a;
  Shared &shared = *(Shared *)(boxes + k.depth * 4 * BYTES);
  const uint32_t ring = shared_address(boxes), bars = shared_address((unsigned char *)&shared);
  const int units = g.at.rows * g.kv_heads;
  next_begin();
  if (threadIdx.x < 4 * k.depth) barrier_make(bars + 8 * threadIdx.x, 1);
  barriers_made();
  if (threadIdx.x == 32) map_prefetch(&k.keys);
  if (threadIdx.x == 64) map_prefetch(&k.values);
  __syncthreads();
  if (!g.ahead) earlier_wait();
  Asked asked = {unit_at(g, blockIdx.x)};
  const uint32_t all = (1u << 2 * k.depth) - 1;
  uint32_t later = all;
  if (g.ahead) {
    if (k.early) later = find_written(g, asked.u, 2 * k.depth, shared);
    if (threadIdx.x / 32 == ASKS) ask_first(k, asked.u, ring, bars, all & ~later);
    earlier_wait();
  }
  if (threadIdx.x / 32 == ASKS) ask_first(k, asked.u, ring, bars, later);
  asked.asked[0] = asked.asked[1] = asked.u.count < k.depth ? asked.u.count : k.depth;
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    asked.next = unit_at(g, unit + gridDim.x);
    if (threadIdx.x / 32 == ASKS)  // what the unit before had no slots for, or did not know of
      for (int n = asked.first; n < asked.first + k.depth; n++) {
        ask(k, asked, ring, bars, n, 0);
        ask(k, asked, ring, bars, n, 1);
      }
    if (asked.u.count > 0)
      attend(k, asked, ring, bars, shared);
    else
      fill_row(g, asked.u.row, asked.u.kv_head, asked.u.request < 0 ? 0 : 0x7fffffffu);
    asked.first += asked.u.count;
    asked.u = asked.next;
  }
}
