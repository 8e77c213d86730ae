// gemm_few.cu - linear of bf16 for up to 16 rows of x: weights stream through registers once.
//
// A warp has 8 features. Weights are the columns of a step, rows of x its rows, and a lane reads
// 8 bytes of its feature at a time. What a step adds up has no order inside, so lane t takes k
// 4 t .. 4 t + 3 of each 16 in both factors, not the k that a fragment usually has there:
//
//   a row of k      | lane 0 | lane 1 | lane 2 | lane 3 |      8 bytes each, 32 in one piece
//
// Half of a warp's registers are a ring: 32 steps of weights, 8 KiB, are on their way at any time,
// and 16 warps a multiprocessor keep the memory busy. The ring runs on over the borders of tiles.
//
//   leaves   a warp each, side by side; the sums of a tile meet in shared memory, then the tree
//   relay    one leaf and few tiles: warps have one stretch of k each, all of it in the ring, and
//            hand the chain on: its bits are those of one warp
//
//              warp 0 [load ......][steps]
//              warp 1 [load ......]       [steps]            one chain
//              warp 2 [load ......]              [steps]
//
// Weights that no earlier kernel writes are asked for before those have ended (args.ahead).
#include "../device_args.h"
#include "gemm_few_args.h"
#include "tile.cuh"

enum {
  WARPS = TL_GEMM_FEW_WARPS,
  THREADS = 32 * WARPS,
  FEATURES = TL_GEMM_FEW_FEATURES,
  STEP = 16,
  STEPS = 8,  // of a group
  GROUPS = 4  // of the ring
};

#define GPU static __device__ __forceinline__

GPU uint2 read_once(const uint16_t *from) {
  uint2 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
               : "=r"(x.x), "=r"(x.y)
               : "l"(from));
  return x;
}
GPU void meet(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
GPU void arrive(int name, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

// Who a warp is: `way` of `ways` that share a tile, and the tiles first, first + stride, ..
struct Own {
  int lane, way, ways, team;  // team: the warps of a tile
  int first, stride;
  int begin, steps, groups;  // k, and how far
};

GPU Own own_of(const tl_gemm_few_args &g) {
  Own o;
  const int warp = threadIdx.x / 32;
  o.lane = threadIdx.x % 32;
  o.ways = g.leaves * g.relay;
  o.way = warp % o.ways, o.team = warp / o.ways;
  o.first = o.team * gridDim.x + blockIdx.x;
  o.stride = WARPS / o.ways * gridDim.x;
  o.begin = o.way * g.run;
  const int left = g.depth - o.begin, count = left < g.run ? left : g.run;
  o.steps = count > 0 ? count / STEP : 0;
  o.groups = (o.steps + STEPS - 1) / STEPS;
  return o;
}

GPU int part_of(const tl_gemm_few_args &g, int tile) {
  int part = 0;
  while (part + 1 < g.parts && tile >= g.first_tile[part + 1]) part++;
  return part;
}

// The weights of a warp, group by group, tile by tile.
struct Stream {
  const uint16_t *from;
  int tile, group;

  __device__ __forceinline__ void find(const tl_gemm_few_args &g, const Own &o) {
    if (tile >= g.tiles) return;
    const int part = part_of(g, tile);
    const int feature = (tile - g.first_tile[part]) * FEATURES + o.lane / 4;
    const int last = g.columns[part] - 1;  // lanes past it read it too, and write nothing
    from = (const uint16_t *)g.weight[part] +
           (int64_t)(feature < last ? feature : last) * g.weight_stride[part] + o.begin +
           o.lane % 4 * 4;
    group = 0;
  }
  __device__ __forceinline__ void fetch(const tl_gemm_few_args &g, const Own &o,
                                        uint2 (&w)[STEPS]) {
    if (tile >= g.tiles || o.groups == 0) return;
    const uint16_t *at = from + group * (STEPS * STEP);
    const int left = o.steps - group * STEPS;
    if (left >= STEPS) {
#pragma unroll
      for (int i = 0; i < STEPS; i++) w[i] = read_once(at + i * STEP);
    } else {
#pragma unroll
      for (int i = 0; i < STEPS; i++) w[i] = i < left ? read_once(at + i * STEP) : make_uint2(0, 0);
    }
    if (++group < o.groups) return;
    tile += o.stride;
    find(g, o);
  }
};

// Where rows g and g + 8 of x lie; rows that x lacks stand for others, and are not written.
struct Rows {
  const unsigned char *low, *high;
};

GPU void multiply_step(const uint2 &low, const uint2 &high, const uint2 &w, float *sum) {
  const uint32_t a[4] = {low.x, high.x, low.y, high.y}, b[2] = {w.x, w.y};
  step(sum, a, b);
}

// A chain waits for each of its steps, so x of several is there before they begin.
template <bool is_high>
GPU void multiply(const Rows &x, const Own &o, int group, const uint2 (&w)[STEPS], float *sum) {
  enum { AHEAD = is_high ? STEPS / 2 : STEPS };
  const int at = group * (STEPS * STEP * 2), left = o.steps - group * STEPS;
  if (left < STEPS) {
#pragma unroll
    for (int i = 0; i < STEPS - 1; i++) {
      if (i >= left) return;
      const uint2 low = *(const uint2 *)(x.low + at + i * STEP * 2);
      multiply_step(low, is_high ? *(const uint2 *)(x.high + at + i * STEP * 2) : low, w[i], sum);
    }
    return;
  }
#pragma unroll
  for (int first = 0; first < STEPS; first += AHEAD) {
    uint2 low[AHEAD], high[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      low[i] = *(const uint2 *)(x.low + at + (first + i) * STEP * 2);
      high[i] = is_high ? *(const uint2 *)(x.high + at + (first + i) * STEP * 2) : low[i];
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++) multiply_step(low[i], high[i], w[first + i], sum);
  }
}

GPU float bias_of(const tl_gemm_few_args &g, int part, int feature) {
  if (!g.bias_is_bf16) return ((const float *)g.bias[part])[feature];
  return __uint_as_float(uint32_t(((const uint16_t *)g.bias[part])[feature]) << 16);
}

GPU void store(const tl_gemm_few_args &g, const Own &o, int tile, const float *sum) {
  const int part = part_of(g, tile), columns = g.columns[part];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const int row = o.lane / 4 + e / 2 * 8;
    const int feature = (tile - g.first_tile[part]) * FEATURES + o.lane % 4 * 2 + e % 2;
    if (row >= g.rows || feature >= columns) continue;
    const float value = g.bias[part] != nullptr ? sum[e] + bias_of(g, part, feature) : sum[e];
    const int64_t at = int64_t(row) * columns + feature;
    if (g.out_is_bf16) {
      uint32_t pair;
      asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(pair) : "f"(value));
      ((uint16_t *)g.out[part])[at] = uint16_t(pair);
    } else {
      ((float *)g.out[part])[at] = value;
    }
  }
}

