// sampling.cu - sample and follow on a GPU: sampling.h says what. A block of threads chooses for a
// row.
#include "sampling.cuh"

TL_GPU void do_row(const tl_sample_args &g, Row &r, int32_t row, Shared &s) {
  const int32_t next = g.next[row], id = next == -1 ? choose_row(g, r, row, s) : next;
  if (threadIdx.x == 0) g.ids[row] = id >= 0 ? id : -1;
  __syncthreads();  // shared memory may be written again
}

// A block a row; the first `places` of them have scratch, and share out the rows that need it.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample_rows(const __grid_constant__ tl_sample_args g) {
  tl_after_earlier();
  __shared__ Shared s;
  Row r = scratch_of(g, blockIdx.x);
  const int32_t own = blockIdx.x;
  if (!needs_scratch(g, own)) do_row(g, r, own, s);
  if (own >= g.places) return;
  for (int32_t row = own; row < g.rows; row += g.places)
    if (needs_scratch(g, row)) do_row(g, r, row, s);
}

TL_KERNEL follow_rows(const __grid_constant__ tl_follow_args g) {
  tl_after_earlier();
  const int64_t row = tl_thread();
  if (row >= g.rows) return;
  const int32_t fed = g.fed[row], from = -2 - fed;
  g.ids[row] = fed >= -1 ? fed : from < g.made_rows ? g.made[from] : -1;
}
