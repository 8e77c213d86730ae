/* gemm_hopper_split.cu - linear on sm_90a of few rows and several leaves: each block of a cluster
** makes one leaf of a tile, so that chains run side by side and nothing is read twice.
**
**   cluster     leaf 0     leaf 1     leaf 2     leaf 3       blocks; a tile of rows x columns each
**                 |          |          |          |          f32 sums, in its own shared memory
**                 +----------+----------+----------+
**                 |          |          |          |          the tree over leaves: a block takes a
**               columns    columns    columns    columns      share of the columns from all
**
** A block is one of gemm_hopper_few.cuh with one leaf; sums lie where the ring was.
*/
#include "gemm_hopper_few.cuh"

__device__ __forceinline__ float4 load_cluster_f32x4(uint32_t from) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// The tree over the leaves first .. first + count - 1 of the four sums at `at` in each block.
template <int count>
__device__ __forceinline__ float4 tree_of(uint32_t at, int first) {
  if constexpr (count == 1) {
    return load_cluster_f32x4(in_block(at, first));
  } else {
    const float4 a = tree_of<count / 2>(at, first), b = tree_of<count / 2>(at, first + count / 2);
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
}

template <int rows, int columns, int leaves>
struct Split {
  typedef Few<rows, columns, 0> Block;
  static constexpr int readers = Block::groups * 128, pieces = columns / 8;

  template <bool weights>
  static __device__ __forceinline__ void produce(const Block &f, const tl_gemm_hopper_few_args &g,
                                                 const typename Block::Place &p, int leaf) {
    typename Block::Round turn = {0, 1};
    for (int k = 0; k < g.slots * DEPTH; k += Block::depth)
      f.template load<weights>(g, turn, p, leaf, k);
  }

  static __device__ __forceinline__ void consume(const Block &f, const tl_gemm_hopper_few_args &g,
                                                 const typename Block::Place &p, int leaf) {
    typename Block::Round turn = {0, 0};
    const int group = uniform(threadIdx.x / 128);
    float sum[Block::sums];
    f.chain(turn, group, (g.slots + Block::halves - 1) / Block::halves, sum);
    named_sync<readers>(1);  // the ring has been read
    const uint32_t own = f.ring + threadIdx.x * 16;
#pragma unroll
    for (int j = 0; j < columns / 8; j++)
      store_shared_f32(own + j * readers * 16,
                       make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
    cluster_sync();
#pragma unroll
    for (int i = 0; i < pieces; i += leaves) {
      if (i + leaf >= pieces) break;
      const float4 v = tree_of<leaves>(own + (i + leaf) * readers * 16, 0);
      float total[4] = {v.x, v.y, v.z, v.w};
      Block::template store<1>(g, {p.part, p.column + (i + leaf) * 8, p.row}, group, total);
    }
    cluster_sync();  // nobody reads a block's sums any more
  }

  static __device__ __forceinline__ void run(const tl_gemm_hopper_few_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Block f;
    f.open(shared, g.ring);
    const int leaf = cluster_rank();
    const typename Block::Place p = Block::find(g, blockIdx.x / leaves);
    __syncthreads();
    next_begin();
    if (threadIdx.x >= readers + 32) {
      if (threadIdx.x > readers + 32) return;
      map_prefetch(&g.a);
      earlier_wait();
      produce<false>(f, g, p, leaf);
    } else if (threadIdx.x >= readers) {
      if (threadIdx.x > readers) return;
      if (!g.ahead) earlier_wait();
      produce<true>(f, g, p, leaf);
    } else {
      earlier_wait();
      consume(f, g, p, leaf);
    }
  }
};

#define LARGE(...)
#define FEW(...)
#define SPLIT(rows, columns, leaves)                                 \
  extern "C" __global__ void __cluster_dims__(leaves, 1, 1)          \
      __launch_bounds__(Few<rows, columns, 0>::groups * 128 + 64, 1) \
          linear_hopper_split_##rows##_##columns##_##leaves(         \
              const __grid_constant__ tl_gemm_hopper_few_args g) {   \
    Split<rows, columns, leaves>::run(g);                            \
  }
#include "gemm_hopper.def"
