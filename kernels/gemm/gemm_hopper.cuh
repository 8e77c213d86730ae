/* gemm_hopper.cuh - the three products of bf16 factors on sm_90a: gemm.h says what,
** gemm_hopper_args.h how it comes. Same bits as gemm_bf16.cu, by the copy engine and products of
** whole warpgroups.
**
**   cluster: 256 rows x `columns`            block: 128 rows, persistent
**   +-----------+                            warpgroup 0   one thread gives out all copies
**   | block 0   |  B: each block brings      warpgroup 1   rows 0 .. 63: products, leaves, output
**   | 128 rows  |  half of it to both        warpgroup 2   rows 64 .. 127
**   +-----------+
**   | block 1   |  shared memory: ring of slots (A 128 x 64, B columns x 64), a buffer for each of
**   +-----------+  the warpgroups 1 and 2, barriers
**
**   slot   full:  bytes of the copy engine     empty: every warp that reads, of both blocks
**
** Leaves. A chain ends in registers. A leaf that waits for its partner is `sums` numbers a thread:
** of all waiting ones the first `kept` stay in registers, the others lie in the buffer. Whether the
** loop over leaves is unrolled decides about registers: two leaves of 256 columns spill unless it
** is rolled, the others unless it is unrolled.
**
** Where the chain starts from or is added to what the output holds, that comes through the ring
** too, 64 columns a slot, in the place in the order where it is needed.
*/
#ifndef TL_GEMM_HOPPER_CUH
#define TL_GEMM_HOPPER_CUH

#include "../hopper.cuh"
#include "gemm_hopper_args.h"

enum Product { LINEAR, GRAD_INPUT, GRAD_WEIGHT };
enum Start { START_ZERO, START_RESUME, START_ADD };
enum { DEPTH = 64, ROWS = 128, A_BYTES = ROWS * DEPTH * 2, GROUP_ROWS = 8, BOX = 8192 };

template <Product P>
constexpr int a_way = P == GRAD_WEIGHT ? ACROSS : ALONG;
template <Product P>
constexpr int b_way = P == LINEAR ? ALONG : ACROSS;

constexpr int levels_of(int leaves) { return leaves == 1 ? 0 : 1 + levels_of(leaves / 2); }

// The numbers of gemm_hopper.def.
template <int leaves_, int columns_, int blocks_, int slots_, int registers_, int room_>
struct Shape {
  static constexpr int leaves = leaves_, columns = columns_, blocks = blocks_, slots = slots_;
  static constexpr int sums = columns / 2, levels = levels_of(leaves), waiting = levels * sums;
  static constexpr int kept = registers_ < waiting ? registers_ : waiting;
  static constexpr int room = room_, slot_bytes = A_BYTES + columns * DEPTH * 2;
  static constexpr int bytes = slots * (slot_bytes + 16) + 2 * room;
  static constexpr int unroll = kept == waiting || leaves > 2 ? leaves : 1;
  static_assert((waiting - kept) * 512 <= room && room % BOX == 0 && bytes <= 232448, "memory");
};

// A place in the ring: slots go round, and the parity of their barriers with them.
template <int slots>
struct Turn {
  int slot;
  uint32_t parity;
  __device__ __forceinline__ void next() {
    if (++slot == slots) slot = 0, parity ^= 1;
  }
};

struct Tile {
  int row, column, part;  // row: of the cluster; column: of the part
};

// Groups of 8 row tiles; in a group all columns, rows first: what runs together shares factors.
template <class S>
__device__ __forceinline__ Tile find_tile(const tl_gemm_hopper_args &g, int index) {
  const int group = index / (GROUP_ROWS * g.column_tiles);
  const int rest = index - group * GROUP_ROWS * g.column_tiles;
  const int height = min(GROUP_ROWS, g.row_tiles - group * GROUP_ROWS);
  const int column = rest / height, row = group * GROUP_ROWS + rest - column * height;
  int part = 0;
  while (part + 1 < g.outputs && column >= g.first_tile[part + 1]) part++;
  return {row * ROWS * S::blocks, (column - g.first_tile[part]) * S::columns, part};
}

