/* norm.cu - the norms on a GPU: `lanes` threads a row, sums by the row rule.
**
** Each thread reads its elements of the row once for each sum and once for the output; from the
** second time on they come from the cache. It writes only elements that it alone reads, and only
** after all sums, so the output may be an input's memory.
*/
#include "../device.cuh"
#include "norm_args.h"

enum { SPAN = TL_DEVICE_PARTIALS }; /* elements of a row that its threads take at a time */

/* rule(e * e) with e = x - mean. */
TL_GPU float square_sum(const tl_norm_args &a, tl_row_lane r, float mean, float *shared) {
  float p[TL_P], x[TL_P];
  tl_clear(p);
  for (int64_t at = r.at; r.row < a.rows && at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    tl_load_piece(a.x, r.row * a.dim + at, n, x);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = x[i] - mean;
    tl_add_dot(p, x, x, n, at);
  }
  return tl_row_total(p, a.lanes, shared);
}

TL_KERNEL rms_norm_rows(const __grid_constant__ tl_norm_args a) {
  tl_after_earlier();
  __shared__ float shared[TL_P];
  const tl_row_lane r = tl_row_of(a.lanes);
  const float rstd = tl_rsqrt(square_sum(a, r, 0.0f, shared) / (float)a.dim + a.eps);
  if (r.row >= a.rows) return;
  for (int64_t at = r.at; at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    const tl_bits xs = tl_fetch(a.x, r.row * a.dim + at, n), gains = tl_fetch(a.gain, at, n);
    float x[TL_P], gain[TL_P];
    tl_widen(a.x, xs, x);
    tl_widen(a.gain, gains, gain);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = (x[i] * rstd) * gain[i];
    tl_store(a.out, r.row * a.dim + at, n, x);
  }
  if (r.at == 0) a.rstd[r.row] = rstd;
}

/* --- A warp a row ----------------------------------------------------------------------------- */

/* The tree over the groups' partials, p (groups, 8), for all lanes. */
template <int groups>
TL_GPU float warp_total(const float *p) {
  float v[groups];
#pragma unroll
  for (int g = 0; g < groups; g++) v[g] = tl_tree8(p + g * TL_P);
#pragma unroll
  for (int step = 1; step < TL_DEVICE_WARP; step *= 2)
#pragma unroll
    for (int g = 0; g < groups; g++) v[g] = v[g] + __shfl_xor_sync(0xffffffffu, v[g], step);
#pragma unroll
  for (int step = 1; step < groups; step *= 2)
#pragma unroll
    for (int g = 0; g < groups; g += 2 * step) v[g] = v[g] + v[g + step];
  return v[0];
}

/* `warps` warps share a row: each has `groups` groups, in one span where there are several. */
template <int groups, int spans, int warps>
struct warp_row {
  enum { PIECES = groups * spans };
  static_assert(warps == 1 || (warps == 2 && spans == 1), "a warp's groups follow each other");
  static __device__ __forceinline__ int64_t row() { return tl_thread() / (TL_DEVICE_WARP * warps); }
  static __device__ __forceinline__ int64_t at(int piece) {
    const int first = threadIdx.x / TL_DEVICE_WARP % warps * groups;
    return ((first + piece) * TL_DEVICE_WARP + threadIdx.x % TL_DEVICE_WARP) * TL_P;
  }
  /* The tree over all partials of the row, for all its threads. */
  static __device__ __forceinline__ float total(const float *p) {
    const float own = warp_total<groups>(p);
    if constexpr (warps == 1) return own;
    __shared__ float sums[TL_DEVICE_THREADS / TL_DEVICE_WARP];
    const int warp = threadIdx.x / TL_DEVICE_WARP, first = warp / warps * warps;
    if (threadIdx.x % TL_DEVICE_WARP == 0) sums[warp] = own;
    __syncthreads(); /* those behind the last row have left */
    return sums[first] + sums[first + warps - 1];
  }
  /* Zeros past the row's end, which change no sum. */
  static __device__ __forceinline__ void fetch(const tl_array &a, int64_t row, int64_t dim,
                                               uint4 (&x)[PIECES]) {
#pragma unroll
    for (int i = 0; i < PIECES; i++)
      x[i] = at(i) < dim ? tl_fetch_whole(a, row * dim + at(i)) : make_uint4(0, 0, 0, 0);
  }

