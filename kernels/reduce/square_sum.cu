/* square_sum.cu - the gradient norm on a GPU.
**
** square_sum: a block of threads sums a chunk by the row rule; then a warp for each slot adds the
** chunks of its part, ascending: 32 are read at once and handed round by shuffles. square_sum_rows
** has rows for parts.
** grad_norm: one block. A warp takes a tensor's slots, 32 at a time, and sums their trees until one
** is left; thread 0 adds the tensors.
*/
#include "../device.cuh"
#include "reduce_args.h"

enum { WARP = TL_DEVICE_WARP, WARPS = TL_DEVICE_THREADS / WARP };

#define ALL_LANES 0xffffffffu

/* Part p: `row` elements of each outer index from element `base` of g on; `count` in all. */
typedef struct part_place {
  int64_t base, row, count;
} part_place;

TL_GPU part_place place_part(const tl_square_sum_args &k, int64_t part) {
  const int64_t start = part * k.extent / k.parts, end = (part + 1) * k.extent / k.parts;
  const int64_t row = (end - start) * k.inner;
  return {(k.begin + start) * k.inner, row, k.outer * row};
}

/* n elements of a part from `at` on, row-major. */
TL_GPU void load_part(const tl_square_sum_args &k, const part_place &p, int64_t at, int n,
                      float *g) {
  const int64_t stride = k.length * k.inner;
  int64_t outer = k.outer == 1 ? 0 : tl_quotient(at, p.row), column = at - outer * p.row;
  if (column + n <= p.row) {
    tl_load_piece(k.g, p.base + outer * stride + column, n, g);
    return;
  }
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    g[i] = i < n ? tl_load_one(k.g, p.base + outer * stride + column) : 0.0f;
    column++;
    if (column == p.row) outer++, column = 0;
  }
}

/* Four pieces of f32, 2,048 elements apart: all are under way before the first is used. */
TL_GPU void add_squares(const float *g, int64_t at, float *sum) {
  float4 x[8];
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = ((const float4 *)(g + i / 2 * TL_DEVICE_PARTIALS))[i % 2];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float4 a = x[2 * i], b = x[2 * i + 1];
    const float v[TL_P] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    tl_add_dot(sum, v, v, TL_P, at + i * TL_DEVICE_PARTIALS);
  }
}

TL_KERNEL square_sum_chunks(const __grid_constant__ tl_square_sum_args k) {
  __shared__ float shared[TL_P];
  const int64_t part = tl_quotient(blockIdx.x, k.chunks_each);
  const int64_t first = (blockIdx.x - part * k.chunks_each) * TL_SQUARE_CHUNK;
  const part_place p = place_part(k, part);
  if (first >= p.count) return; /* all threads alike */
  const int64_t length = p.count - first < TL_SQUARE_CHUNK ? p.count - first : TL_SQUARE_CHUNK;
  float sum[TL_P], g[TL_P];
  tl_clear(sum);
  int64_t at = threadIdx.x * TL_P;
  if (k.outer == 1 && !k.g.bf16 && k.g.aligned && (p.base + first) % TL_P == 0) {
    const float *g0 = (const float *)k.g.data + p.base + first;
    for (; at + 3 * TL_DEVICE_PARTIALS + TL_P <= length; at += 4 * TL_DEVICE_PARTIALS)
      add_squares(g0 + at, at, sum);
  }
  for (; at < length; at += TL_DEVICE_PARTIALS) {
    const int n = tl_piece_length(length, at);
    load_part(k, p, first + at, n, g);
    tl_add_dot(sum, g, g, n, at);
  }
  const float total = tl_row_total(sum, TL_DEVICE_THREADS, shared);
  if (threadIdx.x == 0) k.chunks[blockIdx.x] = total;
}