// Two bf16 in a word, `low` first in memory; a sum that is no number becomes 0x7fff.
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// Outputs of a row, columns `column` and the next. Widths are even: both are inside, or neither.
template <typename Args>
__device__ __forceinline__ void store_pair(const Args &g, int part, int row, int column, float low,
                                           float high) {
  const int64_t at = int64_t(row) * g.columns[part] + column;
  if (row >= g.rows || column >= g.columns[part]) return;
  if (g.out_is_bf16)
    *(uint32_t *)((uint16_t *)g.data[part] + at) = bf16_pair(low, high);
  else
    *(float2 *)((float *)g.data[part] + at) = make_float2(low, high);
}

template <Product P, class S>
struct Hopper {
  static constexpr int columns = S::columns, sums = S::sums;
  static constexpr bool adds = P == GRAD_WEIGHT;          // outputs may be read at the end
  static constexpr bool starts = adds && S::leaves == 1;  // and at the start
  uint32_t ring, full, empty;                             // shared memory
  uint32_t rank;                                          // in the cluster

  // ---- warpgroup 0 ----

  // 64 k of both factors; n: the first of the columns that this block brings.
  __device__ __forceinline__ void load_factors(const tl_gemm_hopper_args &g, Turn<S::slots> &turn,
                                               const tl_tensor_map *a, const tl_tensor_map *b,
                                               int m, int n, int k, int piece) const {
    const uint32_t bar = full + 8 * turn.slot, at = ring + turn.slot * S::slot_bytes;
    constexpr int own = columns / S::blocks;
    const uint32_t b_at = at + A_BYTES + rank * own * 128;
    barrier_wait(empty + 8 * turn.slot, turn.parity);
    barrier_expect(bar, S::slot_bytes);
    if constexpr (a_way<P> == ACROSS) {
      box_load(at, a, bar, m, k, piece);
      box_load(at + BOX, a, bar, m + 64, k, piece);
    } else {
      box_load(at, a, bar, k, piece, m);
    }
    constexpr int boxes = b_way<P> == ACROSS ? own / 64 : 1;
#pragma unroll
    for (int i = 0; i < boxes; i++) {
      const int c0 = b_way<P> == ACROSS ? n + 64 * i : k, c2 = b_way<P> == ACROSS ? piece : n;
      const int c1 = b_way<P> == ACROSS ? k : piece;
      if constexpr (S::blocks == 1)
        box_load(b_at + i * BOX, b, bar, c0, c1, c2);
      else
        box_load_many(b_at + i * BOX, b, bar, c0, c1, c2, (1 << S::blocks) - 1);
    }
    turn.next();
  }

  // What the output holds, 64 columns a slot: boxes of 64 rows x 32 columns.
  __device__ __forceinline__ void load_output(const tl_gemm_hopper_args &g, Turn<S::slots> &turn,
                                              int m, int n) const {
    for (int q = 0; q < columns / 64; q++) {
      const uint32_t bar = full + 8 * turn.slot, at = ring + turn.slot * S::slot_bytes;
      barrier_wait(empty + 8 * turn.slot, turn.parity);
      barrier_expect(bar, 4 * BOX);
      for (int i = 0; i < 4; i++)
        box_load(at + i * BOX, &g.out[0], bar, n + q * 64 + i % 2 * 32, 0, m + i / 2 * 64);
      turn.next();
    }
  }

  __device__ __forceinline__ void produce(const tl_gemm_hopper_args &g) const {
    const int tiles = g.row_tiles * g.column_tiles;
    Turn<S::slots> turn = {0, 1};
    for (int i = blockIdx.x / S::blocks; i < tiles; i += gridDim.x / S::blocks) {
      const Tile tile = find_tile<S>(g, i);
      const int m = tile.row + rank * ROWS, n = tile.column + rank * (columns / S::blocks);
      if (starts && g.start == START_RESUME) load_output(g, turn, m, tile.column);
      for (int piece = 0; piece < g.pieces; piece++)
        for (int run = 0; run < g.runs; run++) {
          const tl_tensor_map *a = &g.a[P == GRAD_INPUT ? run : 0];
          const tl_tensor_map *b = &g.b[P == GRAD_INPUT ? run : tile.part];
          for (int k = 0; k < g.slots[run] * DEPTH; k += DEPTH)
            load_factors(g, turn, a, b, m, n, k, piece);
        }
      if (adds && g.start == START_ADD) load_output(g, turn, m, tile.column);
    }
  }

  // ---- warpgroups 1 and 2 ----

