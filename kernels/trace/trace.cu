/* trace.cu - hashes of outputs and times of instructions, queued between instructions.
**
**   trace_stamp   the time, before an instruction
**   trace_hash    the time after it; then the share of runtime/hash.h, which is a sum of integers:
**                 blocks may add to it in any order
**
** A run is a piece of the tensor whose elements are neighbours in the logical tensor too: a row, or
** a whole piece where rows are complete.
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

TL_GPU uint64_t bits_of(const tl_trace_args &a, int64_t element) {
  switch (a.size) {
    case 2: return ((const uint16_t *)a.data)[element];
    case 4: return ((const uint32_t *)a.data)[element];
    case 8: return ((const uint64_t *)a.data)[element];
    default: return ((const uint8_t *)a.data)[element];
  }
}

/* Where in its run thread `slot` looks, given the global index of the run's first element; -1: it
** has nothing to do. */
TL_GPU int64_t offset_of(const tl_trace_args &a, int64_t slot, int64_t index) {
  if (!a.sampled) return slot;
  const int64_t at = index / (LINE * LINES) + slot / LINE;
  const uint64_t word = tl_mix64(a.name ^ (uint64_t)(at + 1) * 0x9e3779b97f4a7c15u);
  const int64_t from = at * LINE * LINES + (int64_t)(word % LINES) * LINE + slot % LINE - index;
  return from >= 0 && from < a.length ? from : -1;
}

TL_GPU uint64_t share(const tl_trace_args &a, int64_t thread) {
  const int64_t run = tl_quotient(thread, a.slots), slot = thread - run * a.slots;
  if (run >= a.runs) return 0;
  const int64_t first = run * (a.length / a.cols); /* local row */
  const int64_t row = a.row_first + first / a.piece_rows * a.piece_stride + first % a.piece_rows;
  const int64_t index = row * a.cols_full + a.col_first;
  const int64_t at = offset_of(a, slot, index);
  if (at < 0) return 0;
  const uint64_t key = tl_mix64(a.name + (uint64_t)(index + at + 1) * 0x9e3779b97f4a7c15u);
  return tl_mix64(key ^ bits_of(a, first * a.pitch + at));
}

TL_KERNEL trace_stamp(const __grid_constant__ tl_trace_args a) {
  if (tl_thread() == 0) *a.stamp = now();
}

TL_KERNEL trace_hash(const __grid_constant__ tl_trace_args a) {
  if (tl_thread() == 0 && a.stamp != NULL) *a.stamp = now();
  uint64_t sum = share(a, tl_thread());
  for (int step = TL_DEVICE_WARP / 2; step > 0; step /= 2)
    sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (threadIdx.x % TL_DEVICE_WARP == 0 && sum != 0)
    atomicAdd((unsigned long long *)a.hash, (unsigned long long)sum);
}
