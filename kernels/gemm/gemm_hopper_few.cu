/* gemm_hopper_few.cu - linear on sm_90a where x has few rows: the weights' bytes are what counts.
**
** A block owns 64 features x `tokens` rows of x and swaps the factors: features are the 64 rows of
** a product, tokens its columns, so that few tokens waste little. One thread brings boxes, one
** warpgroup multiplies. A chain is bound by its latency, so two blocks share a multiprocessor.
**
**   slot    weight [halves][64 features][64 k], x [halves][tokens][64 k]
**   sums    of a thread: features 16 w + g, + 8; tokens 8 j + 2 t, + 1
**
** Leaves fold in registers; their number comes with the arguments. Outputs are written directly:
** they are few.
*/
#include "gemm_hopper.cuh"

enum { FEATURES = 64 };

template <int tokens, int halves, int slots, int levels>
struct Few {
  static constexpr int sums = tokens / 2;
  static constexpr int depth = halves * DEPTH;
  static constexpr int weight_bytes = FEATURES * DEPTH * 2, x_bytes = tokens * DEPTH * 2;  // 64 k
  static constexpr int slot_bytes = halves * (weight_bytes + x_bytes);
  static_assert(slots * (slot_bytes + 16) <= 115 * 1024, "memory");
  uint32_t ring, full, empty;

  struct Place {
    int part, feature, token;
  };

  // Tiles of tokens that read the same weights stand side by side.
  static __device__ __forceinline__ Place find(const tl_gemm_hopper_args &g, int index) {
    const int tile = index / g.row_tiles;
    int part = 0;
    while (part + 1 < g.outputs && tile >= g.first_tile[part + 1]) part++;
    return {part, (tile - g.first_tile[part]) * FEATURES, (index - tile * g.row_tiles) * tokens};
  }

  __device__ __forceinline__ void produce(const tl_gemm_hopper_args &g) const {
    Turn<slots> turn = {0, 1};
    for (int i = blockIdx.x; i < g.row_tiles * g.column_tiles; i += gridDim.x) {
      const Place p = find(g, i);
      for (int leaf = 0; leaf < g.pieces; leaf++)
        for (int k = 0; k < g.slots[0] * DEPTH; k += depth) {
          const uint32_t bar = full + 8 * turn.slot, at = ring + turn.slot * slot_bytes;
          barrier_wait(empty + 8 * turn.slot, turn.parity);
          barrier_expect(bar, slot_bytes);
#pragma unroll
          for (int h = 0; h < halves; h++) {
            box_load(at + h * weight_bytes, &g.b[p.part], bar, k + h * DEPTH, leaf, p.feature);
            box_load(at + halves * weight_bytes + h * x_bytes, &g.a[0], bar, k + h * DEPTH, leaf,
                     p.token);
          }
          turn.next();
        }
    }
  }

  __device__ __forceinline__ void multiply(const Turn<slots> &turn, float *sum, bool first) const {
    const uint32_t at = ring + turn.slot * slot_bytes;
    const uint64_t a = factor_at<ALONG>(at), b = factor_at<ALONG>(at + halves * weight_bytes);
    barrier_wait(full + 8 * turn.slot, turn.parity);
    products_begin();
#pragma unroll
    for (int k = 0; k < depth / 16; k++)
      product<tokens, ALONG, ALONG>::run(sum, a + k / 4 * (weight_bytes / 16) + k % 4 * 2,
                                         b + k / 4 * (x_bytes / 16) + k % 4 * 2, k > 0 || !first);
    products_commit();
  }

  __device__ __forceinline__ void chain(Turn<slots> &turn, int count, float *sum) const {
    multiply(turn, sum, true);
    int last = turn.slot;
    turn.next();
#pragma unroll 1
    for (int i = 1; i < count; i++) {
      multiply(turn, sum, false);
      products_wait<1>();
      if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * last);
      last = turn.slot;
      turn.next();
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

  static __device__ __forceinline__ float bias_of(const tl_gemm_hopper_args &g, int part,
                                                  int feature) {
    const void *bias = g.bias[part];
    if (g.bias_is_bf16) return __uint_as_float(uint32_t(((const uint16_t *)bias)[feature]) << 16);
    return ((const float *)bias)[feature];
  }

  static __device__ __forceinline__ void store(const tl_gemm_hopper_args &g, const Place &p,
                                               const float *sum) {
    const int lane = threadIdx.x % 32, columns = g.columns[p.part];
#pragma unroll
    for (int high = 0; high < 2; high++) {
      const int feature = p.feature + threadIdx.x / 32 * 16 + lane / 4 + high * 8;
      if (feature >= columns) continue;
      const bool biased = g.bias[p.part] != nullptr;
      const float bias = biased ? bias_of(g, p.part, feature) : 0;
#pragma unroll
      for (int i = 0; i < sums / 2; i++) {
        const int token = p.token + i / 2 * 8 + lane % 4 * 2 + i % 2;
        const float raw = sum[i / 2 * 4 + high * 2 + i % 2], value = biased ? raw + bias : raw;
        const int64_t at = int64_t(token) * columns + feature;
        if (token >= g.rows) continue;
        if (g.out_is_bf16)
          ((uint16_t *)g.data[p.part])[at] = uint16_t(bf16_pair(value, value));
        else
          ((float *)g.data[p.part])[at] = value;
      }
    }
  }

  __device__ __forceinline__ void consume(const tl_gemm_hopper_args &g) const {
    Turn<slots> turn = {0, 0};
    float sum[sums], kept[levels == 0 ? 1 : levels][sums];
    const int count = (g.slots[0] + halves - 1) / halves;
    for (int i = blockIdx.x; i < g.row_tiles * g.column_tiles; i += gridDim.x) {
#pragma unroll 1
      for (int leaf = 0; leaf < g.pieces; leaf++) {
        chain(turn, count, sum);
        // the last leaf adds all that wait, and puts nothing that is used again
        if (levels > 0 && g.pieces > 1) fold<0>(leaf, kept, sum);
      }
      store(g, find(g, i), sum);
    }
  }

  static __device__ __forceinline__ void run(const tl_gemm_hopper_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Few f;
    f.ring = shared_address(shared);
    f.full = f.ring + slots * slot_bytes;
    f.empty = f.full + 8 * slots;
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; i++) {
        barrier_make(f.full + 8 * i, 1);
        barrier_make(f.empty + 8 * i, 4);  // warps that read
      }
      barriers_made();
    }
    __syncthreads();
    if (threadIdx.x >= 128) {
      if (threadIdx.x == 128) f.produce(g);
    } else {
      f.consume(g);
    }
  }
};

#define LARGE(...)
#define FEW(tokens, leaves, halves, slots, levels, cost)                          \
  extern "C" __global__ void __launch_bounds__(160, 2)                            \
      linear_hopper_few_##tokens(const __grid_constant__ tl_gemm_hopper_args g) { \
    Few<tokens, halves, slots, levels>::run(g);                                   \
  }
#include "gemm_hopper.def"
