/* gemm_hopper_few.cuh - linear on sm_90a where outputs are few: small tiles, so that every
** multiprocessor has one.
**
**            `columns` features       The chain of a tile takes columns / 2 cycles a step of 16 k,
**            +-----------+            20 at least, and the bytes of rows + columns must come as
**   `rows`   |  a block  |            fast. Which tile is best for a shape was measured:
**   of x     +-----------+            gemm_hopper.def.
**
**   warpgroups     64 rows each: products, leaves, output
**   two warps      a thread of one brings weights, of the other x
**   ring           x [halves][rows][64 k], weight [halves][columns][64 k] a slot; how many comes
**                  with the arguments: a block alone on its multiprocessor has twice the room
**
** A product has 64 rows. Those that a tile or x lacks it reads from what lies in their place in
** shared memory: rows are independent, and these are not written. Boxes of x have no more rows than
** x has, since the copy engine is slow to fill in zeros.
**
** Leaves fold in registers; their number comes with the arguments. Outputs are written directly:
** they are few.
**
** Weights that no kernel of the section writes are asked for before earlier kernels have ended: a
** ring of them is on its way while x is still made. They leave the second-level cache first, so
** that rows of x, sums and pages stay there.
*/
#ifndef TL_GEMM_HOPPER_FEW_CUH
#define TL_GEMM_HOPPER_FEW_CUH

#include "gemm_hopper.cuh"

enum { SPARE = 8192 /* bytes that a product may read behind the ring */ };

template <int rows, int columns, int levels>
struct Few {
  static constexpr int groups = rows < 64 ? 1 : rows / 64;
  static constexpr int sums = columns / 2;
  static constexpr int halves = rows + columns > 128 ? 1 : 2;  // of 64 k in a slot
  static constexpr int depth = halves * DEPTH;
  static constexpr int x_bytes = rows * DEPTH * 2, weight_bytes = columns * DEPTH * 2;  // 64 k
  static constexpr int slot_bytes = halves * (weight_bytes + x_bytes);
  static_assert(x_bytes % 1024 == 0 && weight_bytes % 1024 == 0, "swizzle");
  uint32_t ring, full, empty;
  int slots;

  struct Place {
    int part, column, row;
  };

  struct Round {  // a place in the ring, as Turn
    int slot;
    uint32_t parity;
  };
  __device__ __forceinline__ void next(Round &turn) const {
    if (++turn.slot == slots) turn.slot = 0, turn.parity ^= 1;
  }

  // Tiles of rows that read the same weights stand side by side.
  static __device__ __forceinline__ Place find(const tl_gemm_hopper_few_args &g, int index) {
    const int tile = index / g.row_tiles;
    int part = 0;
    while (part + 1 < g.outputs && tile >= g.first_tile[part + 1]) part++;
    return {part, (tile - g.first_tile[part]) * columns, (index - tile * g.row_tiles) * rows};
  }

  // A slot from `k` of a leaf on, of one factor.
  template <bool weights>
  __device__ __forceinline__ void load(const tl_gemm_hopper_few_args &g, Round &turn,
                                       const Place &p, int leaf, int k) const {
    constexpr int bytes = weights ? weight_bytes : x_bytes;
    const int brought = weights ? weight_bytes : g.box_rows * DEPTH * 2;
    const tl_tensor_map *map = weights ? &g.b[p.part] : &g.a;
    const uint32_t bar = full + 8 * turn.slot;
    const uint32_t at = ring + turn.slot * slot_bytes + (weights ? halves * x_bytes : 0);
    barrier_wait(empty + 8 * turn.slot, turn.parity);
    barrier_expect(bar, halves * brought);
#pragma unroll
    for (int h = 0; h < halves; h++)
      if constexpr (weights)
        box_load_soon(at + h * bytes, map, bar, k + h * DEPTH, leaf, p.column, soon_policy());
      else
        box_load(at + h * bytes, map, bar, k + h * DEPTH, leaf, p.row);
    next(turn);
  }

  template <bool weights>
  __device__ __forceinline__ void produce(const tl_gemm_hopper_few_args &g) const {
    Round turn = {0, 1};
    for (int i = blockIdx.x; i < g.row_tiles * g.column_tiles; i += gridDim.x) {
      const Place p = find(g, i);
      for (int leaf = 0; leaf < g.pieces; leaf++)
        for (int k = 0; k < g.slots * DEPTH; k += depth) load<weights>(g, turn, p, leaf, k);
    }
  }

