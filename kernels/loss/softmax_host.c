/* softmax_host.c - the operators over rows of logits on the host, in spans of TL_SPAN columns. */
#include "../math.h"
#include "../rows.h"
#include "loss.h"

/* Operands and numbers of a call, as far as the operator has them. */
typedef struct logits {
  const tl_view *z, *dz;
  const float *m, *s, *drow; /* drow: dloss or dlse */
  const int32_t *targets;
  float *out_m, *out_s, *out_zt, *out_zsum;
  int64_t width, columns, first, leaves, vocab;
  float smoothing, weight;
} logits;

enum { LANES = 16 };

TL_INLINE void largest_body(const float *z, int64_t n, float *best) {
  float lane[LANES];
  for (int i = 0; i < LANES; i++) lane[i] = *best;
  int64_t at = 0;
  for (; at + LANES <= n; at += LANES) {
    for (int i = 0; i < LANES; i++) lane[i] = z[at + i] > lane[i] ? z[at + i] : lane[i];
  }
  for (; at < n; at++) lane[0] = z[at] > lane[0] ? z[at] : lane[0];
  for (int i = 0; i < LANES; i++) *best = lane[i] > *best ? lane[i] : *best;
}
TL_SIMD_VERSIONS(largest, (const float *z, int64_t n, float *best), (z, n, best))

TL_INLINE void arguments_body(const float *z, float m, float *e, int64_t n) {
  const float t = m * TL_LOG2E;
  TL_LANES
  for (int64_t i = 0; i < n; i++) e[i] = fmaf(z[i], TL_LOG2E, -t);
}
TL_SIMD_VERSIONS(arguments, (const float *z, float m, float *e, int64_t n), (z, m, e, n))

/* e = exp(z - m), as loss.h says. */
static void exponentials(const float *z, float m, float *e, int64_t n) {
  arguments(z, m, e, n);
  tl_exp2_many(e, e, n);
}

TL_INLINE void add_differences_body(tl_partials *p, const float *z, float m, int64_t n) {
  float d[TL_SPAN];
  TL_LANES
  for (int64_t i = 0; i < n; i++) d[i] = z[i] - m;
  tl_partials_add(p, d, n);
}
TL_SIMD_VERSIONS(add_differences, (tl_partials * p, const float *z, float m, int64_t n),
                 (p, z, m, n))

TL_INLINE void add_values_body(tl_partials *p, const float *a, int64_t n) {
  tl_partials_add(p, a, n);
}
TL_SIMD_VERSIONS(add_values, (tl_partials * p, const float *a, int64_t n), (p, a, n))

TL_INLINE void total_body(tl_partials *p, float *out) { *out = tl_partials_total(p); }
TL_SIMD_VERSIONS(total, (tl_partials * p, float *out), (p, out))

static void max_row(const void *context, int64_t row) {
  const logits *k = context;
  float buffer[TL_SPAN], best = -INFINITY;
  for (int64_t at = 0; at < k->columns; at += TL_SPAN) {
    const int64_t n = k->columns - at < TL_SPAN ? k->columns - at : TL_SPAN;
    largest(tl_load(k->z, row * k->width + at, n, buffer), n, &best);
  }
  k->out_m[row] = best + 0.0f;
}

/* The two sums of run `leaf`. */
static void sum_run(const logits *k, int64_t row, int64_t leaf, float *s, float *zsum) {
  const int64_t length = k->width / k->leaves, start = leaf * length;
  const int64_t end = start + length < k->columns ? start + length : k->columns;
  float buffer[TL_SPAN], e[TL_SPAN];
  tl_partials exponents, differences;
  tl_partials_clear(&exponents);
  tl_partials_clear(&differences);
  for (int64_t at = start; at < end; at += TL_SPAN) {
    const int64_t n = end - at < TL_SPAN ? end - at : TL_SPAN;
    const float *z = tl_load(k->z, row * k->width + at, n, buffer);
    exponentials(z, k->m[row], e, n);
    add_values(&exponents, e, n);
    add_differences(&differences, z, k->m[row], n);
  }
  total(&exponents, s);
  total(&differences, zsum);
}

static void sum_row(const void *context, int64_t row) {
  const logits *k = context;
  float s[TL_LOSS_LEAVES_MAX], zsum[TL_LOSS_LEAVES_MAX], one;
  for (int64_t leaf = 0; leaf < k->leaves; leaf++) sum_run(k, row, leaf, &s[leaf], &zsum[leaf]);
  const int64_t target = (int64_t)k->targets[row] - k->first;
  const int owned = k->targets[row] >= 0 && target >= 0 && target < k->columns;
  k->out_s[row] = tl_tree(s, k->leaves);
  k->out_zsum[row] = tl_tree(zsum, k->leaves);
  k->out_zt[row] = owned ? *tl_load(k->z, row * k->width + target, 1, &one) + 0.0f : 0.0f;
}

