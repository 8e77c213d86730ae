/* grouped_hopper.cuh - products of the rows of each expert on sm_90a: gemm_hopper.cuh with rows,
** or positions of k, that stand in memory. Same bits as grouped_bf16.cu.
**
**   rows   | expert 0         | expert 2  |      a row tile begins where its expert does: the copy
**          |####|####|##      |####|#     |      engine may start anywhere, and brings rows of the
**                   ^ valid          ^           next expert too, which are not stored
**
** Work list. Every block counts the row tiles of all experts and adds them up in shared memory;
** cluster c then takes tiles c, c + clusters, ... of the whole list and finds the expert of each by
** halving. A half of 64 rows without any is neither loaded nor multiplied.
**
** Outputs of a half that is full go by the copy engine; of another one, row by row from the buffer.
**
** Weight gradients. Tiles are the same for every expert; k runs through the segments of the
** expert, 64 rows a slot. What a slot has past the end of its segment, rows of another one, is
** overwritten with zeros before it is multiplied. A half past the output's last row has no
** products. Leaves, equally many segments each, are folded as in gemm_hopper.cuh, but the launch
** says how many there are, and each has as many slots as it finds.
*/
#ifndef TL_GROUPED_HOPPER_CUH
#define TL_GROUPED_HOPPER_CUH

#include "../gemm/gemm_hopper.cuh"
#include "grouped_hopper_args.h"

enum { BOTH = 3 /* name of the barrier of the warpgroups 1 and 2 */, HALF_ROWS = 64 };

struct ExpertTile {
  int expert, part, column;  // column: of the part
  int row;                   // of the output's rows: of all experts' for linear and grad_input
  int valid;                 // rows from there to the end of the expert
};

// tall: row tiles of a group, of which what runs together takes all before the next column.
template <Product P, class S, int tall = GROUP_ROWS>
struct Grouped : Hopper<P, S> {
  typedef Hopper<P, S> Base;
  static constexpr int columns = S::columns, sums = S::sums, height = ROWS * S::blocks;
  static constexpr bool by_rows = P != GRAD_WEIGHT;
  // In shared memory: tiles of the experts before, and of all, or slots that the segments of each
  // fill, leaf by leaf, if there is room for so many; rows of a segment in a slot.
  int32_t *first, *segment_rows;

  // ---- the work list ----

