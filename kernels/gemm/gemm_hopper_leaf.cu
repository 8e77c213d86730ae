/* gemm_hopper_leaf.cu - linear on sm_90a of few rows and several leaves, whose sums stay apart: a
** block makes one leaf of a tile and writes its f32 sums, and who reads them adds them up.
**
**   sums   (leaves, rows, columns)
**
** Blocks of a cluster that add up each other's sums (gemm_hopper_split.cu) wait for each other, and
** then for 3/4 of a tile from other multiprocessors, at 12 bytes a cycle; these only write. A block
** is one of gemm_hopper_few.cuh with one leaf.
*/
#include "gemm_hopper_few.cuh"

// `window`: slots of weights that are on their way at most, since whatever else is read stands
// behind them; they have barriers of their own then. 0: as many as the ring has.
template <int rows, int columns, int window>
struct Leaf {
  typedef Few<rows, columns, 0> Block;
  typedef typename Block::Place Place;
  typedef typename Block::Round Round;
  static constexpr int readers = Block::groups * 128;
  Block f;
  uint32_t come;  // barriers of weights

  __device__ __forceinline__ void open(const unsigned char *shared, int slots) {
    f.slots = slots;
    f.ring = shared_address(shared);
    f.full = f.ring + slots * Block::slot_bytes;
    f.empty = f.full + 8 * slots;
    come = f.empty + 8 * slots;
    if (threadIdx.x >= slots) return;
    barrier_make(f.full + 8 * threadIdx.x, window > 0 ? 1 : 2);
    barrier_make(f.empty + 8 * threadIdx.x, 4 * Block::groups);
    if (window > 0) barrier_make(come + 8 * threadIdx.x, 1);
    barriers_made();
  }

  __device__ __forceinline__ void bring_x(const tl_gemm_hopper_few_args &g, const Place &p,
                                          int leaf) const {
    Round turn = {0, 1};
    for (int k = 0; k < g.slots * DEPTH; k += Block::depth)
      f.template load<false>(g, turn, p, leaf, k);
  }

  __device__ __forceinline__ void bring_weights(const tl_gemm_hopper_few_args &g, const Place &p,
                                                int leaf) const {
    Round turn = {0, 1}, earlier = {0, 0};
    Block own = f;
    if (window > 0) own.full = come;
    for (int k = 0; k < g.slots * DEPTH; k += Block::depth) {
      if (window > 0 && k >= window * Block::depth) {
        barrier_wait(come + 8 * earlier.slot, earlier.parity);
        f.next(earlier);
      }
      own.template load<true>(g, turn, p, leaf, k);
    }
  }

  __device__ __forceinline__ void chain(int group, int count, float *sum) const {
    Round turn = {0, 0};
    int last = 0;
#pragma unroll 1
    for (int i = 0; i < count; i++) {
      barrier_wait(come + 8 * turn.slot, turn.parity);
      f.multiply(turn, group, sum, i == 0);
      if (i > 0) {
        products_wait<1>();
        if (threadIdx.x % 32 == 0) barrier_arrive(f.empty + 8 * last);
      }
      last = turn.slot;
      f.next(turn);
    }
    products_wait<0>();
    hold<Block::sums>(sum);
  }

  static __device__ __forceinline__ void store(const tl_gemm_hopper_few_args &g, int leaf, int row,
                                               int column, const float *sum) {
    if (row >= g.rows) return;
    float *to = (float *)g.data[0] + (int64_t(leaf) * g.rows + row) * g.columns[0] + column;
#pragma unroll
    for (int j = 0; j < columns / 8; j++)
      if (column + j * 8 < g.columns[0])
        *(float2 *)(to + j * 8) = make_float2(sum[4 * j], sum[4 * j + 1]);
  }

  __device__ __forceinline__ void consume(const tl_gemm_hopper_few_args &g, const Place &p,
                                          int leaf) const {
    const int group = uniform(threadIdx.x / 128), lane = threadIdx.x % 32;
    const int row = p.row + threadIdx.x / 32 * 16 + lane / 4, column = p.column + lane % 4 * 2;
    const int count = (g.slots + Block::halves - 1) / Block::halves;
    float sum[Block::sums];
    Round turn = {0, 0};
    if constexpr (window > 0)
      chain(group, count, sum);
    else
      f.chain(turn, group, count, sum);
    store(g, leaf, row, column, sum);
    store(g, leaf, row + 8, column, sum + 2);
  }

  static __device__ __forceinline__ void run(const tl_gemm_hopper_few_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    Leaf l;
    l.open(shared, g.ring);
    const int tile = blockIdx.x / g.pieces, leaf = blockIdx.x - tile * g.pieces;
    const Place p = Block::find(g, tile);
    __syncthreads();
    next_begin();
    if (threadIdx.x >= readers + 32) {
      if (threadIdx.x > readers + 32) return;
      map_prefetch(&g.a);
      earlier_wait();
      l.bring_x(g, p, leaf);
    } else if (threadIdx.x >= readers) {
      if (threadIdx.x > readers) return;
      if (!g.ahead) earlier_wait();
      l.bring_weights(g, p, leaf);
    } else {
      earlier_wait();
      l.consume(g, p, leaf);
    }
  }
};

#define LEAF(rows, columns, window)                                                              \
  extern "C" __global__ void __launch_bounds__(Few<rows, columns, 0>::groups * 128 + 64, 1)      \
      linear_hopper_leaf_##rows##_##columns(const __grid_constant__ tl_gemm_hopper_few_args g) { \
    Leaf<rows, columns, window>::run(g);                                                         \
  }
TL_GEMM_LEAVES(LEAF)