  static __device__ __forceinline__ void norm(const tl_norm_args &a) {
    uint4 xs[PIECES];
    float p[groups * TL_P], x[TL_P], gain[TL_P];
    if (row() >= a.rows) return;
    fetch(a.x, row(), a.dim, xs);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      tl_widen_whole(xs[i], x);
      tl_add_dot(p + i % groups * TL_P, x, x, TL_P, i < groups ? 0 : TL_DEVICE_PARTIALS);
    }
    const float rstd = tl_rsqrt(total(p) / (float)a.dim + a.eps);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      if (at(i) >= a.dim) break;
      tl_widen_whole(xs[i], x);
      tl_load_piece(a.gain, at(i), TL_P, gain);
#pragma unroll
      for (int e = 0; e < TL_P; e++) x[e] = (x[e] * rstd) * gain[e];
      tl_store(a.out, row() * a.dim + at(i), TL_P, x);
    }
    if (threadIdx.x % TL_DEVICE_WARP == 0) a.rstd[row()] = rstd;
  }

  /* x, and g = dy * gain. */
  static __device__ __forceinline__ void widen(const tl_norm_args &a, int piece, const uint4 &xs,
                                               const uint4 &dys, float *x, float *g) {
    float gain[TL_P];
    tl_widen_whole(xs, x);
    tl_widen_whole(dys, g);
    tl_load_piece(a.gain, at(piece) < a.dim ? at(piece) : 0, TL_P, gain);
#pragma unroll
    for (int e = 0; e < TL_P; e++) g[e] = g[e] * gain[e];
  }

  static __device__ __forceinline__ void grad(const tl_norm_args &a) {
    uint4 xs[PIECES], dys[PIECES];
    float p[groups * TL_P], x[TL_P], g[TL_P];
    if (row() >= a.rows) return;
    const float rstd = a.rstd[row()];
    fetch(a.x, row(), a.dim, xs);
    fetch(a.dy, row(), a.dim, dys);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      widen(a, i, xs[i], dys[i], x, g);
      const bool past = at(i) >= a.dim; /* its gain is another's: no number times 0 */
#pragma unroll
      for (int e = 0; e < TL_P; e++) g[e] = past ? 0.0f : g[e];
      tl_add_dot(p + i % groups * TL_P, g, x, TL_P, i < groups ? 0 : TL_DEVICE_PARTIALS);
    }
    const float c = (rstd * rstd) * (total(p) / (float)a.dim);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      if (at(i) >= a.dim) break;
      widen(a, i, xs[i], dys[i], x, g);
#pragma unroll
      for (int e = 0; e < TL_P; e++) x[e] = rstd * (g[e] - x[e] * c);
      tl_store(a.out, row() * a.dim + at(i), TL_P, x);
    }
  }
};

#define WARPS(width, groups, spans, warps)                                   \
  TL_KERNEL rms_norm_warps_##width(const __grid_constant__ tl_norm_args a) { \
    warp_row<groups, spans, warps>::norm(a);                                 \
  }
TL_NORM_WARPS(WARPS)
#define GRAD_WARPS(width, groups, spans, warps)                                   \
  TL_KERNEL rms_norm_grad_warps_##width(const __grid_constant__ tl_norm_args a) { \
    warp_row<groups, spans, warps>::grad(a);                                      \
  }
TL_NORM_GRAD_WARPS(GRAD_WARPS)

