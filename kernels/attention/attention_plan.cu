// attention_plan.cu - the list of tiles that Hopper's kernels of attention take: from cu_seqlens,
// longest work first. attention_hopper_args.h draws it.
//
// Block 0 counts the tiles of each amount of work, adds the counts up from the longest on, and lets
// each tile take the next place of its amount. Tiles of the same amount stand in any order. The
// other blocks write +0, and -infinity, to rows that no segment holds.
#include "attention_device.cuh"
#include "attention_hopper_args.h"

enum { THREADS = TL_ATTENTION_PLAN_THREADS, BINS = TL_ATTENTION_PLAN_BINS };

// Steps of 64 rows of the stream that some row of the tile at `offset` sees or is seen by.
GPU int work_of(const tl_attention_plan_args &g, int offset, int length) {
  const int tile_end = length - offset < TL_ATTENTION_TILE ? length : offset + TL_ATTENTION_TILE;
  int begin = offset, end = tile_end;
  if (g.by_key) {
    end = length - tile_end < g.window - 1 ? length : tile_end + g.window - 1;
  } else {
    begin = offset - g.window + 1 > 0 ? offset - g.window + 1 : 0;
  }
  return (end - 1) / TL_ATTENTION_WORK - begin / TL_ATTENTION_WORK + 1;
}

GPU int bin_of(int work) { return work < BINS ? BINS - work : 0; }

template <class Visit>
GPU void for_tiles(const tl_attention_plan_args &g, Visit visit) {
  for (int segment = threadIdx.x; segment < g.segments; segment += THREADS) {
    const int start = g.cu[segment], length = g.cu[segment + 1] - start;
    for (int offset = 0; offset < length; offset += TL_ATTENTION_TILE)
      visit(start, length, offset, work_of(g, offset, length));
  }
}

// counts[i] becomes the sum of those before it, for each of the BINS; all threads get the total.
GPU int add_up(int *counts, int *shared) {
  constexpr int each = BINS / THREADS;
  const int first = int(threadIdx.x) * each, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int own = 0;
  for (int i = 0; i < each; i++) own += counts[first + i];
  int before = own;  // of this warp, up to this lane
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, before, step);
    if (lane >= step) before += other;
  }
  if (lane == 31) shared[warp] = before;
  __syncthreads();
  int total = 0, warps_before = 0;
  for (int i = 0; i < THREADS / 32; i++) {
    if (i == warp) warps_before = total;
    total += shared[i];
  }
  before += warps_before - own;
  for (int i = 0; i < each; i++) {
    const int count = counts[first + i];
    counts[first + i] = before;
    before += count;
  }
  __syncthreads();
  return total;
}

GPU void list_tiles(const tl_attention_plan_args &g) {
  __shared__ int places[BINS], warps[THREADS / 32];
  for (int i = threadIdx.x; i < BINS; i += THREADS) places[i] = 0;
  __syncthreads();
  for_tiles(g, [&](int, int, int, int work) { atomicAdd(&places[bin_of(work)], 1); });
  __syncthreads();
  const int total = add_up(places, warps);
  tl_attention_listed *tiles = (tl_attention_listed *)(g.plan + 1);
  for_tiles(g, [&](int start, int length, int offset, int work) {
    tiles[atomicAdd(&places[bin_of(work)], 1)] = {start, length, offset, work};
  });
  if (threadIdx.x == 0)
    *g.plan = {
        total, 0, {0, 0}
    };
}

GPU void clear_unused(const tl_attention_plan_args &g) {
  const int64_t used = g.cu[g.segments], thread = int64_t(blockIdx.x - 1) * THREADS + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x - 1) * THREADS;
  for (int i = 0; i < 3; i++) {
    if (g.out[i] == nullptr) continue;
    uint4 *to = (uint4 *)((char *)g.out[i] + used * g.row_bytes[i]);
    const int64_t count = (g.rows - used) * (g.row_bytes[i] / 16);
    for (int64_t k = thread; k < count; k += threads) to[k] = make_uint4(0, 0, 0, 0);
  }
  if (g.lse == nullptr) return;
  for (int64_t k = used * g.heads + thread; k < int64_t(g.rows) * g.heads; k += threads)
    g.lse[k] = -TL_INFINITY;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_plan(const __grid_constant__ tl_attention_plan_args g) {
  if (blockIdx.x == 0)
    list_tiles(g);
  else
    clear_unused(g);
}
