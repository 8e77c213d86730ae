// cache_attention.cu - attention_cached of bf16: cache.h says what. A block of 128 threads has a KV
// head and either one row or, where rows of one request stand side by side, up to 64 pairs of a row
// and a query head.
//
//             one row (decoding)                      rows of one request (a prompt)
//   owner     16 query heads, all four warps          16 pairs a warp
//   scores    a warp a quarter of the keys            a warp all keys, in registers
//   softmax   8 threads a head, in shared memory      4 lanes a pair
//   O         a warp a quarter of the channels        a warp all channels
//
// Both give a row the same bits. The first row of a group of `tile` rows looks whether all of them
// belong to one request; then the blocks of the others end at once.
#include "cache_one.cuh"
#include "cache_many.cuh"

GPU void fill_row(const tl_cached_args &g, int64_t row, int kv_head, uint32_t bits) {
  const int count = g.group * g.value_width;
  const int64_t first = row * g.heads * g.value_width + (int64_t)kv_head * count;
  for (int i = threadIdx.x; i < count; i += TL_CACHED_THREADS) {
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[first + i] = uint16_t(bits >> 16);
    else
      ((uint32_t *)g.o)[first + i] = bits;
  }
}

// How many rows from the first of this row's group on belong to its request, if all of the group
// do and exist; else 1.
GPU int rows_together(const tl_cached_args &g, int row) {
  const int first = row - row % g.tile, left = g.at.rows - first;
  const int count = left < g.tile ? left : g.tile, request = g.at.request[row];
  int differs = 0;
  if (count < 2) return 1;
  for (int i = threadIdx.x; i < count; i += TL_CACHED_THREADS)
    differs |=
        g.at.request[first + i] != request || !is_place(g.at, request, g.at.position[first + i]);
  return __syncthreads_or(differs) ? 1 : count;
}

template <int width, int chunk, int slots>
GPU void attend(const tl_cached_args &g) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int row = blockIdx.x / g.kv_heads, kv_head = blockIdx.x % g.kv_heads;
  const int request = g.at.request[row];
  if (request < 0) return fill_row(g, row, kv_head, 0);
  const int together = rows_together(g, row);
  if (together > 1) {
    if (row % g.tile == 0)
      Many<width, chunk, slots>::run(g, row, together, request, kv_head, shared);
    return;
  }
  const int position = g.at.position[row];
  if (!is_place(g.at, request, position)) return fill_row(g, row, kv_head, 0x7fffffffu);
  for (int done = 0; done < g.group; done += 16)
    One<width, chunk, slots>::run(g, row, {request, position, kv_head, done}, shared);
}

#define KERNEL(w, chunk, slots)                                             \
  extern "C" __global__ void __launch_bounds__(TL_CACHED_THREADS, 2)        \
      attention_cached_bf16_##w(const __grid_constant__ tl_cached_args g) { \
    attend<w, chunk, slots>(g);                                             \
  }
TL_CACHED_BF16(KERNEL)
