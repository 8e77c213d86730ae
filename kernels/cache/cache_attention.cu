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
// Both give a row the same bits. The rows of a group of `tile` look whether all of them belong to one
// request; then the block of the first does them all, and those of the others end at once. Where
// rows are many, blocks have whole groups from the start (args.grouped).
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
GPU void attend_row(const tl_cached_args &g, int row, int request, int position, int kv_head,
                    unsigned char *shared) {
  if (request < 0) return fill_row(g, row, kv_head, 0);
  if (!is_place(g.at, request, position)) return fill_row(g, row, kv_head, 0x7fffffffu);
  for (int done = 0; done < g.group; done += 16)
    One<width, chunk, slots>::run(g, row, {request, position, kv_head, done}, shared);
}

template <int width, int chunk, int slots>
GPU void attend(const tl_cached_args &g) {
  extern __shared__ __align__(16) unsigned char shared[];
  next_begin();
  if (!g.ahead) earlier_wait();
  const int kv_head = blockIdx.x % g.kv_heads, place = blockIdx.x / g.kv_heads;
  const Who who = who_of(g, g.grouped ? place * g.tile : place);
  if (g.ahead) earlier_wait();
  if (who.request >= 0 && who.together > 1) {
    if (who.row % g.tile == 0)
      Many<width, chunk, slots>::run(g, who.row, who.together, who.request, kv_head, shared);
    return;
  }
  const int end = g.grouped && who.row + g.tile < g.at.rows ? who.row + g.tile : g.at.rows;
  for (int row = who.row; row < (g.grouped ? end : who.row + 1); row++)
    attend_row<width, chunk, slots>(g, row, g.at.request[row], g.at.position[row], kv_head, shared);
}

#define KERNEL(w, chunk, slots)                                             \
  extern "C" __global__ void __launch_bounds__(TL_CACHED_THREADS, 2)        \
      attention_cached_bf16_##w(const __grid_constant__ tl_cached_args g) { \
    attend<w, chunk, slots>(g);                                             \
  }
TL_CACHED_BF16(KERNEL)
