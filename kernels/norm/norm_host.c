/* norm_host.c - the norms on the host: a row at a time, in spans of TL_SPAN elements. */
#include "norm.h"

#include "../math.h"
#include "../rows.h"

/* One span of a row, operands already f32. */
typedef struct span {
  const float *x, *dy, *gain, *bias;
  float *y;
  int64_t n;
} span;

TL_INLINE void add_squares_body(tl_partials *p, const float *x, float mean, int64_t n) {
  float e[TL_SPAN];
  TL_LANES
  for (int64_t i = 0; i < n; i++) e[i] = x[i] - mean;
  tl_partials_dot(p, e, e, n);
}
TL_SIMD_VERSIONS(add_squares, (tl_partials * p, const float *x, float mean, int64_t n),
                 (p, x, mean, n))

TL_INLINE void add_dot_body(tl_partials *p, const float *a, const float *b, int64_t n) {
  tl_partials_dot(p, a, b, n);
}
TL_SIMD_VERSIONS(add_dot, (tl_partials * p, const float *a, const float *b, int64_t n),
                 (p, a, b, n))

TL_INLINE void add_values_body(tl_partials *p, const float *a, int64_t n) {
  tl_partials_add(p, a, n);
}
TL_SIMD_VERSIONS(add_values, (tl_partials * p, const float *a, int64_t n), (p, a, n))

TL_INLINE void total_body(tl_partials *p, float *out) { *out = tl_partials_total(p); }
TL_SIMD_VERSIONS(total, (tl_partials * p, float *out), (p, out))

TL_INLINE void multiply_body(const float *a, const float *b, float *out, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) out[i] = a[i] * b[i];
}
TL_SIMD_VERSIONS(multiply, (const float *a, const float *b, float *out, int64_t n), (a, b, out, n))

TL_INLINE void standardize_body(const float *x, float mean, float rstd, float *out, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) out[i] = (x[i] - mean) * rstd;
}
TL_SIMD_VERSIONS(standardize, (const float *x, float mean, float rstd, float *out, int64_t n),
                 (x, mean, rstd, out, n))

TL_INLINE void rms_span_body(const span *s, float rstd) {
  TL_LANES
  for (int64_t i = 0; i < s->n; i++) s->y[i] = (s->x[i] * rstd) * s->gain[i];
}
TL_SIMD_VERSIONS(rms_span, (const span *s, float rstd), (s, rstd))

TL_INLINE void rms_grad_span_body(const span *s, float rstd, float c) {
  TL_LANES
  for (int64_t i = 0; i < s->n; i++) {
    const float g = s->dy[i] * s->gain[i];
    s->y[i] = rstd * (g - s->x[i] * c);
  }
}
TL_SIMD_VERSIONS(rms_grad_span, (const span *s, float rstd, float c), (s, rstd, c))

TL_INLINE void layer_span_body(const span *s, float mean, float rstd) {
  TL_LANES
  for (int64_t i = 0; i < s->n; i++) {
    s->y[i] = ((s->x[i] - mean) * rstd) * s->gain[i] + s->bias[i];
  }
}
TL_SIMD_VERSIONS(layer_span, (const span *s, float mean, float rstd), (s, mean, rstd))

TL_INLINE void layer_grad_span_body(const span *s, const float *moments) {
  const float mean = moments[0], rstd = moments[1], a = moments[2], b = moments[3];
  TL_LANES
  for (int64_t i = 0; i < s->n; i++) {
    const float g = s->dy[i] * s->gain[i], h = (s->x[i] - mean) * rstd;
    s->y[i] = rstd * ((g - a) - h * b);
  }
}
TL_SIMD_VERSIONS(layer_grad_span, (const span *s, const float *moments), (s, moments))

/* Operands of a call; dy, bias, mean and rstd are NULL where the operator has none. */
typedef struct norm {
  const tl_view *x, *dy, *gain, *bias, *out;
  float *mean, *rstd;
  int64_t dim;
  float eps;
} norm;

typedef struct buffers {
  float x[TL_SPAN], dy[TL_SPAN], gain[TL_SPAN], bias[TL_SPAN], y[TL_SPAN];
} buffers;

/* Elements at .. at + n - 1 of a row, n <= TL_SPAN. */
static span load_span(const norm *k, int64_t row, int64_t at, buffers *b) {
  const int64_t n = k->dim - at < TL_SPAN ? k->dim - at : TL_SPAN, first = row * k->dim + at;
  return (span){.x = tl_load(k->x, first, n, b->x),
                .dy = k->dy == NULL ? NULL : tl_load(k->dy, first, n, b->dy),
                .gain = tl_load(k->gain, at, n, b->gain),
                .bias = k->bias == NULL ? NULL : tl_load(k->bias, at, n, b->bias),
                .y = tl_place(k->out, first, b->y),
                .n = n};
}

