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

// The row of a block, and how many rows from the first of its group on belong to its request, if
// all of the group do and exist; else 1. All numbers are asked for at once.
struct Who {
  int row, request, position, together;
};

GPU Who who_of(const tl_cached_args &g, int row) {
  const int first = row - row % g.tile, left = g.at.rows - first;
  const int count = left < g.tile ? left : g.tile, other = threadIdx.x < count ? threadIdx.x : 0;
  const int request = g.at.request[row], position = g.at.position[row];
  const int other_request = g.at.request[first + other];
  const int other_position = g.at.position[first + other];
  const bool differs = other_request != request || !is_place(g.at, request, other_position);
  return {row, request, position, __syncthreads_or(differs) || count < 2 ? 1 : count};
}

template <int width, int chunk, int slots>
GPU void attend(const tl_cached_args &g) {
  extern __shared__ __align__(16) unsigned char shared[];
  next_begin();
  if (!g.ahead) earlier_wait();
  const int kv_head = blockIdx.x % g.kv_heads;
  const Who who = who_of(g, blockIdx.x / g.kv_heads);
  if (g.ahead) earlier_wait();
  if (who.request < 0) return fill_row(g, who.row, kv_head, 0);
  if (who.together > 1) {
    if (who.row % g.tile == 0)
      Many<width, chunk, slots>::run(g, who.row, who.together, who.request, kv_head, shared);
    return;
  }
  if (!is_place(g.at, who.request, who.position)) return fill_row(g, who.row, kv_head, 0x7fffffffu);
  for (int done = 0; done < g.group; done += 16)
    One<width, chunk, slots>::run(g, who.row, {who.request, who.position, kv_head, done}, shared);
}

#define KERNEL(w, chunk, slots)                                             \
  extern "C" __global__ void __launch_bounds__(TL_CACHED_THREADS, 2)        \
      attention_cached_bf16_##w(const __grid_constant__ tl_cached_args g) { \
    attend<w, chunk, slots>(g);                                             \
  }
TL_CACHED_BF16(KERNEL)
