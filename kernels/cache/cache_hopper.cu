// cache_hopper.cu - attention_cached of bf16 for steps in which many requests decode: a warp has a
// row and a KV head, and the copy engine brings what it reads.
//
//   block of 128 keys       slot 0         slot 1          slot 2           slot 3
//                           keys 0 .. 63   keys 64 .. 127  values 0 .. 63   values 64 .. 127
//   scores                  [8 heads][128 keys] in registers, four lanes a head (cache_many.cuh)
//
// A box is 64 positions of one page and head, 8 KiB: keys [channel][position], values [position]
// [channel]. A slot is filled for the next block as soon as its box has been read, so a block is on
// its way while one is used; nothing but the warp itself is waited for, and six warps share a
// multiprocessor. A page that is not there is read past the end of the pool: as zeros.
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
  HEADS = 8
};

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

// Asks for the box of `slot` of the block at `block`, unless the row ends before; all lanes come.
GPU void ask(const tl_cached_hopper_args &k, Unit &u, uint32_t ring, uint32_t bars, int block,
             int slot) {
  const tl_cached_args &g = k.a;
  const int position = block + slot % 2 * BOX;
  if (position > u.last) return;
  look_up(g, u, position);
  const int page = __shfl_sync(~0u, u.pages, (position >> g.at.shift) - u.first_page);
  if (threadIdx.x != 0) return;
  const int place = position & (g.at.page - 1);
  barrier_expect(bars + 8 * slot, BYTES);
  if (slot < 2)
    box_load(ring + slot * BYTES, &k.keys, bars + 8 * slot, place, 0,
             page * g.kv_heads + u.kv_head);
  else
    box_load(ring + slot * BYTES, &k.values, bars + 8 * slot, 0, u.kv_head,
             page * g.at.page + place);
}

// Piece `piece` of 16 bytes of row `row` of a box.
GPU uint32_t piece_at(uint32_t box, int row, int piece) {
  return box + row * 128 + ((piece ^ (row & 7)) << 4);
}

// q of 8 heads as the rows of steps; rows 8 .. 15 stand for rows 0 .. 7.
GPU void load_queries(const tl_cached_args &g, int64_t row, int kv_head, uint32_t (&q)[4][2]) {
  const int head = threadIdx.x / 4 < g.group ? threadIdx.x / 4 : g.group - 1;
  const uint32_t *from = (const uint32_t *)((const uint16_t *)g.q +
                                            (row * g.heads + kv_head * g.group + head) * g.width) +
                         threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; i++) q[i][0] = from[8 * i], q[i][1] = from[8 * i + 4];
}

GPU void measure(const uint32_t (&q)[4][2], uint32_t box, float (*s)[4]) {
  const int lane = threadIdx.x;
#pragma unroll
  for (int i = 0; i < BOX / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) s[i][e] = 0.0f;
#pragma unroll
  for (int c = 0; c < BOX / 16; c++) {
    const uint32_t a[4] = {q[c][0], q[c][0], q[c][1], q[c][1]};
#pragma unroll
    for (int i = 0; i < BOX / 16; i++) {
      uint32_t b[4];
      load_matrices_across(piece_at(box, c * 16 + lane % 16, 2 * i + lane / 16), b);
      step(s[2 * i], a, b);
      step(s[2 * i + 1], a, b + 2);
    }
  }
}

struct Level {
  float m, t, l;
};

// Scores of keys 0 .. count - 1 become weights, the others +0; O fades.
GPU void soften(const tl_cached_args &g, int count, float (&s)[KEYS / 8][4], Level &level,
                float (&o)[BOX / 8][4]) {
  const int own = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (8 * i + own + e < count) level.m = fmaxf(level.m, s[i][e]);
  level.m = fmaxf(level.m, __shfl_xor_sync(~0u, level.m, 1));
  level.m = fmaxf(level.m, __shfl_xor_sync(~0u, level.m, 2));
  const float u = level.m * g.factor, a = fading(level.t, u);
  level.t = u;
  level.l = level.l * a;
#pragma unroll
  for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const float p = 8 * i + own + e < count ? tl_exp2(fmaf(s[i][e], g.factor, -u)) : 0.0f;
      level.l = level.l + p;
      s[i][e] = p;
    }
#pragma unroll
  for (int i = 0; i < BOX / 8; i++) o[i][0] = o[i][0] * a, o[i][1] = o[i][1] * a;
}

// Values of positions that the row does not see become zeros: what lies in a page by chance is not
// added up.
GPU void clear_rows(uint32_t box, int first) {
  const uint32_t zeros[4] = {0, 0, 0, 0};
  for (int i = first * 8 + threadIdx.x; i < BOX * 8; i += 32) store_shared(box + i * 16, zeros);
  fence_async();  // the copy engine writes there again
  __syncwarp();
}