  __device__ __forceinline__ void make_list(const tl_grouped_hopper_args &k) const {
    const int each = k.product.column_tiles;
    for (int e = threadIdx.x; e < k.experts; e += blockDim.x) {
      if constexpr (by_rows) {
        const int rows = k.offsets[e + 1] - k.offsets[e];
        first[e + 1] = (rows + height - 1) / height * each;
      } else if (S::leaves == 1 || k.is_listed) {
        for (int leaf = 0; leaf < leaves_of(k); leaf++)
          first[e * leaves_of(k) + leaf] = count_slots(segments_of(k, e, leaf), k.pieces);
      }
    }
    if (by_rows && threadIdx.x == 0) first[0] = 0;
    __syncthreads();
    if (!by_rows || threadIdx.x >= 32) return;
    int sum = 0;
    for (int base = 0; base < k.experts; base += 32) {
      const int e = base + threadIdx.x;
      int v = e < k.experts ? first[e + 1] : 0;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, v, step);
        if (int(threadIdx.x) >= step) v += other;
      }
      if (e < k.experts) first[e + 1] = sum + v;
      sum += __shfl_sync(0xffffffffu, v, 31);
    }
  }

  // ---- segments of an expert ----

  __device__ __forceinline__ static int leaves_of(const tl_grouped_hopper_args &k) {
    return S::leaves == 1 ? 1 : k.leaves;
  }

  __device__ __forceinline__ static const int32_t *segments_of(const tl_grouped_hopper_args &k,
                                                               int expert, int leaf) {
    return k.offsets + int64_t(expert) * k.each + k.first + leaf * k.pieces;
  }

  __device__ __forceinline__ static int count_slots(const int32_t *segment, int pieces) {
    int slots = 0;
#pragma unroll 1
    for (int i = 0; i < pieces; i++) slots += (segment[i + 1] - segment[i] + DEPTH - 1) / DEPTH;
    return slots;
  }

  __device__ __forceinline__ int slots_of(const tl_grouped_hopper_args &k, int expert,
                                          int leaf) const {
    if (S::leaves == 1 || k.is_listed) return first[expert * leaves_of(k) + leaf];
    return count_slots(segments_of(k, expert, leaf), k.pieces);
  }

  __device__ __forceinline__ int count_tiles(const tl_grouped_hopper_args &k) const {
    return by_rows ? first[k.experts] : k.experts * k.product.row_tiles * k.product.column_tiles;
  }

  __device__ __forceinline__ ExpertTile find(const tl_grouped_hopper_args &k, int index) const {
    const tl_gemm_hopper_args &g = k.product;
    ExpertTile t;
    int row_tiles = g.row_tiles, begin = 0, rows = g.rows;
    if constexpr (by_rows) {
      int low = 0, high = k.experts;  // first[low] <= index < first[high]
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first[middle] <= index)
          low = middle;
        else
          high = middle;
      }
      t.expert = low;
      index -= first[low];
      row_tiles = (first[low + 1] - first[low]) / g.column_tiles;
      begin = k.offsets[low];
      rows = k.offsets[low + 1] - begin;
    } else {
      const int each = row_tiles * g.column_tiles;
      t.expert = index / each;
      index -= t.expert * each;
    }
    const int group = index / (tall * g.column_tiles);
    const int rest = index - group * tall * g.column_tiles;
    const int down = min(tall, row_tiles - group * tall);
    const int column = rest / down, row = (group * tall + rest - column * down) * height;
    t.part = 0;
    while (t.part + 1 < g.outputs && column >= g.first_tile[t.part + 1]) t.part++;
    t.column = (column - g.first_tile[t.part]) * columns;
    t.row = begin + row;
    t.valid = rows - row;
    return t;
  }

  // ---- warpgroup 0 ----

  // 64 k of both factors; halves: of A that have rows; rows: of the segment, from here on.
  __device__ __forceinline__ void load(Turn<S::slots> &turn, const tl_tensor_map *a,
                                       const tl_tensor_map *b, int m, int halves, int n, int at_k,
                                       int expert, int rows) const {
    const uint32_t bar = this->full + 8 * turn.slot;
    const uint32_t at = this->ring + turn.slot * S::slot_bytes;
    constexpr int own = columns / S::blocks;
    const uint32_t b_at = at + A_BYTES + this->rank * own * 128;
    barrier_wait(this->empty + 8 * turn.slot, turn.parity);
    if (!by_rows) segment_rows[turn.slot] = rows;  // seen by who waits for `full`
    barrier_expect(bar, S::slot_bytes - A_BYTES + halves * BOX);
    for (int i = 0; i < halves; i++) {
      if constexpr (by_rows)
        box_load(at + i * BOX, a, bar, at_k, 0, m + i * HALF_ROWS);
      else
        box_load(at + i * BOX, a, bar, m + i * HALF_ROWS, at_k, 0);
    }
    constexpr int boxes = b_way<P> == ACROSS ? own / 64 : 1;
    const int piece = by_rows ? expert : 0;
#pragma unroll
    for (int i = 0; i < boxes; i++) {
      const int c0 = b_way<P> == ACROSS ? n + 64 * i : at_k, c2 = b_way<P> == ACROSS ? piece : n;
      const int c1 = b_way<P> == ACROSS ? at_k : piece;
      if constexpr (S::blocks == 1)
        box_load(b_at + i * BOX, b, bar, c0, c1, c2);
      else
        box_load_many(b_at + i * BOX, b, bar, c0, c1, c2, (1 << S::blocks) - 1);
    }
    turn.next();
  }

  __device__ __forceinline__ void load_output(const tl_gemm_hopper_args &g, Turn<S::slots> &turn,
                                              int m, int n, int expert) const {
    for (int q = 0; q < columns / 64; q++) {
      const uint32_t bar = this->full + 8 * turn.slot;
      const uint32_t at = this->ring + turn.slot * S::slot_bytes;
      barrier_wait(this->empty + 8 * turn.slot, turn.parity);
      barrier_expect(bar, 4 * BOX);
      for (int i = 0; i < 4; i++)
        box_load(at + i * BOX, &g.out[0], bar, n + q * 64 + i % 2 * 32, expert, m + i / 2 * 64);
      turn.next();
    }
  }

  __device__ __forceinline__ void produce(const tl_grouped_hopper_args &k) const {
    const tl_gemm_hopper_args &g = k.product;
    const int tiles = count_tiles(k);
    Turn<S::slots> turn = {0, 1};
    for (int i = blockIdx.x / S::blocks; i < tiles; i += gridDim.x / S::blocks) {
      const ExpertTile t = find(k, i);
      const int m = t.row + this->rank * ROWS, n = t.column + this->rank * (columns / S::blocks);
      const int left = t.valid - int(this->rank) * ROWS;
      const int halves = left > HALF_ROWS ? 2 : left > 0 ? 1 : 0;
      if constexpr (by_rows) {
        for (int run = 0; run < g.runs; run++) {
          const tl_tensor_map *a = &g.a[P == GRAD_INPUT ? run : 0];
          const tl_tensor_map *b = &g.b[P == GRAD_INPUT ? run : t.part];
          for (int at = 0; at < g.slots[run] * DEPTH; at += DEPTH)
            load(turn, a, b, m, halves, n, at, t.expert, 0);
        }
      } else {
        const int32_t *segment = segments_of(k, t.expert, 0);
        const int pieces = k.pieces * leaves_of(k);
        if (segment[0] == segment[pieces]) continue;
        if (g.start == START_RESUME) load_output(g, turn, m, t.column, t.expert);
        for (int piece = 0; piece < pieces; piece++)
          for (int at = segment[piece]; at < segment[piece + 1]; at += DEPTH)
            load(turn, &g.a[0], &g.b[0], m, halves, n, at, 0, segment[piece + 1] - at);
        if (g.start == START_ADD) load_output(g, turn, m, t.column, t.expert);
      }
    }
  }

  // ---- warpgroups 1 and 2 ----

  // Past `rows` of a slot: zeros, in both factors. Both warpgroups together.
  __device__ __forceinline__ void clear_slot(const Turn<S::slots> &turn, int rows) const {
    const uint32_t at = this->ring + turn.slot * S::slot_bytes;
    const int thread = threadIdx.x - 128;
#pragma unroll 1
    for (int box = 0; box < 2 + columns / 64; box++)
#pragma unroll 1
      for (int i = rows * 8 + thread; i < DEPTH * 8; i += 256)
        store_shared_f32(at + box * BOX + i * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    fence_async();
    named_sync<256>(BOTH);
  }

  // The next slot of a chain over segments: complete, and zeros where its segment has ended.
  __device__ __forceinline__ void prepare(const Turn<S::slots> &turn) const {
    barrier_wait(this->full + 8 * turn.slot, turn.parity);
    const int rows = segment_rows[turn.slot];
    if (rows < DEPTH) clear_slot(turn, rows);
  }

  // The chain of an expert's segments, on top of `sum`; slots: of all of them, one at least.
  __device__ __forceinline__ void chain_segments(Turn<S::slots> &turn, int half, uint32_t there,
                                                 int slots, float *sum) const {
    prepare(turn);
    this->multiply(turn, half, sum, false);
    int last = turn.slot;
    turn.next();
#pragma unroll 1
    for (int i = 1; i < slots; i++) {
      prepare(turn);
      this->multiply(turn, half, sum, false);
      products_wait<1>();
      this->release(there, last);
      last = turn.slot;
      turn.next();
    }
    products_wait<0>();
    hold<sums>(sum);
    this->release(there, last);
  }

  // Slots that hold nothing for this half are only given back.
  __device__ __forceinline__ void pass(Turn<S::slots> &turn, uint32_t there, int slots) const {
    for (int i = 0; i < slots; i++) {
      barrier_wait(this->full + 8 * turn.slot, turn.parity);
      __syncwarp();
      this->release(there, turn.slot);
      turn.next();
    }
  }

  // The same for `slots` of segments, between what the output holds.
  __device__ __forceinline__ void pass_segments(Turn<S::slots> &turn, uint32_t there, int start,
                                                int slots) const {
    if (start == START_RESUME) pass(turn, there, columns / 64);
    for (int i = 0; i < slots; i++) {
      prepare(turn);  // the other half may need its zeros
      __syncwarp();
      this->release(there, turn.slot);
      turn.next();
    }
    if (start == START_ADD) pass(turn, there, columns / 64);
  }

  // Level by level like Hopper::fold, for as many leaves as there are.
  template <int level>
  __device__ __forceinline__ static void fold(int leaf, int leaves, float *kept, uint32_t own,
                                              float *sum) {
    if constexpr (level < S::levels) {
      if (leaf >> level & 1) {
        Base::template add<level>(kept, own, sum);
        fold<level + 1>(leaf, leaves, kept, own, sum);
      } else if (1 << level < leaves) {
        Base::template put<level>(kept, own, sum);
      }
    }
  }

  // The tree over the leaves of an expert.
  __device__ __forceinline__ void fold_leaves(const tl_grouped_hopper_args &k, int expert,
                                              Turn<S::slots> &turn, int half, uint32_t there,
                                              uint32_t buffer, int name, float *sum) const {
    float kept[S::kept == 0 ? 1 : S::kept];
    const uint32_t own = buffer + threadIdx.x % 128 * 16;
    constexpr int in_registers = 1 << S::kept / sums;
#pragma unroll
    for (int leaf = 0; leaf < S::leaves; leaf++) {
      if (leaf >= k.leaves) break;
      const int slots = slots_of(k, expert, leaf);
#pragma unroll
      for (int e = 0; e < sums; e++) sum[e] = 0;
      hold<sums>(sum);
      if (slots > 0) chain_segments(turn, half, there, slots, sum);
      if (leaf + 1 == in_registers && k.leaves > in_registers) {
        // Now some wait in the buffer, which its last output has to leave.
        if (threadIdx.x % 128 == 0) stores_read<0>();
        named_sync<128>(name);
      }
      fold<0>(leaf, k.leaves, kept, own, sum);
    }
  }

  // ---- outputs ----

  // `valid` rows of 64 of a box of 128-byte rows in the buffer, after its numbers are there.
  __device__ __forceinline__ static void copy_rows(uint32_t box, char *out, int64_t pitch, int left,
                                                   int valid) {
    const int piece = threadIdx.x % 8;
    for (int row = threadIdx.x % 128 / 8; row < valid; row += 16)
      if (piece * 16 < left)
        *(float4 *)(out + row * pitch + piece * 16) =
            load_shared_f32x4(box + row * 128 + ((piece ^ row % 8) << 4));
  }

  // Boxes of 128 bytes a row, one after the other round the buffer. put(b, to) writes box b.
  template <int boxes, class Put>
  __device__ __forceinline__ static void store_boxes(const tl_gemm_hopper_args &g,
                                                     const ExpertTile &t, uint32_t buffer, int name,
                                                     int m, int valid, int bytes, Put put) {
    constexpr int room = S::room / BOX;
    const int wide = 128 / bytes, middle = by_rows ? 0 : t.expert;
    const int64_t pitch = int64_t(g.columns[t.part]) * bytes;
#pragma unroll
    for (int b = 0; b < boxes; b++) {
      const uint32_t box = buffer + b % room * BOX;
      const int column = t.column + b * wide;
      if (threadIdx.x % 128 == 0) stores_read<room - 1>();
      named_sync<128>(name);
      put(b, box);
      fence_async();
      named_sync<128>(name);
      if (valid < HALF_ROWS) {
        char *out = (char *)g.data[t.part] + m * pitch + int64_t(column) * bytes;
        copy_rows(box, out, pitch, (g.columns[t.part] - column) * bytes, valid);
      } else if (threadIdx.x % 128 == 0) {
        box_store(&g.out[t.part], box, column, middle, m);
        stores_commit();
      }
    }
  }

  __device__ __forceinline__ static void store(const tl_gemm_hopper_args &g, const ExpertTile &t,
                                               uint32_t buffer, int name, int m, int valid,
                                               const float *sum) {
    if (by_rows && g.out_is_bf16) {
      const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
      const int turned = row % 8, odd = lane / 16;
      store_boxes<columns / 64>(g, t, buffer, name, m, valid, 2, [&](int b, uint32_t box) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float *v = sum + (b * 4 + i) * 8;
          store_matrices(box + row * 128 + (((i * 2 + odd) ^ turned) << 4), bf16_pair(v[0], v[1]),
                         bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7]));
        }
      });
      return;
    }
    const typename Base::Spot spot;
    store_boxes<columns / 32>(g, t, buffer, name, m, valid, 4, [&](int b, uint32_t box) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float *v = sum + (b * 4 + j) * 4;
        const uint32_t there = box + spot.at + ((j * 32) ^ spot.turned);
        store_shared_f32(there, make_float2(v[0], v[1]));
        store_shared_f32(there + 1024, make_float2(v[2], v[3]));
      }
    });
  }

  // 64 rows of the gradient of an expert without rows: +0, or what is there + +0.
  __device__ __forceinline__ static void add_nothing(const tl_grouped_hopper_args &k,
                                                     const ExpertTile &t, int m) {
    const tl_gemm_hopper_args &g = k.product;
    const int width = min(columns, g.columns[0] - t.column), rows = min(int(HALF_ROWS), g.rows - m);
    float *out = (float *)g.data[0] + t.expert * k.stack + int64_t(m) * g.columns[0] + t.column;
#pragma unroll 1
    for (int i = threadIdx.x % 128; i < rows * width; i += 128) {
      float *to = out + int64_t(i / width) * g.columns[0] + i % width;
      *to = g.start == START_ADD ? *to + 0.0f : 0.0f;
    }
  }

  // ---- a tile ----

  // The sums of a tile of a weight gradient; false where nothing is to be stored.
  __device__ __forceinline__ bool sum_segments(const tl_grouped_hopper_args &k, const ExpertTile &t,
                                               int m, Turn<S::slots> &turn, int half,
                                               uint32_t there, uint32_t buffer, int name,
                                               float *sum) const {
    const tl_gemm_hopper_args &g = k.product;
    int all = 0;
    for (int leaf = 0; leaf < leaves_of(k); leaf++) all += slots_of(k, t.expert, leaf);
    if (all == 0) {
      if (g.start != START_RESUME) add_nothing(k, t, m);
      return false;
    }
    if (m >= g.rows) {
      pass_segments(turn, there, g.start, all);
      return false;
    }
    if constexpr (S::leaves > 1) {
      fold_leaves(k, t.expert, turn, half, there, buffer, name, sum);
    } else {
      if (g.start == START_RESUME) {
        this->template take_output<false>(turn, half, there, sum);
      } else {
#pragma unroll
        for (int e = 0; e < sums; e++) sum[e] = 0;
      }
      hold<sums>(sum);
      chain_segments(turn, half, there, all, sum);
    }
    if (g.start == START_ADD) this->template take_output<true>(turn, half, there, sum);
    return true;
  }

  __device__ __forceinline__ void consume(const tl_grouped_hopper_args &k) const {
    const tl_gemm_hopper_args &g = k.product;
    const int half = threadIdx.x / 128 - 1, name = 1 + half, tiles = count_tiles(k);
    const uint32_t buffer = this->ring + S::slots * S::slot_bytes + half * S::room;
    const uint32_t there = in_block(this->empty, threadIdx.x % S::blocks);
    Turn<S::slots> turn = {0, 0};
    float sum[sums];
    int slots = 0;
    for (int run = 0; by_rows && run < g.runs; run++) slots += g.slots[run];
    for (int i = blockIdx.x / S::blocks; i < tiles; i += gridDim.x / S::blocks) {
      const ExpertTile t = find(k, i);
      const int down = this->rank * ROWS + half * HALF_ROWS, m = t.row + down;
      const int valid = by_rows ? min(int(HALF_ROWS), t.valid - down) : int(HALF_ROWS);
      if constexpr (by_rows) {
        if (valid <= 0) {
          pass(turn, there, slots);
          continue;
        }
        this->chain(turn, half, there, slots, sum);
      } else if (!sum_segments(k, t, m, turn, half, there, buffer, name, sum)) {
        continue;
      }
      store(g, t, buffer, name, m, valid, sum);
    }
    if (threadIdx.x % 128 == 0) stores_read<0>();  // then shared memory may go
  }

  static __device__ __forceinline__ void run(const tl_grouped_hopper_args &k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Grouped h;
    h.segment_rows = (int32_t *)(shared + S::bytes);
    h.first = h.segment_rows + S::slots;
    h.open(shared);
    h.make_list(k);
    cluster_sync();
    Base::divide([&] { h.produce(k); }, [&] { h.consume(k); });
  }
};

#define GROUPED_KERNEL(name, product, ...)                                               \
  extern "C" __global__ void __cluster_dims__(Shape<__VA_ARGS__>::blocks, 1, 1)          \
      __launch_bounds__(384, 1) name(const __grid_constant__ tl_grouped_hopper_args k) { \
    Grouped<product, Shape<__VA_ARGS__>>::run(k);                                        \
  }

#endif
