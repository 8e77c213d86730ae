/* moe_order.cu - who goes where on a GPU: counts, home order, loads, segments.
**
** Home order is a stable counting sort. Slots are cut into chunks, and a warp walks through a chunk
** in its order, 32 slots at a time:
**
**   count     table[place][chunk] = slots of the chunk with that place
**   scan      table[place][chunk] = those of the chunks before; starts[place] = all of them
**   starts    starts[place] = slots of the places before
**   scatter   row = starts[place] + table[place][chunk] + those before in the chunk
**
** Nothing depends on which warp is first: where counts are added by atomics they are whole numbers,
** and nobody reads a position out of them before all are added.
*/
#include "../device.cuh"
#include "moe_args.h"

enum { WARP = TL_DEVICE_WARP, THREADS = TL_DEVICE_THREADS };
constexpr uint32_t ALL = 0xffffffffu;

/* --- expert_counts ---------------------------------------------------------------------------- */

TL_KERNEL expert_counts_clear(const __grid_constant__ tl_counts_args k) {
  const int64_t i = tl_thread();
  if (i < k.samples * k.pieces * k.experts) k.counts[i] = 0;
}

/* A block for 1,024 tokens of a piece of a sample. */
TL_KERNEL expert_counts_add(const __grid_constant__ tl_counts_args k) {
  __shared__ int32_t count[TL_MOE_MOST_EXPERTS];
  const int64_t part = blockIdx.x % k.blocks, rest = blockIdx.x / k.blocks;
  const int64_t piece = rest % k.pieces, sample = rest / k.pieces;
  /* Tokens of the sample that this rank has are token_first .. token_first + tokens - 1. */
  int64_t first = piece * k.block + part * TL_MOE_COUNT_TOKENS - k.token_first;
  int64_t last = first + TL_MOE_COUNT_TOKENS, end = (piece + 1) * k.block - k.token_first;
  if (first < 0) first = 0;
  if (last > end) last = end;
  if (last > k.tokens) last = k.tokens;
  if (first >= last) return;
  for (int j = threadIdx.x; j < k.experts; j += THREADS) count[j] = 0;
  __syncthreads();
  const int32_t *chosen = k.expert + (sample * k.tokens + first) * k.slots;
  for (int64_t i = threadIdx.x; i < (last - first) * k.slots; i += THREADS)
    atomicAdd(&count[chosen[i]], 1);
  __syncthreads();
  for (int j = threadIdx.x; j < k.experts; j += THREADS)
    if (count[j] > 0) atomicAdd(&k.counts[(sample * k.pieces + piece) * k.experts + j], count[j]);
}

/* --- expert_order ----------------------------------------------------------------------------- */

/* Shared memory: a counter for each listing place. */
extern "C" __global__ void __launch_bounds__(WARP)
    expert_order_count(const __grid_constant__ tl_order_args k) {
  extern __shared__ int32_t next[];
  __shared__ uint16_t place_of[TL_MOE_MOST_EXPERTS];
  const int lane = threadIdx.x;
  const int64_t first = blockIdx.x * k.chunk;
  const int64_t last = first + k.chunk < k.count ? first + k.chunk : k.count;
  for (int p = lane; p < k.listed; p += WARP) next[p] = 0;
  for (int e = lane; e < k.experts; e += WARP) place_of[e] = k.place_of[e];
  __syncwarp();
  for (int64_t i = first + lane; i < last; i += WARP) atomicAdd(&next[place_of[k.expert[i]]], 1);
  __syncwarp();
  for (int p = lane; p < k.listed; p += WARP) k.table[p * k.chunks + blockIdx.x] = next[p];
}

/* The sum of the lanes before this one; *total: of all. */
TL_GPU int32_t before(int32_t v, int32_t *total) {
  const int lane = threadIdx.x % WARP;
  int32_t sum = v;
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) {
    const int32_t other = __shfl_up_sync(ALL, sum, step);
    if (lane >= step) sum += other;
  }
  *total = __shfl_sync(ALL, sum, WARP - 1);
  return sum - v;
}

/* A warp for each place. */
TL_KERNEL expert_order_scan(const __grid_constant__ tl_order_args k) {
  const int64_t place = tl_thread() / WARP;
  if (place >= k.listed) return;
  int32_t *row = k.table + place * k.chunks, sum = 0;
  for (int64_t base = 0; base < k.chunks; base += WARP) {
    const int64_t chunk = base + threadIdx.x % WARP;
    const int32_t v = chunk < k.chunks ? row[chunk] : 0;
    int32_t total;
    const int32_t earlier = before(v, &total);
    if (chunk < k.chunks) row[chunk] = sum + earlier;
    sum += total;
  }
  if (threadIdx.x % WARP == 0) k.starts[place] = sum;
}

