// cache_attention.cu - attention_cached of bf16: cache.h says what. A block of 128 threads has a KV
// head and either one row or, where all rows of a tile belong to one request, up to 64 pairs of a
// row and a query head.
//
//             one row (decoding)                      rows of one request (a prompt)
//   owner     16 query heads, all four warps          16 pairs a warp
//   scores    a warp a quarter of the keys            a warp all keys, in registers
//   softmax   8 threads a head, in shared memory      4 lanes a pair
//   O         a warp a quarter of the channels        a warp all channels
//
// Both give a row the same bits. Steps of few rows have a kernel that knows the first way alone: it
// needs less of a multiprocessor, so that more rows are under way.
#include "cache_one.cuh"
#include "cache_many.cuh"

// How many of the rows of a tile from `row` on belong to its first one's request, if all do and
// exist; else 1. All numbers are asked for at once.
GPU int rows_together(const tl_cached_args &g, int row) {
  const int left = g.at.rows - row, count = left < g.tile ? left : g.tile;
  const int other = row + (threadIdx.x < count ? threadIdx.x : 0);
  const int request = g.at.request[row], other_request = g.at.request[other];
  const bool exists = is_place(g.at, other_request, g.at.position[other]);
  const bool differs = other_request != request || request < 0 || !exists;
  return __syncthreads_or(differs) ? 1 : count;
}

template <int width, int chunk, int slots>
GPU void attend_one(const tl_cached_args &g) {
  extern __shared__ __align__(16) unsigned char shared[];
  begin_next();
  if (!g.ahead) wait_earlier();
  const int kv_head = blockIdx.x % g.kv_heads, row = blockIdx.x / g.kv_heads;
  const int request = g.at.request[row], position = g.at.position[row];
  if (g.ahead) wait_earlier();
  attend_row<width, chunk, slots, 16>(g, row, request, position, kv_head, shared);
}

template <int width, int chunk, int slots>
GPU void attend_many(const tl_cached_args &g) {
  extern __shared__ __align__(16) unsigned char shared[];
  begin_next();
  if (!g.ahead) wait_earlier();
  const int kv_head = blockIdx.x % g.kv_heads, first = blockIdx.x / g.kv_heads * g.tile;
  const int together = rows_together(g, first);
  if (g.ahead) wait_earlier();
  if (together > 1)
    return Many<width, chunk, slots>::run(g, first, together, g.at.request[first], kv_head, shared);
  const int end = g.at.rows - first < g.tile ? g.at.rows : first + g.tile;
  for (int row = first; row < end; row++)
    attend_row<width, chunk, slots, TL_CACHED_VECTORS>(g, row, g.at.request[row],
                                                       g.at.position[row], kv_head, shared);
}

#define KERNEL(w, chunk, slots)                                                    \
  extern "C" __global__ void __launch_bounds__(TL_CACHED_THREADS, w == 64 ? 3 : 2) \
      attention_cached_one_##w(const __grid_constant__ tl_cached_args g) {         \
    attend_one<w, chunk, slots>(g);                                                \
  }
TL_CACHED_ONE(KERNEL)
#undef KERNEL
#define KERNEL(w, chunk, slots)                                                    \
  extern "C" __global__ void __launch_bounds__(TL_CACHED_THREADS, w < 256 ? 2 : 1) \
      attention_cached_many_##w(const __grid_constant__ tl_cached_args g) {        \
    attend_many<w, chunk, slots>(g);                                               \
  }
TL_CACHED_MANY(KERNEL)
