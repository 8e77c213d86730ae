/* trace.cu - hashes of outputs and times of instructions, queued beside instructions.
**
**   trace_stamp   the time
**   trace_hash    the time, if asked for; then the shares of some outputs in runtime/hash.h, which
**                 are sums of integers: blocks may add to them in any order
**
** A run is a piece of the tensor whose elements are neighbours in the logical tensor too: a row, or
** a whole piece where rows are complete. Threads of a part take place after place; a block adds its
** sum once, since additions to one number wait for each other.
*/
#include "../../runtime/random.h"
#include "../device.cuh"
#include "trace_args.h"

enum { LINE = 64, LINES = 64 }; /* as in runtime/hash.c */

TL_GPU uint64_t now(void) {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

TL_GPU uint64_t bits_of(const tl_trace_part &a, int64_t element) {
  switch (a.size) {
    case 2: return ((const uint16_t *)a.data)[element];
    case 4: return ((const uint32_t *)a.data)[element];
    case 8: return ((const uint64_t *)a.data)[element];
    default: return ((const uint8_t *)a.data)[element];
  }
}

/* Where in its run place `slot` is, given the global index of the run's first element; -1: it is
** not in the run. */
TL_GPU int64_t offset_of(const tl_trace_part &a, int64_t slot, int64_t index) {
  if (!a.sampled) return slot;
  const int64_t at = index / (LINE * LINES) + slot / LINE;
  const uint64_t word = tl_mix64(a.name ^ (uint64_t)(at + 1) * 0x9e3779b97f4a7c15u);
  const int64_t from = at * LINE * LINES + (int64_t)(word % LINES) * LINE + slot % LINE - index;
  return from >= 0 && from < a.length ? from : -1;
}

TL_GPU uint64_t share(const tl_trace_part &a, int64_t rows, int64_t place) {
  const int64_t run = tl_quotient(place, a.slots), slot = place - run * a.slots;
  const int64_t first = run * rows; /* local row */
  const int64_t piece = tl_quotient(first, a.piece_rows);
  const int64_t row = a.row_first + piece * a.piece_stride + (first - piece * a.piece_rows);
  const int64_t index = row * a.cols_full + a.col_first;
  const int64_t at = offset_of(a, slot, index);
  if (at < 0) return 0;
  const uint64_t key = tl_mix64(a.name + (uint64_t)(index + at + 1) * 0x9e3779b97f4a7c15u);
  return tl_mix64(key ^ bits_of(a, first * a.pitch + at));
}

TL_KERNEL trace_stamp(const __grid_constant__ tl_trace_stamp_args a) {
  if (tl_thread() == 0) *a.stamp = now();
}

/* The sum over the block's threads, for thread 0. */
TL_GPU uint64_t block_sum(uint64_t sum) {
  __shared__ uint64_t warps[TL_DEVICE_THREADS / TL_DEVICE_WARP];
  for (int step = TL_DEVICE_WARP / 2; step > 0; step /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (threadIdx.x % TL_DEVICE_WARP == 0) warps[threadIdx.x / TL_DEVICE_WARP] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  for (int i = 1; i < TL_DEVICE_THREADS / TL_DEVICE_WARP; i++) sum += warps[i];
  return sum;
}

TL_KERNEL trace_hash(const __grid_constant__ tl_trace_args a) {
  int part = 0, block = (int)blockIdx.x;
  while (block >= a.parts[part].blocks) block -= a.parts[part++].blocks;
  const tl_trace_part &p = a.parts[part];
  const int64_t places = p.runs * p.slots, step = (int64_t)p.blocks * TL_DEVICE_THREADS;
  const int64_t rows = tl_quotient(p.length, p.cols);
  uint64_t sum = 0;
#pragma unroll 2
  for (int64_t i = (int64_t)block * TL_DEVICE_THREADS + threadIdx.x; i < places; i += step)
    sum += share(p, rows, i);
  sum = block_sum(sum);
  if (sum != 0) atomicAdd((unsigned long long *)p.hash, (unsigned long long)sum);
}
