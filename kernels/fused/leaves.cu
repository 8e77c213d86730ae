/* leaves.cu - the end of a linear whose leaves lie apart (gemm_hopper_leaf.cu), the sum of its
** output and another tensor, and the norm of that sum: a thread adds up the leaves of 8 columns.
**
** As fused_add_norm, with the same roundings: the tree over leaves is rounded as the output of
** linear, which is written nowhere. Rows are bf16 and consist of whole pieces.
*/
#include "../cache/cache_device.cuh"
#include "../device.cuh"
#include "fused_args.h"

enum { SPAN = TL_DEVICE_PARTIALS }; /* elements of a row that its threads take at a time */

/* Two bf16 in a word, `low` first in memory; no number becomes 0x7fff, which a sum that is none is
** in f32, too. */
TL_GPU uint32_t pair_of(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

TL_GPU float low_of(uint32_t pair) { return tl_math_float(pair << 16); }
TL_GPU float high_of(uint32_t pair) { return tl_math_float(pair & 0xffff0000u); }

TL_GPU float4 tree_of_two(const float4 &a, const float4 &b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
template <int count>
TL_GPU float4 tree_of(const float4 *leaf) {
  if constexpr (count == 1)
    return *leaf;
  else
    return tree_of_two(tree_of<count / 2>(leaf), tree_of<count / 2>(leaf + count / 2));
}

/* x: the sum of a piece, rounded as its output is, and written there. */
template <int leaves>
TL_GPU void add_piece(const tl_leaves_norm_args &k, int64_t first, float *x) {
  const int64_t step = k.norm.rows * k.norm.dim;
  const uint4 other = *(const uint4 *)((const uint16_t *)k.other + first);
  float4 part[2][leaves];
#pragma unroll
  for (int l = 0; l < leaves; l++)
#pragma unroll
    for (int h = 0; h < 2; h++)
      part[h][l] = __ldcg((const float4 *)(k.sums + l * step + first) + h);
  const uint32_t others[4] = {other.x, other.y, other.z, other.w};
  uint32_t pairs[4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float4 v = tree_of<leaves>(part[h]);
    const uint32_t one = pair_of(v.x, v.y), two = pair_of(v.z, v.w);
    pairs[2 * h] =
        pair_of(low_of(one) + low_of(others[2 * h]), high_of(one) + high_of(others[2 * h]));
    pairs[2 * h + 1] =
        pair_of(low_of(two) + low_of(others[2 * h + 1]), high_of(two) + high_of(others[2 * h + 1]));
  }
  *(uint4 *)((uint16_t *)k.norm.x.data + first) =
      make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
#pragma unroll
  for (int i = 0; i < 4; i++) x[2 * i] = low_of(pairs[i]), x[2 * i + 1] = high_of(pairs[i]);
}

TL_GPU void norm_piece(const tl_norm_args &a, const tl_bits &gains, int64_t first, float rstd,
                       float *x) {
  float gain[TL_P];
  tl_widen(a.gain, gains, gain);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[i] = (x[i] * rstd) * gain[i];
  *(uint4 *)((uint16_t *)a.out.data + first) = make_uint4(pair_of(x[0], x[1]), pair_of(x[2], x[3]),
                                                          pair_of(x[4], x[5]), pair_of(x[6], x[7]));
}

/* tl_row_total of a row that a block has to itself: warps meet once. */
TL_GPU float total_of(const float *p, float *shared) {
  float v = tl_tree8(p);
#pragma unroll
  for (int step = 1; step < TL_DEVICE_WARP; step *= 2)
    v = v + __shfl_xor_sync(0xffffffffu, v, step);
  if (threadIdx.x % TL_DEVICE_WARP == 0) shared[threadIdx.x / TL_DEVICE_WARP] = v;
  __syncthreads();
  return tl_tree8(shared);
}
static_assert(TL_DEVICE_THREADS == 8 * TL_DEVICE_WARP, "a warp's sum each");

/* The first piece of a thread, for most rows its only one, stays in registers; its gains are on
** their way before the sums are there. */
template <int leaves>
TL_GPU void add_norm(const tl_leaves_norm_args &k) {
  __shared__ __align__(16) float shared[TL_P];
  begin_next();
  if (!k.ahead) wait_earlier();
  const tl_norm_args &a = k.norm;
  const tl_row_lane r = tl_row_of(a.lanes);
  const bool there = r.row < a.rows && r.at < a.dim;
  const int64_t row = r.row * a.dim;
  float p[TL_P], first[TL_P], x[TL_P];
  tl_clear(p);
  tl_bits gains = {};
  if (there) gains = tl_fetch(a.gain, r.at, TL_P);
  if (k.ahead) wait_earlier();
  if (there) {
    add_piece<leaves>(k, row + r.at, first);
    tl_add_dot(p, first, first, TL_P, r.at);
  }
  for (int64_t at = r.at + SPAN; there && at < a.dim; at += SPAN) {
    add_piece<leaves>(k, row + at, x);
    tl_add_dot(p, x, x, TL_P, at);
  }
  const float sum =
      a.lanes == TL_DEVICE_THREADS ? total_of(p, shared) : tl_row_total(p, a.lanes, shared);
  /* by a power of two, a division is a product */
  const float mean = k.part > 0.0f ? sum * k.part : sum / (float)a.dim;
  const float rstd = tl_rsqrt(mean + a.eps);
  if (!there) return;
  norm_piece(a, gains, row + r.at, rstd, first);
  for (int64_t at = r.at + SPAN; at < a.dim; at += SPAN) {
    tl_load_piece(a.x, row + at, TL_P, x); /* this thread wrote it */
    norm_piece(a, tl_fetch(a.gain, at, TL_P), row + at, rstd, x);
  }
  if (r.at == 0 && a.rstd != nullptr) a.rstd[r.row] = rstd;
}

#define LEAVES(count)                                                                  \
  TL_KERNEL fused_leaves_norm_##count(const __grid_constant__ tl_leaves_norm_args k) { \
    add_norm<count>(k);                                                                \
  }
LEAVES(2)
LEAVES(4)
LEAVES(8)