static float sum_squares(const norm *k, int64_t row, float mean, buffers *b) {
  tl_partials p;
  float sum;
  tl_partials_clear(&p);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, b);
    add_squares(&p, s.x, mean, s.n);
  }
  total(&p, &sum);
  return sum;
}

static void rms_norm_row(const void *context, int64_t row) {
  const norm *k = context;
  buffers b;
  const float rstd = tl_rsqrt(sum_squares(k, row, 0.0f, &b) / (float)k->dim + k->eps);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, &b);
    rms_span(&s, rstd);
    tl_commit(k->out, row * k->dim + at, s.n, s.y);
  }
  k->rstd[row] = rstd;
}

static void rms_norm_grad_row(const void *context, int64_t row) {
  const norm *k = context;
  buffers b;
  float g[TL_SPAN], dot;
  tl_partials p;
  tl_partials_clear(&p);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, &b);
    multiply(s.dy, s.gain, g, s.n);
    add_dot(&p, g, s.x, s.n);
  }
  total(&p, &dot);
  const float rstd = k->rstd[row], c = (rstd * rstd) * (dot / (float)k->dim);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, &b);
    rms_grad_span(&s, rstd, c);
    tl_commit(k->out, row * k->dim + at, s.n, s.y);
  }
}

static float mean_of_row(const norm *k, int64_t row, buffers *b) {
  tl_partials p;
  float sum;
  tl_partials_clear(&p);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, b);
    add_values(&p, s.x, s.n);
  }
  total(&p, &sum);
  return sum / (float)k->dim;
}

static void layer_norm_row(const void *context, int64_t row) {
  const norm *k = context;
  buffers b;
  const float mean = mean_of_row(k, row, &b);
  const float rstd = tl_rsqrt(sum_squares(k, row, mean, &b) / (float)k->dim + k->eps);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, &b);
    layer_span(&s, mean, rstd);
    tl_commit(k->out, row * k->dim + at, s.n, s.y);
  }
  k->mean[row] = mean;
  k->rstd[row] = rstd;
}

static void layer_norm_grad_row(const void *context, int64_t row) {
  const norm *k = context;
  buffers b;
  float g[TL_SPAN], h[TL_SPAN], sum, dot;
  tl_partials plain, product;
  tl_partials_clear(&plain);
  tl_partials_clear(&product);
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, &b);
    multiply(s.dy, s.gain, g, s.n);
    standardize(s.x, k->mean[row], k->rstd[row], h, s.n);
    add_values(&plain, g, s.n);
    add_dot(&product, g, h, s.n);
  }
  total(&plain, &sum);
  total(&product, &dot);
  const float dim = (float)k->dim;
  const float moments[4] = {k->mean[row], k->rstd[row], sum / dim, dot / dim};
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const span s = load_span(k, row, at, &b);
    layer_grad_span(&s, moments);
    tl_commit(k->out, row * k->dim + at, s.n, s.y);
  }
}

/* Runs `row` for every row of operands that have been checked. */
static tl_status run(const tl_call *call, norm *k, tl_row_task row, const tl_view *mean,
                     const tl_view *rstd) {
  k->dim = tl_view_count(k->gain);
  k->mean = mean == NULL ? NULL : mean->data;
  k->rstd = rstd->data;
  tl_each_row(call->team, tl_view_count(k->x) / k->dim, k->dim, row, k);
  return TL_OK;
}

tl_status tl_host_rms_norm(const tl_call *call) {
  norm k = {.x = &call->in[0], .gain = &call->in[1], .out = &call->out[0], .eps = call->floats[0]};
  TL_TRY(tl_rms_norm_check(call));
  return run(call, &k, rms_norm_row, NULL, &call->out[1]);
}

tl_status tl_host_rms_norm_grad(const tl_call *call) {
  norm k = {.dy = &call->in[0], .x = &call->in[1], .gain = &call->in[2], .out = &call->out[0]};
  TL_TRY(tl_rms_norm_grad_check(call));
  return run(call, &k, rms_norm_grad_row, NULL, &call->in[3]);
}

tl_status tl_host_layer_norm(const tl_call *call) {
  norm k = {.x = &call->in[0],
            .gain = &call->in[1],
            .bias = &call->in[2],
            .out = &call->out[0],
            .eps = call->floats[0]};
  TL_TRY(tl_layer_norm_check(call));
  return run(call, &k, layer_norm_row, &call->out[1], &call->out[2]);
}

tl_status tl_host_layer_norm_grad(const tl_call *call) {
  norm k = {.dy = &call->in[0], .x = &call->in[1], .gain = &call->in[2], .out = &call->out[0]};
  TL_TRY(tl_layer_norm_grad_check(call));
  return run(call, &k, layer_norm_grad_row, &call->in[3], &call->in[4]);
}