GPU float4 add(const float4 &a, const float4 &b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The tree over the leaves of a tile, in the first of its warps. Rounds use two places in turn.
GPU void fold(const tl_gemm_few_args &g, const Own &o, int round, float4 *slots, float *sum) {
  float4 *own = slots + (round % 2 * WARPS + o.team * o.ways) * 32 + o.lane;
  own[o.way * 32] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  meet(1 + o.team, 32 * o.ways);
  if (o.way != 0) return;
  float4 v = add(own[0], own[32]);
  if (o.ways > 2) v = add(v, add(own[64], own[96]));
  if (o.ways > 4) v = add(v, add(add(own[128], own[160]), add(own[192], own[224])));
  sum[0] = v.x, sum[1] = v.y, sum[2] = v.z, sum[3] = v.w;
}

// The chain as the warp before has left it, and to the warp behind. A relay has one round.
GPU void take_over(const Own &o, const float4 *slots, float *sum) {
  meet(o.team * (o.ways - 1) + o.way, 64);
  const float4 v = slots[(o.team * o.ways + o.way) * 32 + o.lane];
  sum[0] = v.x, sum[1] = v.y, sum[2] = v.z, sum[3] = v.w;
}
GPU void hand_on(const Own &o, float4 *slots, const float *sum) {
  slots[(o.team * o.ways + o.way + 1) * 32 + o.lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  __threadfence_block();
  arrive(o.team * (o.ways - 1) + o.way + 1, 64);
}

GPU void finish(const tl_gemm_few_args &g, const Own &o, int tile, int round, float4 *slots,
                float *sum) {
  if (g.relay > 1 && o.way + 1 < o.ways) return hand_on(o, slots, sum);
  if (g.leaves > 1) fold(g, o, round, slots, sum);
  if (g.leaves == 1 || o.way == 0) store(g, o, tile, sum);
}

GPU void load_x(const tl_gemm_few_args &g, uint32_t to) {
  const int pieces = g.depth / 8;
  for (int i = threadIdx.x; i < g.rows * pieces; i += THREADS) {
    const int row = i / pieces, piece = i - row * pieces;
    copy_async(to + row * g.x_pitch + piece * 16,
               (const uint16_t *)g.x + row * g.x_stride + piece * 8, 16);
  }
  copy_commit();
  copy_wait<0>();
}

// Where launches overlap (tl_cuda_grid.overlaps): the next kernel may begin; all that earlier ones
// wrote is there.
GPU void begin_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
GPU void wait_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <bool is_high>
GPU void run(const tl_gemm_few_args &g) {
  extern __shared__ __align__(16) unsigned char shared[];
  float4 *slots = (float4 *)shared;
  const Own o = own_of(g);
  Stream stream = {nullptr, o.first, 0};
  uint2 w[GROUPS][STEPS];
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  begin_next();
  if (!g.ahead) wait_earlier();
  stream.find(g, o);
#pragma unroll
  for (int i = 0; i < GROUPS; i++) stream.fetch(g, o, w[i]);
  wait_earlier();
  load_x(g, shared_address(shared) + TL_GEMM_FEW_SLOTS);
  __syncthreads();
  const int low = o.lane / 4, high = low + 8, last = g.rows - 1;
  const unsigned char *k = shared + TL_GEMM_FEW_SLOTS + (o.begin + o.lane % 4 * 4) * 2;
  const Rows x = {k + (low < last ? low : last) * g.x_pitch,
                  k + (high < last ? high : last) * g.x_pitch};
  int tile = o.first, group = 0, round = 0;
#pragma unroll 1
  while (tile < g.tiles) {
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
      if (tile >= g.tiles) break;
      if (group == 0 && g.relay > 1 && o.way > 0) take_over(o, slots, sum);
      multiply<is_high>(x, o, group, w[i], sum);
      stream.fetch(g, o, w[i]);
      if (++group < o.groups) continue;
      finish(g, o, tile, round, slots, sum);
      sum[0] = sum[1] = sum[2] = sum[3] = 0.0f;
      group = 0, tile += o.stride, round++;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_few_8(const __grid_constant__ tl_gemm_few_args g) {
  run<false>(g);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    linear_few_16(const __grid_constant__ tl_gemm_few_args g) {
  run<true>(g);
}
