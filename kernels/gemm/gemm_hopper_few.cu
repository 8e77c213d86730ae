/* gemm_hopper_few.cu - linear on sm_90a where outputs are few: small tiles, so that every
** multiprocessor has one.
**
**            `columns` features       The chain of a tile takes columns / 2 cycles a step of 16 k,
**            +-----+-----+            20 at least, and the bytes of rows + columns must come as
**   `rows`   | own | peer|            fast. Which tile is best for a shape was measured:
**   of x     +-----+-----+            gemm_hopper.def. Blocks of a cluster share rows of x: each
**             cluster                 brings its part to all.
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
*/
#include "gemm_hopper.cuh"

enum { SPARE = 8192 /* bytes that a product may read behind the ring */ };

template <int rows, int columns, int levels, int blocks>
struct Few {
  static constexpr int groups = rows < 64 ? 1 : rows / 64;
  static constexpr int sums = columns / 2;
  static constexpr int halves = rows + columns > 128 ? 1 : 2;  // of 64 k in a slot
  static constexpr int depth = halves * DEPTH;
  static constexpr int x_bytes = rows * DEPTH * 2, weight_bytes = columns * DEPTH * 2;  // 64 k
  static constexpr int slot_bytes = halves * (weight_bytes + x_bytes);
  static_assert(x_bytes % 1024 == 0 && weight_bytes % 1024 == 0, "swizzle");
  uint32_t ring, full, empty;
  uint32_t rank;  // in the cluster
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
  static __device__ __forceinline__ Place find(const tl_gemm_few_args &g, int index) {
    const int tile = index / g.row_tiles;
    int part = 0;
    while (part + 1 < g.outputs && tile >= g.first_tile[part + 1]) part++;
    return {part, (tile - g.first_tile[part]) * columns * blocks,
            (index - tile * g.row_tiles) * rows};
  }

  // Of x every block of a cluster brings its share to all.
  template <bool weights>
  __device__ __forceinline__ void produce(const tl_gemm_few_args &g) const {
    constexpr int bytes = weights ? weight_bytes : x_bytes, share = rows / blocks;
    const int brought = weights ? weight_bytes : g.box_rows * blocks * DEPTH * 2;
    Round turn = {0, 1};
    for (int i = blockIdx.x / blocks; i < g.row_tiles * g.column_tiles; i += gridDim.x / blocks) {
      const Place p = find(g, i);
      const tl_tensor_map *map = weights ? &g.b[p.part] : &g.a;
      const int row = weights ? p.column + rank * columns : p.row + rank * share;
      for (int leaf = 0; leaf < g.pieces; leaf++)
        for (int k = 0; k < g.slots * DEPTH; k += depth) {
          const uint32_t bar = full + 8 * turn.slot, at = ring + turn.slot * slot_bytes;
          barrier_wait(empty + 8 * turn.slot, turn.parity);
          barrier_expect(bar, halves * brought);
#pragma unroll
          for (int h = 0; h < halves; h++) {
            if constexpr (weights)
              box_load(at + halves * x_bytes + h * bytes, map, bar, k + h * DEPTH, leaf, row);
            else if constexpr (blocks == 1)
              box_load(at + h * bytes, map, bar, k + h * DEPTH, leaf, row);
            else
              box_load_many(at + h * bytes + rank * share * DEPTH * 2, map, bar, k + h * DEPTH,
                            leaf, row, (1 << blocks) - 1);
          }
          next(turn);
        }
    }
  }

  // The slot has been read: told to the blocks that bring something into it.
  __device__ __forceinline__ void release(uint32_t there, int slot) const {
    if constexpr (blocks == 1) {
      if (threadIdx.x % 32 == 0) barrier_arrive(there + 8 * slot);
    } else {
      if (threadIdx.x % 32 < blocks) barrier_arrive_cluster(there + 8 * slot);
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

  __device__ __forceinline__ void chain(Round &turn, int group, uint32_t there, int count,
                                        float *sum) const {
    multiply(turn, group, sum, true);
    int last = turn.slot;
    next(turn);
#pragma unroll 1
    for (int i = 1; i < count; i++) {
      multiply(turn, group, sum, false);
      products_wait<1>();
      release(there, last);
      last = turn.slot;
      next(turn);
    }
    products_wait<0>();
    hold<sums>(sum);
    release(there, last);
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

  static __device__ __forceinline__ float bias_of(const tl_gemm_few_args &g, int part, int column) {
    const void *bias = g.bias[part];
    if (g.bias_is_bf16) return __uint_as_float(uint32_t(((const uint16_t *)bias)[column]) << 16);
    return ((const float *)bias)[column];
  }

  static __device__ __forceinline__ void store(const tl_gemm_few_args &g, const Place &p, int group,
                                               float *sum) {
    const int lane = threadIdx.x % 32, width = g.columns[p.part];
    const int local = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    if (local >= rows) return;
#pragma unroll
    for (int j = 0; j < columns / 8; j++) {
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

  __device__ __forceinline__ void consume(const tl_gemm_few_args &g) const {
    Round turn = {0, 0};
    float sum[sums], kept[levels == 0 ? 1 : levels][sums];
    const int count = (g.slots + halves - 1) / halves, group = uniform(threadIdx.x / 128);
    const uint32_t there = blocks == 1 ? empty : in_block(empty, threadIdx.x % blocks);
    for (int i = blockIdx.x / blocks; i < g.row_tiles * g.column_tiles; i += gridDim.x / blocks) {
#pragma unroll 1
      for (int leaf = 0; leaf < g.pieces; leaf++) {
        chain(turn, group, there, count, sum);
        // the last leaf adds all that wait, and puts nothing that is used again
        if (levels > 0 && g.pieces > 1) fold<0>(leaf, kept, sum);
      }
      Place p = find(g, i);
      p.column += rank * columns;
      store(g, p, group, sum);
    }
  }

  static __device__ __forceinline__ void sync() {
    if constexpr (blocks == 1)
      __syncthreads();
    else
      cluster_sync();
  }

  static __device__ __forceinline__ void run(const tl_gemm_few_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    constexpr int readers = groups * 128;
    Few f;
    f.slots = g.ring;
    f.rank = blocks == 1 ? 0 : cluster_rank();
    f.ring = shared_address(shared);
    f.full = f.ring + f.slots * slot_bytes;
    f.empty = f.full + 8 * f.slots;
    if (threadIdx.x < f.slots) {
      barrier_make(f.full + 8 * threadIdx.x, 2);                     // two that bring
      barrier_make(f.empty + 8 * threadIdx.x, 4 * groups * blocks);  // warps that read
      barriers_made();
    }
    sync();
    next_begin();
    if (threadIdx.x == readers) map_prefetch(&g.b[find(g, blockIdx.x / blocks).part]);
    if (threadIdx.x == readers + 32) map_prefetch(&g.a);
    earlier_wait();
    if (threadIdx.x >= readers) {
      if (threadIdx.x == readers) f.template produce<true>(g);
      if (threadIdx.x == readers + 32) f.template produce<false>(g);
    } else {
      f.consume(g);
    }
    if (blocks > 1) sync();  // no block leaves while the other may still signal or write it
  }
};

#define LARGE(...)
#define FEW(rows, columns, levels, blocks, together, cost)                                   \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1)                                  \
      __launch_bounds__(Few<rows, columns, levels, blocks>::groups * 128 + 64, together)     \
          linear_hopper_few_##rows##_##columns(const __grid_constant__ tl_gemm_few_args g) { \
    Few<rows, columns, levels, blocks>::run(g);                                              \
  }
#include "gemm_hopper.def"
