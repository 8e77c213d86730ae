/* gemm_hopper_pair.cu - gate, up and their swiglu on sm_90a, of few rows: a block makes the same
** features of both products, so that it has gate and up of each of its outputs.
**
**            gate        up            weight slot   [gate features][64 k], [up features][64 k]
**          +--------+--------+
**  `rows`  | features, twice |         The sums of a gate and of its up stand in the same thread,
**          +--------+--------+         features / 2 numbers apart.
**
**   warpgroups     64 rows each: products, swiglu, output
**   two warps      a thread of one brings weights, of the other x; each has a ring of its own, so
**                  that weights fill as much of shared memory as x leaves
**
** Rounding is that of linear and swiglu by themselves: gate and up become bf16 before they meet.
** Weights that no kernel of the section writes are asked for before earlier kernels have ended.
*/
#include "../elementwise/swiglu.cuh"
#include "gemm_hopper_few.cuh"

enum { ON_THEIR_WAY = 4 /* slots of weights, at most: whatever else is read stands behind them */ };

template <int groups, int features>
struct Pair {
  static constexpr int columns = 2 * features, sums = features, readers = groups * 128;
  static constexpr int x_bytes = groups * 64 * DEPTH * 2, half = features * DEPTH * 2;
  static constexpr int weight_bytes = 2 * half;
  static_assert(half % 1024 == 0 && features % 8 == 0, "swizzle, sums of a thread");

  struct Ring {
    uint32_t at, full, empty;
    int slots, slot;
    uint32_t parity;
    __device__ __forceinline__ void next() {
      if (++slot == slots) slot = 0, parity ^= 1;
    }
  };
  Ring x, weight;

  __device__ __forceinline__ void open(const tl_gemm_hopper_few_args &g,
                                       const unsigned char *shared) {
    const uint32_t at = shared_address(shared), x_at = at + g.ring * weight_bytes;
    const uint32_t bars = x_at + g.x_ring * x_bytes + SPARE, own = threadIdx.x;
    weight = {at, bars, bars + 8 * g.ring, g.ring, 0, 0};
    x = {x_at, bars + 16 * g.ring, bars + 16 * g.ring + 8 * g.x_ring, g.x_ring, 0, 0};
    if (own < g.ring) {
      barrier_make(weight.full + 8 * own, 1);            // the thread that brings
      barrier_make(weight.empty + 8 * own, 4 * groups);  // warps that read
    } else if (own < g.ring + g.x_ring) {
      barrier_make(x.full + 8 * (own - g.ring), 1);
      barrier_make(x.empty + 8 * (own - g.ring), 4 * groups);
    }
    barriers_made();
  }

  __device__ __forceinline__ void bring_weights(const tl_gemm_hopper_few_args &g, int column) {
    const uint64_t policy = soon_policy();
    Ring r = weight, earlier = weight;
    r.parity = 1;
    for (int k = 0; k < g.slots * DEPTH; k += DEPTH, r.next()) {
      const uint32_t bar = r.full + 8 * r.slot, to = r.at + r.slot * weight_bytes;
      barrier_wait(r.empty + 8 * r.slot, r.parity);
      if (k >= ON_THEIR_WAY * DEPTH) {
        barrier_wait(earlier.full + 8 * earlier.slot, earlier.parity);
        earlier.next();
      }
      barrier_expect(bar, weight_bytes);
      box_load_soon(to, &g.b[0], bar, k, 0, column, policy);
      box_load_soon(to + half, &g.b[1], bar, k, 0, column, policy);
    }
  }

  __device__ __forceinline__ void bring_x(const tl_gemm_hopper_few_args &g, int row) {
    Ring r = x;
    r.parity = 1;
    for (int k = 0; k < g.slots * DEPTH; k += DEPTH, r.next()) {
      const uint32_t bar = r.full + 8 * r.slot;
      barrier_wait(r.empty + 8 * r.slot, r.parity);
      barrier_expect(bar, g.box_rows * DEPTH * 2);
      box_load(r.at + r.slot * x_bytes, &g.a, bar, k, 0, row);
    }
  }