/* The chain over the chunks of a part, for all lanes of a warp. */
TL_GPU float chain_of(const tl_square_sum_args &k, int64_t part) {
  const int lane = threadIdx.x % WARP;
  const int64_t count = (place_part(k, part).count + TL_SQUARE_CHUNK - 1) / TL_SQUARE_CHUNK;
  const float *chunks = k.chunks + part * k.chunks_each;
  float sum = 0.0f, next = lane < count ? chunks[lane] : 0.0f;
  for (int64_t base = 0; base < count; base += WARP) {
    const float chunk = next;
    const int64_t ahead = base + WARP + lane;
    if (ahead < count) next = chunks[ahead];
    const int n = count - base < WARP ? (int)(count - base) : WARP;
    if (n < WARP) {
      for (int i = 0; i < n; i++) sum = sum + __shfl_sync(ALL_LANES, chunk, i);
    } else {
#pragma unroll
      for (int i = 0; i < WARP; i++) sum = sum + __shfl_sync(ALL_LANES, chunk, i);
    }
  }
  return sum;
}

TL_KERNEL square_sum_chain(const __grid_constant__ tl_square_sum_args k) {
  const int64_t slot = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
  const int64_t part = slot - k.slot_first;
  if (slot >= k.slot_count) return; /* a whole warp */
  const float sum = part >= 0 && part < k.parts ? chain_of(k, part) : 0.0f;
  if (threadIdx.x % WARP == 0) k.slots[slot] = sum;
}

TL_KERNEL square_sum_places(const __grid_constant__ tl_square_rows_args k) {
  const int64_t part = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
  if (part >= k.sums.parts || k.place[part] < 0) return; /* a whole warp */
  const float sum = chain_of(k.sums, part);
  if (threadIdx.x % WARP == 0) k.sums.slots[k.place[part]] = sum;
}

/* --- grad_norm -------------------------------------------------------------------------------- */

/* The tree over n = 2^j slots, for all lanes of a warp; `room` takes n / 32 floats. */
TL_GPU float slot_tree(const float *slots, int64_t n, float *room) {
  const int lane = threadIdx.x % WARP;
  const float *from = slots;
  float v = 0.0f;
  for (;;) {
    const int64_t trees = (n + WARP - 1) / WARP;
    const int width = n < WARP ? (int)n : WARP;
    for (int64_t i = 0; i < trees; i++) {
      v = lane < width ? from[i * WARP + lane] : 0.0f;
      for (int step = 1; step < width; step *= 2) v = v + __shfl_xor_sync(ALL_LANES, v, step);
      if (trees > 1 && lane == 0) room[i] = v; /* behind all that is still to be read */
      __syncwarp();
    }
    if (trees == 1) return __shfl_sync(ALL_LANES, v, 0);
    from = room;
    n = trees;
  }
}

TL_GPU void finish_norm(const tl_grad_norm_args &k, float total) {
  const float infinity = tl_math_float(0x7f800000u);
  const float root = sqrtf(total), q = k.clip / (root + 1e-6f), loss = *k.loss;
  const bool finite = fabsf(root) < infinity && fabsf(loss) < infinity;
  *k.norm = root;
  k.control[0] = k.clip > 0.0f && q < 1.0f ? q : 1.0f;
  k.control[1] = *k.count == 0 || !finite ? 1.0f : 0.0f;
}

extern "C" __global__ void __launch_bounds__(TL_NORM_THREADS)
    grad_norm_block(const __grid_constant__ tl_grad_norm_args k) {
  __shared__ float sums[TL_NORM_TENSORS_MAX];
  const int warp = threadIdx.x / WARP;
  int64_t slot = k.slot_first;
  for (int i = 0; i < k.tensors; i++) {
    const int64_t count = (int64_t)1 << k.levels[i];
    if (i % (TL_NORM_THREADS / WARP) == warp) {
      const float sum = slot_tree(k.slots + slot, count, k.scratch + TL_NORM_TREES + slot);
      if (threadIdx.x % WARP == 0) sums[i] = sum;
    }
    slot += count;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  float total = k.is_first ? 0.0f : k.scratch[0];
  for (int i = 0; i < k.tensors; i++) total = total + sums[i];
  k.scratch[0] = total;
  if (k.is_last) finish_norm(k, total);
}