GPU void add_values(const float (*w)[4], uint32_t box, int count, float (&o)[BOX / 8][4]) {
  const int lane = threadIdx.x;
#pragma unroll
  for (int j = 0; j < BOX / 16; j++) {
    if (16 * j >= count) break;
    const uint32_t low = bf16_pair(w[2 * j][0], w[2 * j][1]);
    const uint32_t high = bf16_pair(w[2 * j + 1][0], w[2 * j + 1][1]);
    const uint32_t a[4] = {low, low, high, high};
#pragma unroll
    for (int i = 0; i < BOX / 16; i++) {
      uint32_t b[4];
      load_matrices_across(piece_at(box, j * 16 + lane % 16, 2 * i + lane / 16), b);
      step(o[2 * i], a, b);
      step(o[2 * i + 1], a, b + 2);
    }
  }
}

GPU void store(const tl_cached_args &g, int64_t row, int kv_head, float l,
               const float (&o)[BOX / 8][4]) {
  const int head = threadIdx.x / 4;
  if (head >= g.group) return;
  const tl_attention_output out = {g.o, g.value_width, g.value_width, g.o_is_bf16, 1};
  const int64_t to = row * g.heads + kv_head * g.group + head;
#pragma unroll
  for (int i = 0; i < BOX / 8; i++)
    store_two(out, to, 0, 8 * i + threadIdx.x % 4 * 2, o[i][0] / l, o[i][1] / l);
}

// A row that is none: +0; one whose request or position there is not: NaN.
GPU void fill_row(const tl_cached_args &g, int64_t row, int kv_head, uint32_t bits) {
  const int count = g.group * g.value_width;
  const int64_t first = row * g.heads * g.value_width + (int64_t)kv_head * count;
  for (int i = threadIdx.x; i < count; i += 32) {
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[first + i] = uint16_t(bits >> 16);
    else
      ((uint32_t *)g.o)[first + i] = bits;
  }
}

GPU void attend(const tl_cached_hopper_args &k, int64_t row, Unit &u, uint32_t ring,
                uint32_t bars) {
  const tl_cached_args &g = k.a;
  uint32_t q[4][2];
  float s[KEYS / 8][4], o[BOX / 8][4] = {};
  Level level = {-TL_INFINITY, -TL_INFINITY, 0.0f};
#pragma unroll 1
  for (int slot = 0; slot < 4; slot++) ask(k, u, ring, bars, 0, slot);
  load_queries(g, row, u.kv_head, q);
#pragma unroll 1
  for (int block = 0; block <= u.last; block += KEYS) {
    const int count = u.last - block + 1 < KEYS ? u.last - block + 1 : KEYS;
    const uint32_t parity = block / KEYS & 1;
    const bool both = count > BOX;
    barrier_wait(bars, parity);
    measure(q, ring, s);
    __syncwarp();
    ask(k, u, ring, bars, block + KEYS, 0);
    if (both) {
      barrier_wait(bars + 8, parity);
      measure(q, ring + BYTES, s + BOX / 8);
      __syncwarp();
      ask(k, u, ring, bars, block + KEYS, 1);
    }
    soften(g, count, s, level, o);
    barrier_wait(bars + 16, parity);
    if (count < BOX) clear_rows(ring + 2 * BYTES, count);
    add_values(s, ring + 2 * BYTES, count, o);
    __syncwarp();
    ask(k, u, ring, bars, block + KEYS, 2);
    if (!both) break;
    barrier_wait(bars + 24, parity);
    if (count < KEYS) clear_rows(ring + 3 * BYTES, count - BOX);
    add_values(s + BOX / 8, ring + 3 * BYTES, count - BOX, o);
    __syncwarp();
    ask(k, u, ring, bars, block + KEYS, 3);
  }
  store(g, row, u.kv_head, sum_of_four(level.l), o);
}

extern "C" __global__ void __launch_bounds__(32, 6)
    attention_cached_hopper_64(const __grid_constant__ tl_cached_hopper_args k) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const tl_cached_args &g = k.a;
  const uint32_t ring = shared_address(shared), bars = ring + 4 * BYTES;
  const int row = blockIdx.x / g.kv_heads;
  next_begin();
  if (threadIdx.x < 4) barrier_make(bars + 8 * threadIdx.x, 1);
  barriers_made();
  if (threadIdx.x == 4) map_prefetch(&k.keys);
  if (threadIdx.x == 5) map_prefetch(&k.values);
  __syncwarp();
  if (!g.ahead) earlier_wait();
  const int request = g.at.request[row], position = g.at.position[row];
  Unit u = {request, position, int(blockIdx.x % g.kv_heads), 0, -32};
  const bool exists = request >= 0 && request < g.at.requests && position >= 0 &&
                      position >> g.at.shift < g.at.pages_max;
  if (exists && g.ahead) look_up(g, u, 0);
  if (g.ahead) earlier_wait();
  if (!exists) return fill_row(g, row, u.kv_head, request < 0 ? 0 : 0x7fffffffu);
  attend(k, row, u, ring, bars);
}