  // The slot has been read, here and by products: told to the blocks that bring something into it.
  __device__ __forceinline__ void release(uint32_t there, int slot) const {
    if (threadIdx.x % 32 < S::blocks) barrier_arrive_cluster(there + 8 * slot);
  }

  // 64 k: four steps of the chain. `first`: sums begin here, unless something was loaded.
  __device__ __forceinline__ void multiply(const Turn<S::slots> &turn, int half, float *sum,
                                           bool first) const {
    const uint32_t at = uniform(ring + turn.slot * S::slot_bytes);
    const uint64_t a = factor_at<a_way<P>>(at + half * 8192);
    const uint64_t b = factor_at<b_way<P>>(at + A_BYTES);
    barrier_wait(full + 8 * turn.slot, turn.parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++)
      product<columns, a_way<P>, b_way<P>>::run(sum, a + k * factor_step<a_way<P>>,
                                                b + k * factor_step<b_way<P>>,
                                                starts || k > 0 || !first);
    products_commit();
  }

  __device__ __forceinline__ void chain(Turn<S::slots> &turn, int half, uint32_t there, int slots,
                                        float *sum) const {
    multiply(turn, half, sum, true);
    int last = turn.slot;
    turn.next();
#pragma unroll 1
    for (int i = 1; i < slots; i++) {
      multiply(turn, half, sum, false);
      products_wait<1>();  // the slot before this one has been read
      release(there, last);
      last = turn.slot;
      turn.next();
    }
    products_wait<0>();
    hold<sums>(sum);
    release(there, last);
  }

  // Where thread and lane have row 16 warp + lane / 4 (and + 8, 1024 bytes on), columns 2 (lane %
  // 4) .. of a box of 32 f32 columns; `turned` is what the swizzle does to columns 8 j ...
  struct Spot {
    uint32_t at, turned;
    __device__ __forceinline__ Spot() {
      const int lane = threadIdx.x % 32, g = lane / 4, warp = threadIdx.x % 128 / 32;
      at = (warp * 16 + g) * 128 + ((lane % 4 / 2 ^ g % 2) << 4) + lane % 2 * 8;
      turned = uint32_t(g / 2) << 5;
    }
  };

  // sum = what the output holds, or that + sum.
  template <bool add>
  __device__ __forceinline__ void take_output(Turn<S::slots> &turn, int half, uint32_t there,
                                              float *sum) const {
    const Spot spot;
#pragma unroll
    for (int q = 0; q < columns / 64; q++) {
      const uint32_t box = ring + turn.slot * S::slot_bytes + half * 2 * BOX + spot.at;
      barrier_wait(full + 8 * turn.slot, turn.parity);
#pragma unroll
      for (int j = 0; j < 8; j++) {
        float *v = sum + (q * 8 + j) * 4;
        const uint32_t from = box + j / 4 * BOX + ((j % 4 * 32) ^ spot.turned);
        const float2 low = load_shared_f32x2(from), high = load_shared_f32x2(from + 1024);
        v[0] = add ? low.x + v[0] : low.x, v[1] = add ? low.y + v[1] : low.y;
        v[2] = add ? high.x + v[2] : high.x, v[3] = add ? high.y + v[3] : high.y;
      }
      __syncwarp();
      release(there, turn.slot);
      turn.next();
    }
  }

  // ---- leaves ----

