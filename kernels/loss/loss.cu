/* loss.cu - softmax cross entropy on a GPU: rows of logits, and one number for each token.
**
** row_max and row_sum_exp: `lanes` threads a row (of a run of the row for row_sum_exp, one run
** after the other, or up to four side by side). The gradients are element by element; a thread
** reads a piece of z before it writes it, so dz may be z.
*/
#include "../device.cuh"
#include "loss_args.h"

enum { SPAN = TL_DEVICE_PARTIALS, WARP = TL_DEVICE_WARP, LEAF_LEVELS = 11 };

/* --- Rows of logits --------------------------------------------------------------------------- */

enum { LOADS = 4 /* pieces of a thread that are under way at once */ };

/* Pieces at, at + SPAN, .. of columns `row` .. that end before `end`. */
template <int loads>
TL_GPU void fetch_ahead(const tl_array &z, int64_t row, int64_t at, int64_t end, tl_bits *bits) {
#pragma unroll
  for (int j = 0; j < loads; j++) {
    const int64_t from = at + j * SPAN;
    if (from < end) bits[j] = tl_fetch(z, row + from, tl_piece_length(end, from));
  }
}

TL_KERNEL row_max_rows(const __grid_constant__ tl_logits_args k) {
  tl_after_earlier();
  __shared__ float shared[TL_P];
  const tl_row_lane r = tl_row_of(k.lanes);
  float best = tl_math_float(0xff800000u), z[TL_P];
  for (int64_t at = r.at; r.row < k.rows && at < k.columns; at += LOADS * SPAN) {
    tl_bits bits[LOADS];
    fetch_ahead<LOADS>(k.z, r.row * k.width, at, k.columns, bits);
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
      if (at + j * SPAN >= k.columns) break;
      const int n = tl_piece_length(k.columns, at + j * SPAN);
      tl_widen(k.z, bits[j], z);
#pragma unroll
      for (int i = 0; i < TL_P; i++) best = i < n && z[i] > best ? z[i] : best;
    }
  }
  for (int step = 1; step < k.lanes && step < WARP; step *= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, step);
    best = other > best ? other : best;
  }
  if (k.lanes > WARP) {
    const int warps = k.lanes / WARP, first = threadIdx.x / WARP / warps * warps;
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = best;
    __syncthreads();
    for (int i = 0; i < warps; i++) best = shared[first + i] > best ? shared[first + i] : best;
  }
  if (r.row < k.rows && r.at == 0) k.out_m[r.row] = best + 0.0f;
}

/* exp(z - m) as loss.h says; t = m * L. */
TL_GPU float exponential(float z, float t) { return tl_exp2(fmaf(z, TL_LOG2E, -t)); }

/* A thread's partials of a leaf, columns at, at + SPAN, .. before `end`; t = m * L. */
template <int loads>
TL_GPU void sum_leaf(const tl_logits_args &k, int64_t row, int64_t at, int64_t end, float m,
                     float *p, float *q) {
  const float t = m * TL_LOG2E;
  float z[TL_P], e[TL_P];
  tl_clear(p);
  tl_clear(q);
  for (; at < end; at += loads * SPAN) {
    tl_bits bits[loads];
    fetch_ahead<loads>(k.z, row * k.width, at, end, bits);
#pragma unroll
    for (int j = 0; j < loads; j++) {
      if (at + j * SPAN >= end) break;
      const int n = tl_piece_length(end, at + j * SPAN);
      tl_widen(k.z, bits[j], z);
#pragma unroll
      for (int i = 0; i < TL_P; i++) e[i] = exponential(z[i], t), z[i] = z[i] - m;
      tl_add_values(p, e, n);
      tl_add_values(q, z, n);
    }
  }
}

/* A row's sums, and its target's logit. */
TL_GPU void put_sums(const tl_logits_args &k, int64_t row, float s, float zsum) {
  const int32_t token = k.targets[row];
  const int64_t target = (int64_t)token - k.first;
  const bool owned = token >= 0 && target >= 0 && target < k.columns;
  k.out_s[row] = s;
  k.out_zsum[row] = zsum;
  k.out_zt[row] = owned ? tl_load_one(k.z, row * k.width + target) + 0.0f : 0.0f;
}