/* One warp: sums of all before. */
extern "C" __global__ void __launch_bounds__(WARP)
    expert_order_starts(const __grid_constant__ tl_order_args k) {
  int32_t sum = 0;
  for (int base = 0; base < k.listed; base += WARP) {
    const int place = base + threadIdx.x;
    const int32_t v = place < k.listed ? k.starts[place] : 0;
    int32_t total;
    const int32_t earlier = before(v, &total);
    if (place < k.listed) k.starts[place] = sum + earlier;
    sum += total;
  }
  if (threadIdx.x == 0) k.starts[k.listed] = sum;
}

extern "C" __global__ void __launch_bounds__(WARP)
    expert_order_scatter(const __grid_constant__ tl_order_args k) {
  extern __shared__ int32_t next[];
  __shared__ uint16_t place_of[TL_MOE_MOST_EXPERTS];
  const int lane = threadIdx.x;
  const int64_t first = blockIdx.x * k.chunk;
  const int64_t last = first + k.chunk < k.count ? first + k.chunk : k.count;
  for (int p = lane; p < k.listed; p += WARP)
    next[p] = k.starts[p] + k.table[p * k.chunks + blockIdx.x];
  for (int e = lane; e < k.experts; e += WARP) place_of[e] = k.place_of[e];
  __syncwarp();
  for (int64_t base = first; base < last; base += WARP) {
    const int64_t i = base + lane;
    const bool own = i < last;
    const int p = own ? place_of[k.expert[i]] : -1;
    const uint32_t alike = __match_any_sync(ALL, p);
    const int earlier = __popc(alike & ((1u << lane) - 1u));
    int32_t row = own ? next[p] + earlier : 0;
    __syncwarp();
    if (own && earlier == 0) next[p] += __popc(alike);
    __syncwarp();
    if (!own) continue;
    k.place[i] = row;
    k.order[row] = (int32_t)i;
  }
}

/* --- loads ------------------------------------------------------------------------------------ */

TL_KERNEL expert_load_sums(const __grid_constant__ tl_load_args k) {
  const int64_t e = tl_thread();
  if (e >= k.experts) return;
  int64_t sum = k.adds ? k.load[e] : 0;
  for (int64_t p = 0; p < k.rows; p++) sum += k.counts[p * k.experts + e];
  k.load[e] = sum;
}

/* One block. */
TL_KERNEL load_sign_all(const __grid_constant__ tl_load_args k) {
  __shared__ unsigned long long sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  for (int e = threadIdx.x; e < k.experts; e += THREADS)
    atomicAdd(&sum, (unsigned long long)k.load[e]);
  __syncthreads();
  for (int e = threadIdx.x; e < k.experts; e += THREADS) {
    const int64_t rest = (int64_t)sum - k.experts * k.load[e];
    k.sign[e] = (float)((rest > 0) - (rest < 0));
  }
}

/* --- expert_segments -------------------------------------------------------------------------- */

/* One block; a thread for each slot walks over its sources and pieces. */
TL_KERNEL expert_segments_all(const __grid_constant__ tl_segments_args k) {
  __shared__ int32_t start[TL_MOE_MOST_EXPERTS + 1];
  const int sources = k.ranks / k.share, each = sources * k.pieces + 1;
  for (int slot = threadIdx.x; slot < k.slots; slot += THREADS) {
    const int e = k.expert[slot];
    int32_t rows = 0;
    for (int i = 0; i < k.ranks * k.pieces && e >= 0; i++)
      rows += k.counts[(int64_t)i * k.experts + e];
    start[slot] = rows;
  }
  __syncthreads();
  if (threadIdx.x < WARP) {
    int32_t sum = 0;
    for (int base = 0; base < k.slots; base += WARP) {
      const int slot = base + threadIdx.x;
      const int32_t v = slot < k.slots ? start[slot] : 0;
      int32_t total;
      const int32_t earlier = before(v, &total);
      __syncwarp();
      if (slot < k.slots) start[slot] = sum + earlier;
      sum += total;
    }
    if (threadIdx.x == 0) start[k.slots] = sum;
  }
  __syncthreads();
  for (int slot = threadIdx.x; slot <= k.slots; slot += THREADS) {
    k.offsets[slot] = start[slot];
    if (slot == k.slots) break;
    const int e = k.expert[slot];
    int32_t row = start[slot], *out = k.segments + (int64_t)slot * each;
    for (int source = 0; source < sources; source++)
      for (int piece = 0; piece < k.pieces; piece++) {
        *out++ = row;
        for (int rank = source * k.share; rank < (source + 1) * k.share && e >= 0; rank++)
          row += k.counts[((int64_t)rank * k.pieces + piece) * k.experts + e];
      }
    *out = row;
  }
}