  __device__ __forceinline__ void multiply(const Round &turn, int group, float *sum,
                                           bool first) const {
    const uint32_t at = uniform(ring + turn.slot * slot_bytes);
    const uint64_t a = factor_at<ALONG>(at + group * 64 * DEPTH * 2);
    const uint64_t b = factor_at<ALONG>(at + halves * x_bytes);
    barrier_wait(full + 8 * turn.slot, turn.parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < depth / 16; k++)
      product<columns, ALONG, ALONG>::run(sum, a + k / 4 * (x_bytes / 16) + k % 4 * 2,
                                          b + k / 4 * (weight_bytes / 16) + k % 4 * 2,
                                          k > 0 || !first);
    products_commit();
  }

  __device__ __forceinline__ void chain(Round &turn, int group, int count, float *sum) const {
    multiply(turn, group, sum, true);
    int last = turn.slot;
    next(turn);
#pragma unroll 1
    for (int i = 1; i < count; i++) {
      multiply(turn, group, sum, false);
      products_wait<1>();
      if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * last);
      last = turn.slot;
      next(turn);
    }
    products_wait<0>();
    hold<sums>(sum);
    if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * last);
  }

  // As Hopper::fold; the root is level log2(g.pieces).
  template <int level>
  static __device__ __forceinline__ void fold(int leaf, float (*kept)[sums], float *sum) {
    if constexpr (level < levels) {
      if (leaf >> level & 1) {
#pragma unroll
        for (int i = 0; i < sums; i++) sum[i] = kept[level][i] + sum[i];
        fold<level + 1>(leaf, kept, sum);
      } else {
#pragma unroll
        for (int i = 0; i < sums; i++) kept[level][i] = sum[i];
      }
    }
  }

  static __device__ __forceinline__ float bias_of(const tl_gemm_hopper_few_args &g, int part,
                                                  int column) {
    const void *bias = g.bias[part];
    if (g.bias_is_bf16) return __uint_as_float(uint32_t(((const uint16_t *)bias)[column]) << 16);
    return ((const float *)bias)[column];
  }

  // 8 * `pieces` columns from p.column on.
  template <int pieces>
  static __device__ __forceinline__ void store(const tl_gemm_hopper_few_args &g, const Place &p,
                                               int group, float *sum) {
    const int lane = threadIdx.x % 32, width = g.columns[p.part];
    const int local = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    if (local >= rows) return;
#pragma unroll
    for (int j = 0; j < pieces; j++) {
      const int column = p.column + j * 8 + lane % 4 * 2;
      if (column >= width) break;
      float *v = sum + j * 4;
      if (g.bias[p.part] != nullptr) {
        const float low = bias_of(g, p.part, column), high = bias_of(g, p.part, column + 1);
        v[0] = v[0] + low, v[1] = v[1] + high, v[2] = v[2] + low, v[3] = v[3] + high;
      }
      store_pair(g, p.part, p.row + local, column, v[0], v[1]);
      store_pair(g, p.part, p.row + local + 8, column, v[2], v[3]);
    }
  }

  __device__ __forceinline__ void consume(const tl_gemm_hopper_few_args &g) const {
    Round turn = {0, 0};
    float sum[sums], kept[levels == 0 ? 1 : levels][sums];
    const int count = (g.slots + halves - 1) / halves, group = uniform(threadIdx.x / 128);
    for (int i = blockIdx.x; i < g.row_tiles * g.column_tiles; i += gridDim.x) {
#pragma unroll 1
      for (int leaf = 0; leaf < g.pieces; leaf++) {
        chain(turn, group, count, sum);
        // the last leaf adds all that wait, and puts nothing that is used again
        if (levels > 0 && g.pieces > 1) fold<0>(leaf, kept, sum);
      }
      store<columns / 8>(g, find(g, i), group, sum);
    }
  }

  // Where things are in shared memory; the barriers hold after a __syncthreads.
  __device__ __forceinline__ void open(const unsigned char *shared, int ring_slots) {
    slots = ring_slots;
    ring = shared_address(shared);
    full = ring + slots * slot_bytes;
    empty = full + 8 * slots;
    if (threadIdx.x < slots) {
      barrier_make(full + 8 * threadIdx.x, 2);            // two that bring
      barrier_make(empty + 8 * threadIdx.x, 4 * groups);  // warps that read
      barriers_made();
    }
  }

  static __device__ __forceinline__ void run(const tl_gemm_hopper_few_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int readers = groups * 128;
    Few f;
    f.open(shared, g.ring);
    __syncthreads();
    next_begin();
    if (threadIdx.x == readers) map_prefetch(&g.b[find(g, blockIdx.x).part]);
    if (threadIdx.x == readers + 32) map_prefetch(&g.a);
    if (threadIdx.x >= readers + 32) {
      if (threadIdx.x > readers + 32) return;
      earlier_wait();
      f.template produce<false>(g);
    } else if (threadIdx.x >= readers) {
      if (threadIdx.x > readers) return;
      if (!g.ahead) earlier_wait();
      f.template produce<true>(g);
    } else {
      earlier_wait();
      f.consume(g);
    }
  }
};

#endif