  __device__ __forceinline__ void chain(const tl_gemm_hopper_few_args &g, int group, float *sum) {
    int last_x = 0, last_weight = 0;
#pragma unroll 1
    for (int i = 0; i < g.slots; i++) {
      const uint32_t x_at = uniform(x.at + x.slot * x_bytes);
      const uint64_t a = factor_at<ALONG>(x_at + group * 64 * DEPTH * 2);
      const uint64_t b = factor_at<ALONG>(uniform(weight.at + weight.slot * weight_bytes));
      barrier_wait(weight.full + 8 * weight.slot, weight.parity);
      barrier_wait(x.full + 8 * x.slot, x.parity);
      products_begin();
#pragma unroll
      for (int k = 0; k < DEPTH / 16; k++)
        product<columns, ALONG, ALONG>::run(sum, a + k * 2, b + k * 2, k > 0 || i > 0);
      products_commit();
      if (i > 0) {
        products_wait<1>();  // the slots before have been read
        if (threadIdx.x % 32 == 0) {
          barrier_arrive(weight.empty + 8 * last_weight);
          barrier_arrive(x.empty + 8 * last_x);
        }
      }
      last_x = x.slot, last_weight = weight.slot;
      x.next(), weight.next();
    }
    products_wait<0>();
    hold<sums>(sum);
  }

  // What a sum is in memory.
  static __device__ __forceinline__ float2 rounded(float low, float high) {
    const uint32_t pair = bf16_pair(low, high);
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }

  // swiglu of `count` pairs of a row's columns, 8 columns apart.
  template <int count>
  static __device__ __forceinline__ void store(const tl_gemm_hopper_few_args &g, int row,
                                               int column, const float *gate, const float *up) {
    float2 a[count], b[count];
    float s[2 * count];
#pragma unroll
    for (int j = 0; j < count; j++) {
      a[j] = rounded(gate[4 * j], gate[4 * j + 1]), b[j] = rounded(up[4 * j], up[4 * j + 1]);
      s[2 * j] = a[j].x, s[2 * j + 1] = a[j].y;
    }
    tl_sigmoids<2 * count>(s);
    if (row >= g.rows) return;
    uint16_t *to = (uint16_t *)g.data[0] + int64_t(row) * g.columns[0] + column;
#pragma unroll
    for (int j = 0; j < count; j++) {
      const float low = (a[j].x * s[2 * j]) * b[j].x, high = (a[j].y * s[2 * j + 1]) * b[j].y;
      if (column + 8 * j < g.columns[0]) *(uint32_t *)(to + 8 * j) = bf16_pair(low, high);
    }
  }

  static __device__ __forceinline__ void finish(const tl_gemm_hopper_few_args &g, int row,
                                                int column, const float *sum) {
    const int lane = threadIdx.x % 32, own = column + lane % 4 * 2;
    const int first = row + threadIdx.x / 32 * 16 + lane / 4;
    constexpr int count = features / 8, once = count % 4 == 0 ? 4 : count % 3 == 0 ? 3 : count;
#pragma unroll
    for (int j = 0; j < count; j += once) {
      const float *gate = sum + j * 4, *up = gate + features / 2;
      store<once>(g, first, own + j * 8, gate, up);
      store<once>(g, first + 8, own + j * 8, gate + 2, up + 2);
    }
  }

  __device__ __forceinline__ void consume(const tl_gemm_hopper_few_args &g, int row, int column) {
    float sum[sums];
    chain(g, uniform(threadIdx.x / 128), sum);
    finish(g, row, column, sum);
  }

  static __device__ __forceinline__ void run(const tl_gemm_hopper_few_args &g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const int tile = blockIdx.x / g.row_tiles, column = tile * features;
    const int row = (blockIdx.x - tile * g.row_tiles) * groups * 64;
    Pair p;
    p.open(g, shared);
    __syncthreads();
    next_begin();
    if (threadIdx.x == readers + 32) {
      map_prefetch(&g.a);
      earlier_wait();
      p.bring_x(g, row);
    } else if (threadIdx.x == readers) {
      if (!g.ahead) earlier_wait();
      p.bring_weights(g, column);
    } else if (threadIdx.x < readers) {
      earlier_wait();
      p.consume(g, row, column);
    }
  }
};

#define PAIR(rows, features)                                                                 \
  extern "C" __global__ void __launch_bounds__((rows) / 64 * 128 + 64, 1)                    \
      swiglu_hopper_##rows##_##features(const __grid_constant__ tl_gemm_hopper_few_args g) { \
    Pair<(rows) / 64, features>::run(g);                                                     \
  }
TL_GEMM_PAIRS(PAIR)