TL_KERNEL row_sum_exp_rows(const __grid_constant__ tl_logits_args k) {
  tl_after_earlier();
  __shared__ float shared[TL_P];
  const tl_row_lane r = tl_row_of(k.lanes);
  const bool live = r.row < k.rows;
  const float m = live ? k.m[r.row] : 0.0f;
  const int64_t length = k.width / k.leaves;
  tl_counter<LEAF_LEVELS> s_tree, zsum_tree;
  float s = 0.0f, zsum = 0.0f;
  for (int64_t leaf = 0; leaf < k.leaves; leaf++) {
    const int64_t start = leaf * length;
    const int64_t end = start + length < k.columns ? start + length : k.columns;
    float p[TL_P], q[TL_P];
    sum_leaf<LOADS>(k, r.row, start + r.at, live ? end : 0, m, p, q);
    s = s_tree.push(leaf, tl_row_total(p, k.lanes, shared));
    zsum = zsum_tree.push(leaf, tl_row_total(q, k.lanes, shared));
  }
  if (live && r.at == 0) put_sums(k, r.row, s, zsum);
}

/* The same for up to four leaves of which each has the threads that a row has above: side by side,
** which is faster where rows are few. A block a row. */
extern "C" __global__ void __launch_bounds__(TL_LOSS_SIDE_LEAVES * TL_DEVICE_THREADS)
    row_sum_exp_side(const __grid_constant__ tl_logits_args k) {
  tl_after_earlier();
  __shared__ float shared[TL_LOSS_SIDE_LEAVES * TL_P];
  __shared__ float2 finished[TL_LOSS_SIDE_LEAVES];
  const int64_t row = blockIdx.x, length = k.width / k.leaves;
  const int64_t leaf = threadIdx.x / TL_DEVICE_THREADS, start = leaf * length;
  const int64_t end = start + length < k.columns ? start + length : k.columns;
  const int64_t own = threadIdx.x % TL_DEVICE_THREADS * TL_P;
  float p[TL_P], q[TL_P];
  sum_leaf<2>(k, row, start + own, end, k.m[row], p, q);
  const float s = tl_row_total(p, TL_DEVICE_THREADS, shared);
  const float zsum = tl_row_total(q, TL_DEVICE_THREADS, shared);
  if (own == 0) finished[leaf] = make_float2(s, zsum);
  __syncthreads();
  if (threadIdx.x != 0) return;
  float2 sum = finished[0];
  if (k.leaves >= 2) sum.x = sum.x + finished[1].x, sum.y = sum.y + finished[1].y;
  if (k.leaves == 4) {
    const float2 a = finished[2], b = finished[3];
    sum.x = sum.x + (a.x + b.x), sum.y = sum.y + (a.y + b.y);
  }
  put_sums(k, row, sum.x, sum.y);
}

/* Rows of bf16 without columns that are only there to fill up, cut into leaves of whole pieces: a
** block a row, WHOLE_AHEAD pieces of a thread under way at once, `spans` of each of some leaves. A
** thread's sums of every leaf wait in shared memory for one meeting at the end, where a warp
** finishes a leaf: eight threads' sums in a lane, then the lanes. */
enum { WHOLE_AHEAD = 8, WARPS = TL_DEVICE_THREADS / WARP };

/* The tree over the lanes of a warp. */
TL_GPU float warp_tree(float v) {
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) v = v + __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

TL_GPU void add_exponentials(const uint4 &piece, float m, float *p, float *q) {
  float z[TL_P];
  tl_widen_whole(piece, z);
#pragma unroll
  for (int c = 0; c < TL_P; c++) {
    p[c] = p[c] + exponential(z[c], m * TL_LOG2E);
    q[c] = q[c] + (z[c] - m);
  }
}

/* What the block's threads left of leaf `leaf`, by one warp. */
TL_GPU float2 leaf_sums(const float2 *waiting, int leaf) {
  const float4 *from =
      (const float4 *)(waiting + leaf * TL_DEVICE_THREADS) + threadIdx.x % WARP * TL_P / 2;
  float s[TL_P], zsum[TL_P];
#pragma unroll
  for (int i = 0; i < TL_P / 2; i++) {
    const float4 two = from[i];
    s[2 * i] = two.x, zsum[2 * i] = two.y, s[2 * i + 1] = two.z, zsum[2 * i + 1] = two.w;
  }
  return make_float2(warp_tree(tl_tree8(s)), warp_tree(tl_tree8(zsum)));
}

