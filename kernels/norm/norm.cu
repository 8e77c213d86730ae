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