/* dz = q * drow, without the target's term. `tail` is (2 z)(m + log s), left out when 0. */
typedef struct slope {
  float s, drow, uniform, tail;
} slope;

TL_INLINE void slopes_body(const float *e, float *dz, int64_t n, const slope *k) {
  const float s = k->s, drow = k->drow, uniform = k->uniform, tail = k->tail;
  if (uniform == 0.0f && tail == 0.0f) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) dz[i] = (e[i] / s) * drow;
  } else if (tail == 0.0f) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) dz[i] = (e[i] / s - uniform) * drow;
  } else {
    TL_LANES
    for (int64_t i = 0; i < n; i++) {
      const float p = e[i] / s, q = uniform == 0.0f ? p : p - uniform;
      dz[i] = (q + tail * p) * drow;
    }
  }
}
TL_SIMD_VERSIONS(slopes, (const float *e, float *dz, int64_t n, const slope *k), (e, dz, n, k))

/* The target's own column, in loss.h's order. */
static float target_slope(const logits *k, const slope *c, float e) {
  const float p = e / c->s;
  float q = p;
  if (k->smoothing != 0.0f) q = q - c->uniform;
  q = q - (1.0f - k->smoothing);
  if (k->weight != 0.0f) q = q + c->tail * p;
  return q * c->drow;
}

static void grad_row(const void *context, int64_t row) {
  const logits *k = context;
  const int ignored = k->targets != NULL && k->targets[row] < 0;
  const int64_t target = k->targets == NULL || ignored ? -1 : (int64_t)k->targets[row] - k->first;
  const float m = k->m[row], s = k->s[row];
  const slope c = {.s = s,
                   .drow = k->drow[row],
                   .uniform = k->smoothing == 0.0f ? 0.0f : k->smoothing / (float)k->vocab,
                   .tail = k->weight == 0.0f ? 0.0f : (2.0f * k->weight) * (m + tl_log(s))};
  float in[TL_SPAN], e[TL_SPAN], out[TL_SPAN];
  for (int64_t at = 0; at < k->width; at += TL_SPAN) {
    const int64_t n = k->width - at < TL_SPAN ? k->width - at : TL_SPAN;
    const int64_t left = k->columns - at, first = row * k->width + at;
    const int64_t live = ignored || left < 0 ? 0 : left < n ? left : n;
    float *dz = tl_place(k->dz, first, out);
    exponentials(tl_load(k->z, first, live, in), m, e, live);
    slopes(e, dz, live, &c);
    if (target >= at && target < at + live) dz[target - at] = target_slope(k, &c, e[target - at]);
    for (int64_t i = live; i < n; i++) dz[i] = 0.0f;
    tl_commit(k->dz, first, n, dz);
  }
}

/* Sets the width and the true columns of k->z; returns its rows. */
static int64_t take_rows(logits *k, int64_t columns) {
  k->width = tl_view_row(k->z);
  k->columns = columns;
  return k->z->shape[0];
}

tl_status tl_host_row_max(const tl_call *call) {
  TL_TRY(tl_row_max_check(call));
  logits k = {.z = &call->in[0], .out_m = call->out[0].data};
  const int64_t rows = take_rows(&k, call->ints[0]);
  tl_each_row(call->team, rows, k.width, max_row, &k);
  return TL_OK;
}

tl_status tl_host_row_sum_exp(const tl_call *call) {
  TL_TRY(tl_row_sum_exp_check(call));
  logits k = {.z = &call->in[0],
              .m = call->in[1].data,
              .targets = call->in[2].data,
              .out_s = call->out[0].data,
              .out_zt = call->out[1].data,
              .out_zsum = call->out[2].data,
              .first = call->ints[1],
              .leaves = call->ints[2]};
  const int64_t rows = take_rows(&k, call->ints[0]);
  tl_each_row(call->team, rows, k.width, sum_row, &k);
  return TL_OK;
}

tl_status tl_host_cross_entropy_grad(const tl_call *call) {
  TL_TRY(tl_cross_entropy_grad_check(call));
  logits k = {.z = &call->in[0],
              .m = call->in[1].data,
              .s = call->in[2].data,
              .targets = call->in[3].data,
              .drow = call->in[4].data,
              .dz = &call->out[0],
              .first = call->ints[1],
              .vocab = call->ints[2],
              .smoothing = call->floats[0],
              .weight = call->floats[1]};
  const int64_t rows = take_rows(&k, call->ints[0]);
  tl_each_row(call->team, rows, k.width, grad_row, &k);
  return TL_OK;
}

tl_status tl_host_logsumexp_grad(const tl_call *call) {
  TL_TRY(tl_logsumexp_grad_check(call));
  logits k = {.z = &call->in[0],
              .m = call->in[1].data,
              .s = call->in[2].data,
              .drow = call->in[3].data,
              .dz = &call->out[0]};
  const int64_t rows = take_rows(&k, call->ints[0]);
  tl_each_row(call->team, rows, k.width, grad_row, &k);
  return TL_OK;
}