/* The tree over leaves, by warp 0, and the target's logit. */
TL_GPU void finish_row(const tl_logits_args &k, int64_t row, const float2 *leaves) {
  const int lane = threadIdx.x % WARP;
  const float2 own = lane < k.leaves ? leaves[lane] : make_float2(0.0f, 0.0f);
  float s = own.x, zsum = own.y;
  for (int step = 1; step < k.leaves; step *= 2) {
    s = s + __shfl_xor_sync(0xffffffffu, s, step);
    zsum = zsum + __shfl_xor_sync(0xffffffffu, zsum, step);
  }
  if (lane == 0) put_sums(k, row, s, zsum);
}

/* Pieces first .. first + spans - 1 of a thread's `count` in a leaf whose first stands at z. */
template <int spans>
TL_GPU void fetch_pieces(const uint16_t *z, int first, int count, uint4 *bits) {
#pragma unroll
  for (int j = 0; j < spans; j++)
    if (first + j < count) bits[j] = *(const uint4 *)(z + (first + j) * SPAN);
}
template <int spans>
TL_GPU void add_pieces(const uint4 *bits, int first, int count, float m, float *p, float *q) {
#pragma unroll
  for (int j = 0; j < spans; j++)
    if (first + j < count) add_exponentials(bits[j], m, p, q);
}

/* Leaves of up to `spans` times 2,048 columns; longer ones where `spans` is WHOLE_AHEAD. */
template <int spans>
TL_GPU void sum_exp_whole(const tl_logits_args &k) {
  enum { LEAVES = WHOLE_AHEAD / spans };
  extern __shared__ float2 waiting[]; /* leaves x threads */
  __shared__ float2 finished[TL_LOSS_WHOLE_LEAVES];
  const int64_t row = blockIdx.x;
  const int length = (int)(k.width / k.leaves), own = threadIdx.x * TL_P, leaves = (int)k.leaves;
  const int count = (length - own + SPAN - 1) / SPAN;
  const float m = k.m[row];
  const uint16_t *z = (const uint16_t *)k.z.data + row * k.width + own;
  for (int leaf = 0; leaf < leaves; leaf += LEAVES) {
    uint4 bits[LEAVES][spans];
#pragma unroll
    for (int l = 0; l < LEAVES; l++)
      if (leaf + l < leaves) fetch_pieces<spans>(z + (leaf + l) * length, 0, count, bits[l]);
#pragma unroll
    for (int l = 0; l < LEAVES; l++) {
      if (leaf + l >= leaves) break;
      float p[TL_P], q[TL_P];
      tl_clear(p), tl_clear(q);
      add_pieces<spans>(bits[l], 0, count, m, p, q);
      for (int first = spans; spans == WHOLE_AHEAD && first < count; first += spans) {
        fetch_pieces<spans>(z + leaf * length, first, count, bits[0]);
        add_pieces<spans>(bits[0], first, count, m, p, q);
      }
      waiting[(leaf + l) * TL_DEVICE_THREADS + threadIdx.x] = make_float2(tl_tree8(p), tl_tree8(q));
    }
  }
  __syncthreads();
  for (int leaf = threadIdx.x / WARP; leaf < leaves; leaf += WARPS) {
    const float2 sums = leaf_sums(waiting, leaf);
    if (threadIdx.x % WARP == 0) finished[leaf] = sums;
  }
  __syncthreads();
  if (threadIdx.x < WARP) finish_row(k, row, finished);
}

#define WHOLE(spans)                                                        \
  extern "C" __global__ void __launch_bounds__(TL_DEVICE_THREADS, 4)        \
      row_sum_exp_whole_##spans(const __grid_constant__ tl_logits_args k) { \
    sum_exp_whole<spans>(k);                                                \
  }
WHOLE(1)
WHOLE(2)
WHOLE(4)
WHOLE(8)