  // Number i of level l of those that wait is number l * sums + i of a thread.
  template <int level>
  static __device__ __forceinline__ void put(float *kept, uint32_t buffer, const float *sum) {
#pragma unroll
    for (int i = 0; i < sums; i += 4) {
      const int at = level * sums + i;
      if (at < S::kept)
        for (int e = 0; e < 4; e++) kept[at + e] = sum[i + e];
      else
        store_shared_f32(buffer + (at - S::kept) * 512,
                         make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]));
    }
  }

  template <int level>
  static __device__ __forceinline__ void add(const float *kept, uint32_t buffer, float *sum) {
#pragma unroll
    for (int i = 0; i < sums; i += 4) {
      const int at = level * sums + i;
      if (at < S::kept) {
        for (int e = 0; e < 4; e++) sum[i + e] = kept[at + e] + sum[i + e];
      } else {
        const float4 v = load_shared_f32x4(buffer + (at - S::kept) * 512);
        sum[i] = v.x + sum[i], sum[i + 1] = v.y + sum[i + 1];
        sum[i + 2] = v.z + sum[i + 2], sum[i + 3] = v.w + sum[i + 3];
      }
    }
  }

  // Like a binary counter: adds the levels that wait, and waits at the first free one, or is the
  // root.
  template <int level>
  static __device__ __forceinline__ void fold(int leaf, float *kept, uint32_t buffer, float *sum) {
    if constexpr (level < S::levels) {
      if (leaf >> level & 1) {
        add<level>(kept, buffer, sum);
        fold<level + 1>(leaf, kept, buffer, sum);
      } else {
        put<level>(kept, buffer, sum);
      }
    }
  }

  // ---- outputs: through the buffer, by the copy engine; what fills no box, directly ----

  static __device__ __forceinline__ void add_bias(const tl_gemm_hopper_args &g, const Tile &tile,
                                                  float *sum) {
    const void *bias = g.bias[tile.part];
    const int first = tile.column + threadIdx.x % 4 * 2, limit = g.columns[tile.part];
#pragma unroll
    for (int j = 0; j < columns / 8; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int column = first + j * 8 + e;
        float v = 0;
        if (column < limit)
          v = g.bias_is_bf16 ? __uint_as_float(uint32_t(((const uint16_t *)bias)[column]) << 16)
                             : ((const float *)bias)[column];
        sum[j * 4 + e] = sum[j * 4 + e] + v;
        sum[j * 4 + 2 + e] = sum[j * 4 + 2 + e] + v;
      }
      hold<4>(sum + j * 4);  // few loads at a time: registers
    }
  }

  // Columns `first` .. of a tile.
  template <int first>
  static __device__ __forceinline__ void store_rest(const tl_gemm_hopper_args &g, const Tile &tile,
                                                    int m, const float *sum) {
    const int row = m + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int c = first; c < columns; c += 8) {
      const int column = tile.column + c + threadIdx.x % 4 * 2;
      const float *v = sum + c / 2;
      store_pair(g, tile.part, row, column, v[0], v[1]);
      store_pair(g, tile.part, row + 8, column, v[2], v[3]);
    }
  }

  // Boxes of 64 columns; as many at once as the buffer takes.
  static __device__ __forceinline__ void store_bf16(const tl_tensor_map *out, uint32_t buffer,
                                                    int name, int m, int n, const float *sum) {
    constexpr int all = columns / 64, at_once = S::room / BOX < all ? S::room / BOX : all;
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const uint32_t to = buffer + row * 128;
    const int turned = row % 8, odd = lane / 16;
#pragma unroll
    for (int first = 0; first < all; first += at_once) {
      if (threadIdx.x % 128 == 0) stores_read<0>();
      named_sync<128>(name);
#pragma unroll
      for (int i = 0; i < at_once * 4 && first * 4 + i < all * 4; i++) {
        const float *v = sum + (first * 4 + i) * 8;
        store_matrices(to + i / 4 * BOX + (((i % 4 * 2 + odd) ^ turned) << 4),
                       bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]),
                       bf16_pair(v[6], v[7]));
      }
      fence_async();
      named_sync<128>(name);
      if (threadIdx.x % 128 == 0) {
#pragma unroll
        for (int i = 0; i < at_once && first + i < all; i++)
          box_store(out, buffer + i * BOX, n + (first + i) * 64, 0, m);
        stores_commit();
      }
    }
  }

  // Boxes of 32 columns, one after the other round the buffer.
  static __device__ __forceinline__ void store_f32(const tl_tensor_map *out, uint32_t buffer,
                                                   int name, int m, int n, const float *sum) {
    const Spot spot;
    constexpr int boxes = S::room / BOX;
#pragma unroll
    for (int b = 0; b < columns / 32; b++) {
      if (threadIdx.x % 128 == 0) stores_read<boxes - 1>();
      named_sync<128>(name);
      const uint32_t to = buffer + b % boxes * BOX + spot.at;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float *v = sum + (b * 4 + j) * 4;
        const uint32_t there = to + ((j * 32) ^ spot.turned);
        store_shared_f32(there, make_float2(v[0], v[1]));
        store_shared_f32(there + 1024, make_float2(v[2], v[3]));
      }
      fence_async();
      named_sync<128>(name);
      if (threadIdx.x % 128 == 0) {
        box_store(out, buffer + b % boxes * BOX, n + b * 32, 0, m);
        stores_commit();
      }
    }
  }

  // ---- a tile ----

  __device__ __forceinline__ void consume(const tl_gemm_hopper_args &g) const {
    const int half = uniform(threadIdx.x / 128 - 1), name = 1 + half,
              tiles = g.row_tiles * g.column_tiles;
    const uint32_t buffer = ring + S::slots * S::slot_bytes + half * S::room;
    const uint32_t own = buffer + threadIdx.x % 128 * 16;
    const uint32_t there = in_block(empty, threadIdx.x % S::blocks);
    Turn<S::slots> turn = {0, 0};
    float sum[sums], kept[S::kept == 0 ? 1 : S::kept];
    int slots = 0;
    for (int run = 0; run < g.runs; run++) slots += g.slots[run];
    if (P == GRAD_WEIGHT) slots *= g.pieces / S::leaves;
    for (int i = blockIdx.x / S::blocks; i < tiles; i += gridDim.x / S::blocks) {
      if constexpr (starts) {
        if (g.start == START_RESUME) {
          take_output<false>(turn, half, there, sum);
        } else {
#pragma unroll
          for (int e = 0; e < sums; e++) sum[e] = 0;
        }
        hold<sums>(sum);
      }
#pragma unroll(S::unroll)
      for (int leaf = 0; leaf < S::leaves; leaf++) {
        chain(turn, half, there, slots, sum);
        if constexpr (S::leaves > 1) {
          if (leaf == 0 && S::kept < S::waiting) {  // the buffer's last output has left
            if (threadIdx.x % 128 == 0) stores_read<0>();
            named_sync<128>(name);
          }
          fold<0>(leaf, kept, own, sum);
        }
      }
      if constexpr (adds)
        if (g.start == START_ADD) take_output<true>(turn, half, there, sum);
      const Tile tile = find_tile<S>(g, i);  // only here: registers are scarce before
      const int m = tile.row + rank * ROWS + half * 64;
      if (P == LINEAR && g.bias[tile.part] != nullptr) add_bias(g, tile, sum);
      if (!adds && g.out_is_bf16) {
        store_rest<columns / 64 * 64>(g, tile, m, sum);
        store_bf16(&g.out[tile.part], buffer, name, m, tile.column, sum);
      } else {
        store_rest<columns / 32 * 32>(g, tile, m, sum);
        store_f32(&g.out[tile.part], buffer, name, m, tile.column, sum);
      }
    }
    if (threadIdx.x % 128 == 0) stores_read<0>();  // then shared memory may go
  }

  // ---- the frame of a kernel: also of grouped_hopper.cuh ----

  // Where things are in shared memory; the barriers hold for the cluster after a cluster_sync.
  // readers: warps of a block that read a slot.
  __device__ __forceinline__ void open(const unsigned char *shared, int readers = 8) {
    ring = shared_address(shared);
    full = ring + S::slots * S::slot_bytes + 2 * S::room;
    empty = full + 8 * S::slots;
    rank = S::blocks == 1 ? 0 : cluster_rank();
    if (threadIdx.x == 0) {
      for (int i = 0; i < S::slots; i++) {
        barrier_make(full + 8 * i, 1);
        barrier_make(empty + 8 * i, readers * S::blocks);
      }
      barriers_made();
    }
  }

  // One thread loads, two warpgroups multiply, and share out the registers so.
  template <class Load, class Multiply>
  static __device__ __forceinline__ void divide(Load load, Multiply multiply) {
    if (threadIdx.x < 128) {
      registers_fewer<40>();
      if (threadIdx.x == 0) load();
    } else {
      registers_more<232>();
      multiply();
    }
    cluster_sync();  // no block leaves while the other may still signal or write it
  }

  static __device__ __forceinline__ void run(const tl_gemm_hopper_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Hopper h;
    h.open(shared);
    cluster_sync();
    next_begin();
    if (threadIdx.x == 0) map_prefetch(&g.a[0]), map_prefetch(&g.b[0]);
    earlier_wait();
    divide([&] { h.produce(g); }, [&] { h.consume(g); });
  }
};

#define KERNEL(name, product, ...)                                                    \
  extern "C" __global__ void __cluster_dims__(Shape<__VA_ARGS__>::blocks, 1, 1)       \
      __launch_bounds__(384, 1) name(const __grid_constant__ tl_gemm_hopper_args g) { \
    Hopper<product, Shape<__VA_ARGS__>>::run(g);                                      \
  }

#endif
