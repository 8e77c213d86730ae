/* operators.c - sections 8, 10 and 11 of docs/numerics.md, one operator on whole arrays. */
#include <math.h>
#include <stdlib.h>

#include "oracle.h"

void multiply(const product *p, float *out) {
  float leaf[64];
  for (int64_t t = 0; t < p->rows; t++) {
    for (int64_t n = 0; n < p->n; n++) {
      for (int64_t j = 0; j < p->leaves; j++) {
        const int64_t first = p->borders[j], count = p->borders[j + 1] - first;
        leaf[j] = chain(0.0f, p->a + t * p->k + first, 1, p->b + n * p->k + first, 1, count,
                        p->factors_bf16);
      }
      tree(leaf, p->leaves, 1);
      if (p->bias != NULL) leaf[0] = leaf[0] + p->bias[n];
      out[t * p->n + n] = rounded(leaf[0], p->out_bf16);
    }
  }
}

/* --- norms ------------------------------------------------------------------------------------ */

void norm_value(const norm *n, float *y) {
  const float eps = n->layer ? (float)1e-5 : (float)1e-6, d = (float)n->d;
  float *e = zeroed(n->d, sizeof *e);
  for (int64_t t = 0; t < n->rows; t++) {
    const float *x = n->x + t * n->d;
    n->mean[t] = n->layer ? rule(x, NULL, n->d) / d : 0.0f;
    for (int64_t i = 0; i < n->d; i++) e[i] = n->layer ? x[i] - n->mean[t] : x[i];
    const float rstd = n->rstd[t] = 1.0f / sqrtf(rule(e, e, n->d) / d + eps);
    for (int64_t i = 0; i < n->d; i++) {
      const float scaled = (e[i] * rstd) * n->gain[i];
      y[t * n->d + i] = rounded(n->layer ? scaled + n->bias[i] : scaled, n->bf16);
    }
  }
  free(e);
}

void norm_gradient(const norm *n, const float *dy, float *dx) {
  const float d = (float)n->d;
  float *g = zeroed(n->d, sizeof *g), *h = zeroed(n->d, sizeof *h);
  for (int64_t t = 0; t < n->rows; t++) {
    const float *x = n->x + t * n->d, rstd = n->rstd[t];
    for (int64_t i = 0; i < n->d; i++) {
      g[i] = dy[t * n->d + i] * n->gain[i];
      h[i] = (x[i] - n->mean[t]) * rstd;
    }
    const float c = (rstd * rstd) * (rule(g, x, n->d) / d);
    const float a = rule(g, NULL, n->d) / d, b = rule(g, h, n->d) / d;
    for (int64_t i = 0; i < n->d; i++) {
      const float rms = rstd * (g[i] - x[i] * c), layer = rstd * ((g[i] - a) - h[i] * b);
      dx[t * n->d + i] = rounded(n->layer ? layer : rms, n->bf16);
    }
  }
  free(g);
  free(h);
}

/* --- gelu ------------------------------------------------------------------------------------- */

static const float A = 0.797884561f, B = 0.044715f, C = 0.134145f;

float gelu(float x) { return (0.5f * x) * (1.0f + tanh_f32(A * (x + B * ((x * x) * x)))); }

float gelu_gradient(float dy, float x) {
  const float t = tanh_f32(A * (x + B * ((x * x) * x)));
  const float u = (1.0f - t * t) * (A * (1.0f + C * (x * x)));
  return dy * (0.5f * (1.0f + t) + (0.5f * x) * u);
}

/* --- 10: the loss ----------------------------------------------------------------------------- */

typedef struct softmax {
  float m, s, zsum;
} softmax;

static float E(float x, float m) {
  const float log2e = 0x1.715476p+0f;
  return exp2_f32(fmaf(x, log2e, -(m * log2e)));
}

static softmax softmax_of(const config *c, const float *z) {
  softmax r = {.m = -INFINITY};
  const int64_t width = c->vocab_padded / c->leaves_tp;
  float s[64] = {0}, zsum[64] = {0};
  float *e = zeroed(width, sizeof *e), *difference = zeroed(width, sizeof *difference);
  for (int64_t j = 0; j < c->vocab; j++) r.m = z[j] > r.m ? z[j] : r.m;
  r.m = r.m + 0.0f;
  for (int64_t j = 0; j < c->leaves_tp; j++) {
    int64_t count = 0;
    for (; count < width && j * width + count < c->vocab; count++) {
      e[count] = E(z[j * width + count], r.m);
      difference[count] = z[j * width + count] - r.m;
    }
    s[j] = rule(e, NULL, count);
    zsum[j] = rule(difference, NULL, count);
  }
  tree(s, c->leaves_tp, 1);
  tree(zsum, c->leaves_tp, 1);
  r.s = s[0];
  r.zsum = zsum[0];
  free(e);
  free(difference);
  return r;
}

static float loss_of(const config *c, const softmax *r, float zt) {
  const float smoothing = (float)c->smoothing, zw = (float)c->z, l = log_f32(r->s);
  float loss = l - (zt - r->m);
  if (smoothing != 0)
    loss = (1.0f - smoothing) * loss + smoothing * (l - r->zsum / (float)c->vocab);
  if (zw != 0) loss = loss + zw * ((r->m + l) * (r->m + l));
  return loss;
}

void cross_entropy(const config *c, const batch *b, const float *z, float *loss, float *dz) {
  const float smoothing = (float)c->smoothing, zw = (float)c->z;
  const float dloss = b->targets > 0 ? 1.0f / (float)b->targets : 0.0f;
  for (int64_t t = 0; t < c->tokens; t++, z += c->vocab_padded, dz += c->vocab_padded) {
    const int64_t target = b->target[t];
    loss[t] = 0.0f;
    for (int64_t j = 0; j < c->vocab_padded; j++) dz[j] = 0.0f;
    if (target < 0) continue;
    const softmax r = softmax_of(c, z);
    loss[t] = loss_of(c, &r, z[target] + 0.0f);
    for (int64_t j = 0; j < c->vocab; j++) {
      const float p = E(z[j], r.m) / r.s;
      float q = p;
      if (smoothing != 0) q = q - smoothing / (float)c->vocab;
      if (j == target) q = q - (1.0f - smoothing);
      if (zw != 0) q = q + ((2.0f * zw) * (r.m + log_f32(r.s))) * p;
      dz[j] = rounded(q * dloss, c->bf16);
    }
  }
}