/* dz = q * drow without the target's term; the branches are the host's. `tail` is
** (2 z)(m + log s), left out when 0. */
typedef struct slope {
  float s, drow, uniform, tail;
} slope;

/* The slopes of a piece; p = e / s. Which branch is taken is the same for a whole row. */
TL_GPU void common_slopes(const slope &c, const float *p, float *dz) {
  if (c.tail != 0.0f) {
#pragma unroll
    for (int i = 0; i < TL_P; i++) {
      const float q = c.uniform == 0.0f ? p[i] : p[i] - c.uniform;
      dz[i] = (q + c.tail * p[i]) * c.drow;
    }
  } else if (c.uniform != 0.0f) {
#pragma unroll
    for (int i = 0; i < TL_P; i++) dz[i] = (p[i] - c.uniform) * c.drow;
  } else {
#pragma unroll
    for (int i = 0; i < TL_P; i++) dz[i] = p[i] * c.drow;
  }
}

/* The target's own column. */
TL_GPU float target_slope(const tl_logits_args &k, const slope &c, float p) {
  float q = p;
  if (k.smoothing != 0.0f) q = q - c.uniform;
  q = q - (1.0f - k.smoothing);
  if (k.weight != 0.0f) q = q + c.tail * p;
  return q * c.drow;
}

TL_GPU slope slope_of(const tl_logits_args &k, int64_t row) {
  slope c;
  c.s = k.s[row];
  c.drow = k.drow[row];
  c.uniform = k.smoothing == 0.0f ? 0.0f : k.smoothing / k.vocab;
  c.tail = k.weight == 0.0f ? 0.0f : (2.0f * k.weight) * (k.m[row] + tl_log(c.s));
  return c;
}

/* cross_entropy_grad, and logsumexp_grad, which has no targets. */
TL_KERNEL logits_grad_elements(const __grid_constant__ tl_logits_args k) {
  const tl_place_of p = tl_row_piece(tl_thread(), k.width);
  if (p.row >= k.rows) return;
  const int n = tl_piece_length(k.width, p.at);
  /* all loads leave together: columns that only fill up are read too, and not used */
  const tl_bits bits = tl_fetch(k.z, p.row * k.width + p.at, n);
  const int32_t token = k.targets == nullptr ? 0 : k.targets[p.row];
  const float t = k.m[p.row] * TL_LOG2E;
  const slope c = slope_of(k, p.row);
  const int64_t target = k.targets == nullptr || token < 0 ? -1 : (int64_t)token - k.first;
  const int64_t left = token < 0 ? 0 : k.columns - p.at;
  const int live = left < 0 ? 0 : left < n ? (int)left : n;
  float z[TL_P], e[TL_P], q[TL_P];
  tl_widen(k.z, bits, z);
#pragma unroll
  for (int i = 0; i < TL_P; i++) e[i] = i < live ? exponential(z[i], t) : 0.0f;
  tl_divide_piece(e, c.s, q);
  common_slopes(c, q, z);
  if (live < TL_P) {
#pragma unroll
    for (int i = 0; i < TL_P; i++) z[i] = i < live ? z[i] : 0.0f;
  }
  if (target >= p.at && target < p.at + live) {
#pragma unroll
    for (int i = 0; i < TL_P; i++)
      if (p.at + i == target) z[i] = target_slope(k, c, q[i]);
  }
  tl_store(k.dz, p.row * k.width + p.at, n, z);
}

/* The quotients e / s of a piece with e = exp2(x), s and its rounded reciprocal r: as in
** tl_divide_piece, with the range taken from x. */
TL_GPU void divide_exponentials(const float *x, const float *e, float s, float r, bool s_fits,
                                float *q) {
  float low = x[0], high = x[0];
#pragma unroll
  for (int i = 1; i < TL_P; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
  if (!s_fits || low < -59.0f || high > 59.0f) {
    tl_divide_piece(e, s, q);
    return;
  }
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    const float first = e[i] * r, better = fmaf(fmaf(first, -s, e[i]), r, first);
    q[i] = fmaf(fmaf(better, -s, e[i]), r, better);
  }
}