/* What the gradients read of a row: x, and g = dy * gain. */
TL_GPU void load_gradient(const tl_norm_args &a, int64_t row, int64_t at, int n, float *x,
                          float *g) {
  const tl_bits xs = tl_fetch(a.x, row * a.dim + at, n), dys = tl_fetch(a.dy, row * a.dim + at, n);
  const tl_bits gains = tl_fetch(a.gain, at, n);
  float gain[TL_P];
  tl_widen(a.x, xs, x);
  tl_widen(a.dy, dys, g);
  tl_widen(a.gain, gains, gain);
#pragma unroll
  for (int i = 0; i < TL_P; i++) g[i] = g[i] * gain[i];
}

TL_KERNEL rms_norm_grad_rows(const __grid_constant__ tl_norm_args a) {
  tl_after_earlier();
  __shared__ float shared[TL_P];
  const tl_row_lane r = tl_row_of(a.lanes);
  float p[TL_P], x[TL_P], g[TL_P];
  tl_clear(p);
  for (int64_t at = r.at; r.row < a.rows && at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    load_gradient(a, r.row, at, n, x, g);
    tl_add_dot(p, g, x, n, at);
  }
  const float dot = tl_row_total(p, a.lanes, shared);
  if (r.row >= a.rows) return;
  const float rstd = a.rstd[r.row], c = (rstd * rstd) * (dot / (float)a.dim);
  for (int64_t at = r.at; at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    load_gradient(a, r.row, at, n, x, g);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = rstd * (g[i] - x[i] * c);
    tl_store(a.out, r.row * a.dim + at, n, x);
  }
}

TL_KERNEL layer_norm_rows(const __grid_constant__ tl_norm_args a) {
  tl_after_earlier();
  __shared__ float shared[TL_P];
  const tl_row_lane r = tl_row_of(a.lanes);
  float p[TL_P], x[TL_P];
  tl_clear(p);
  for (int64_t at = r.at; r.row < a.rows && at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    tl_load_piece(a.x, r.row * a.dim + at, n, x);
    tl_add_values(p, x, n);
  }
  const float mean = tl_row_total(p, a.lanes, shared) / (float)a.dim;
  const float rstd = tl_rsqrt(square_sum(a, r, mean, shared) / (float)a.dim + a.eps);
  if (r.row >= a.rows) return;
  for (int64_t at = r.at; at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    const tl_bits xs = tl_fetch(a.x, r.row * a.dim + at, n), gains = tl_fetch(a.gain, at, n);
    const tl_bits biases = tl_fetch(a.bias, at, n);
    float gain[TL_P], bias[TL_P];
    tl_widen(a.x, xs, x);
    tl_widen(a.gain, gains, gain);
    tl_widen(a.bias, biases, bias);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = ((x[i] - mean) * rstd) * gain[i] + bias[i];
    tl_store(a.out, r.row * a.dim + at, n, x);
  }
  if (r.at == 0) {
    a.mean[r.row] = mean;
    a.rstd[r.row] = rstd;
  }
}

TL_KERNEL layer_norm_grad_rows(const __grid_constant__ tl_norm_args a) {
  tl_after_earlier();
  __shared__ float shared[TL_P];
  const tl_row_lane r = tl_row_of(a.lanes);
  const bool live = r.row < a.rows;
  const float mean = live ? a.mean[r.row] : 0.0f, rstd = live ? a.rstd[r.row] : 0.0f;
  float plain[TL_P], product[TL_P], x[TL_P], g[TL_P];
  tl_clear(plain);
  tl_clear(product);
  for (int64_t at = r.at; live && at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    load_gradient(a, r.row, at, n, x, g);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = (x[i] - mean) * rstd;
    tl_add_values(plain, g, n);
    tl_add_dot(product, g, x, n, at);
  }
  const float dim = (float)a.dim;
  const float sum = tl_row_total(plain, a.lanes, shared) / dim;
  const float dot = tl_row_total(product, a.lanes, shared) / dim;
  for (int64_t at = r.at; live && at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    load_gradient(a, r.row, at, n, x, g);
#pragma unroll
    for (int i = 0; i < TL_P; i++) {
      const float h = (x[i] - mean) * rstd;
      x[i] = rstd * ((g[i] - sum) - h * dot);
    }
    tl_store(a.out, r.row * a.dim + at, n, x);
  }
}