/* A whole piece; where no number is NaN, and no sum of two infinities, without asking for each. */
TL_GPU void store_whole(const tl_array &a, int64_t first, const float *v) {
  const float sum = tl_tree8(v);
  if (sum != sum) {
    tl_store(a, first, TL_P, v);
    return;
  }
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; i++)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair[i]) : "f"(v[2 * i + 1]), "f"(v[2 * i]));
  *(uint4 *)((uint16_t *)a.data + first) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

enum { AHEAD = 4 };

/* logits_grad_elements for rows of whole pieces of bf16 whose columns are whole pieces too: a block
** a row, so that what belongs to the row is found once for many pieces. */
TL_KERNEL logits_grad_whole(const __grid_constant__ tl_logits_args k) {
  const int64_t row = blockIdx.x;
  const int32_t token = k.targets == nullptr ? 0 : k.targets[row];
  const float t = k.m[row] * TL_LOG2E;
  const slope c = slope_of(k, row);
  const float r = 1.0f / c.s;
  const bool s_fits = c.s > 0x1p-60f && c.s < 0x1p60f;
  const int64_t target = k.targets == nullptr || token < 0 ? -1 : (int64_t)token - k.first;
  const int64_t live = token < 0 ? 0 : k.columns;
  for (int64_t first = threadIdx.x * TL_P; first < k.width; first += AHEAD * SPAN) {
    uint4 pieces[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int64_t at = first + j * SPAN;
      pieces[j] = tl_fetch_whole(k.z, row * k.width + (at < k.width ? at : first));
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++) {
      const int64_t at = first + j * SPAN;
      if (at >= k.width) break;
      float z[TL_P], x[TL_P], e[TL_P], q[TL_P];
      tl_widen_whole(pieces[j], z);
#pragma unroll
      for (int i = 0; i < TL_P; i++) x[i] = fmaf(z[i], TL_LOG2E, -t), e[i] = tl_exp2(x[i]);
      divide_exponentials(x, e, c.s, r, s_fits, q);
      common_slopes(c, q, z);
      if (target >= at && target < at + TL_P && target < live) {
#pragma unroll
        for (int i = 0; i < TL_P; i++)
          if (at + i == target) z[i] = target_slope(k, c, q[i]);
      }
#pragma unroll
      for (int i = 0; i < TL_P; i++) z[i] = at < live ? z[i] : 0.0f;
      store_whole(k.dz, row * k.width + at, z);
    }
  }
}

/* --- One number for each token ---------------------------------------------------------------- */

TL_KERNEL cross_entropy_tokens(const __grid_constant__ tl_tokens_args k) {
  tl_after_earlier();
  const int64_t i = tl_thread();
  if (i >= k.rows) return;
  if (k.targets[i] < 0) {
    k.out[i] = 0.0f;
    return;
  }
  const float l = tl_log(k.s[i]);
  float loss = l - (k.zt[i] - k.m[i]);
  if (k.smoothing != 0.0f) {
    loss = (1.0f - k.smoothing) * loss + k.smoothing * (l - k.zsum[i] / k.vocab);
  }
  const float lse = k.m[i] + l;
  if (k.weight != 0.0f) loss = loss + k.weight * (lse * lse);
  k.out[i] = loss;
}

TL_KERNEL logsumexp_tokens(const __grid_constant__ tl_tokens_args k) {
  const int64_t i = tl_thread();
  if (i < k.rows) k.out[i] = k.m[i] + tl_log(k.s[i]);
}

TL_KERNEL loss_seed_tokens(const __grid_constant__ tl_tokens_args k) {
  const int64_t i = tl_thread(), count = *k.count;
  const float seed = count > 0 ? 1.0f / (float)count : 0.0f;
  if (i < k.rows) k.out[i] = k.targets[i] >= 0 ? seed : 0.0f;
}

TL_KERNEL loss_mask_tokens(const __grid_constant__ tl_tokens_args k) {
  const int64_t i = tl_thread();
  if (i < k.rows) k.out[i] = k.targets[i] >= 0 ? k.loss[i] : 0.0f;
}

TL_KERNEL loss_finish_one(const __grid_constant__ tl_tokens_args k) {
  const int64_t count = *k.count;
  if (tl_thread() == 0) k.out[0] = count > 0 ? k.loss[0] / (float)count : 0.0f;
}
