/* attention.c - section 9 of docs/numerics.md, and rope of section 8. */
#include <math.h>
#include <stdlib.h>

#include "oracle.h"

enum { BLOCK_MAX = 1024 };

static const float log2e = 0x1.715476p+0f;

/* log of section 14, for x >= 1. */
static double log64(double x) {
  double k = 0;
  for (; x >= 2; x = x / 2) k = k + 1;
  if (x > 0x1.6a09e667f3bcdp+0) x = x / 2, k = k + 1;
  const double f = x - 1, s = f / (2 + f), z = s * s, w = z * z, half = (0.5 * f) * f;
  const double inner = 0x1.c71c51d8e78afp-3 + w * 0x1.39a09d078c69fp-3;
  const double even = w * (0x1.999999997fa04p-2 + w * inner);
  double odd = 0x1.7466496cb03dep-3 + w * 0x1.2f112df3e5244p-3;
  odd = z * (0x1.5555555555593p-1 + w * (0x1.2492494229359p-2 + w * odd));
  const double low = s * (half + (odd + even)) + k * 0x1.a39ef35793c76p-33;
  return k * 0x1.62e42feep-1 - ((half - low) - f);
}

/* ms of section 8, of waves that are stretched by 3. */
static double loudness(double m) { return (0.1 * m) * log64(3) + 1; }

static float scale_of(const attention *a) {
  const double m = a->c->yarn ? loudness(0.7) : 1.0;
  return (float)(1.0 / sqrt((double)a->width) * (m * m));
}

/* A row and head among those of q and o, and among those of k and v. */
static int64_t query_at(const attention *a, int64_t row, int64_t head) {
  return row * a->c->heads + head;
}

static int64_t key_at(const attention *a, int64_t row, int64_t head) {
  return row * a->c->kv_heads + head / (a->c->heads / a->c->kv_heads);
}

static float score(const attention *a, int64_t query, int64_t key, int64_t head) {
  return chain(0.0f, a->q + query_at(a, query, head) * a->width, 1,
               a->k + key_at(a, key, head) * a->width, 1, a->width, a->c->bf16);
}

typedef struct part {
  float m, t, l[4], o[256];
} part;

/* The first key that a query sees; both count from the segment's start. */
static int64_t first_key(const attention *a, int64_t query) {
  const int64_t window = a->c->window;
  return window > 0 && query >= window ? query - window + 1 : 0;
}

/* Keys first .. last of one block, counted from the segment's start; those before the first that
** the row sees take no part, and in bf16 have weight +0. */
static void add_block(const attention *a, part *p, int64_t row, int64_t head, int64_t first,
                      int64_t last) {
  const int64_t seen_first = first_key(a, row - a->b->start[row]);
  const int64_t before = seen_first > first ? seen_first - first : 0;
  const int64_t start = a->b->start[row], stride = a->c->kv_heads * a->value_width;
  const float c = scale_of(a) * log2e;
  float s[BLOCK_MAX], weight[BLOCK_MAX] = {0};
  for (int64_t j = first + before; j <= last; j++) {
    s[j - first] = score(a, row, start + j, head);
    if (s[j - first] > p->m) p->m = s[j - first];
  }
  const float u = p->m * c, factor = u == p->t ? 1.0f : exp2_f32(p->t - u);
  p->t = u;
  for (int r = 0; r < 4; r++) p->l[r] = p->l[r] * factor;
  for (int64_t j = before; j <= last - first; j++) {
    const float e = exp2_f32(fmaf(s[j], c, -p->t));
    p->l[j % 8 / 2] = p->l[j % 8 / 2] + e;
    weight[j] = rounded(e, a->c->bf16);
  }
  const int64_t from = a->c->bf16 ? 0 : before;
  const float *v = a->v + key_at(a, start + first + from, head) * a->value_width;
  for (int64_t i = 0; i < a->value_width; i++)
    p->o[i] = chain(p->o[i] * factor, weight + from, 1, v + i, stride, last - first + 1 - from,
                    a->c->bf16);
}

/* Merges a later part; l[0] holds its whole sum. */
static void merge(const attention *a, part *state, const part *p) {
  const float u = state->t > p->t ? state->t : p->t;
  const float f = u == state->t ? 1.0f : exp2_f32(state->t - u);
  const float g = u == p->t ? 1.0f : exp2_f32(p->t - u);
  state->t = u;
  state->l[0] = state->l[0] * f + p->l[0] * g;
  for (int64_t i = 0; i < a->value_width; i++) state->o[i] = state->o[i] * f + p->o[i] * g;
}

static part row_state(const attention *a, int64_t row, int64_t head) {
  const int64_t query = row - a->b->start[row], block = a->c->kv_block;
  const int64_t seen = first_key(a, query);
  int parts = 0;
  part state = {0};
  for (int64_t begin = 0; begin <= query; begin += a->c->split) {
    if (begin + a->c->split <= seen) continue;
    part p = {.m = -INFINITY, .t = -INFINITY};
    for (int64_t first = begin; first <= query && first < begin + a->c->split; first += block)
      if (first + block > seen)
        add_block(a, &p, row, head, first, first + block - 1 < query ? first + block - 1 : query);
    p.l[0] = (p.l[0] + p.l[1]) + (p.l[2] + p.l[3]);
    if (parts++ == 0)
      state = p;
    else
      merge(a, &state, &p);
  }
  return state;
}

void attention_value(const attention *a, float *o, float *lse) {
  for (int64_t row = 0; row < a->c->tokens; row++) {
    for (int64_t head = 0; head < a->c->heads; head++) {
      const part p = row_state(a, row, head);
      float *out = o + query_at(a, row, head) * a->value_width;
      for (int64_t i = 0; i < a->value_width; i++) out[i] = rounded(p.o[i] / p.l[0], a->c->bf16);
      lse[row * a->c->heads + head] = p.t + log2_f32(p.l[0]);
    }
  }
}

/* --- backward --------------------------------------------------------------------------------- */

/* bf(p) and bf(ds) of a segment and a query head, [query][key], 0 where the key is not seen. */
static void weights_of(const attention *a, const attention_grads *g, int64_t start, int64_t n,
                       int64_t head, float *weight, float *slope) {
  const float c = scale_of(a) * log2e;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = query_at(a, start + i, head) * a->value_width;
    const float *dy = g->dy + at, delta = rule(dy, g->o + at, a->value_width);
    const float lse = g->lse[(start + i) * a->c->heads + head];
    for (int64_t j = 0; j < n; j++) {
      weight[i * n + j] = slope[i * n + j] = 0.0f;
      if (j > i || j < first_key(a, i)) continue;
      const float p = exp2_f32(fmaf(score(a, start + i, start + j, head), c, -lse));
      const float *v = a->v + key_at(a, start + j, head) * a->value_width;
      const float along = chain(0.0f, dy, 1, v, 1, a->value_width, a->c->bf16);
      weight[i * n + j] = rounded(p, a->c->bf16);
      slope[i * n + j] = rounded(p * (along - delta), a->c->bf16);
    }
  }
}

static int64_t head_leaves(const config *c) {
  int64_t g = c->leaves_tp, rest = c->heads;
  while (rest != 0) {
    const int64_t next = g % rest;
    g = rest;
    rest = next;
  }
  return g % c->kv_heads == 0 && g / c->kv_heads > 1 ? g / c->kv_heads : 1;
}

/* What the passes over one segment need. */
typedef struct segment {
  int64_t start, n;
  float *weight, *slope; /* [head][query][key] */
} segment;

static void queries(const attention *a, const attention_grads *g, const segment *s) {
  const float scale = scale_of(a);
  const int64_t stride = a->c->kv_heads * a->width;
  for (int64_t head = 0; head < a->c->heads; head++)
    for (int64_t i = 0; i < s->n; i++)
      for (int64_t e = 0; e < a->width; e++) {
        const int64_t from = a->c->bf16 ? 0 : first_key(a, i);
        const float *along = s->slope + (head * s->n + i) * s->n + from;
        const float *k = a->k + key_at(a, s->start + from, head) * a->width + e;
        const float sum = chain(0.0f, along, 1, k, stride, i + 1 - from, a->c->bf16);
        g->dq[query_at(a, s->start + i, head) * a->width + e] = rounded(scale * sum, a->c->bf16);
      }
}

/* The sum over queries of factor[head][query][j] times channel e of rows (tokens, heads, width),
** for key j of KV head `kv`. In f32 queries that do not see j take no part; in bf16 the steps count
** from the segment's start. */
static float key_sum(const attention *a, const segment *s, const float *factor, const float *rows,
                     int64_t width, int64_t kv, int64_t j, int64_t e) {
  const config *c = a->c;
  const int64_t leaves = head_leaves(c), group = c->heads / c->kv_heads, each = group / leaves;
  const int64_t first = c->bf16 ? 0 : j, stride = c->heads * width;
  const int64_t beyond = !c->bf16 && c->window > 0 && j + c->window < s->n ? j + c->window : s->n;
  float sum[64];
  for (int64_t leaf = 0; leaf < leaves; leaf++) {
    sum[leaf] = 0.0f;
    for (int64_t h = 0; h < each; h++) {
      const int64_t head = kv * group + leaf * each + h;
      const float *along = factor + (head * s->n + first) * s->n + j;
      const float *row = rows + query_at(a, s->start + first, head) * width + e;
      sum[leaf] = chain(sum[leaf], along, s->n, row, stride, beyond - first, c->bf16);
    }
  }
  tree(sum, leaves, 1);
  return sum[0];
}

/* dk and dv of key j of KV head `kv`. */
static void key(const attention *a, const attention_grads *g, const segment *s, int64_t kv,
                int64_t j) {
  const int64_t at = (s->start + j) * a->c->kv_heads + kv;
  for (int64_t e = 0; e < a->width; e++) {
    const float sum = key_sum(a, s, s->slope, a->q, a->width, kv, j, e);
    g->dk[at * a->width + e] = rounded(scale_of(a) * sum, a->c->bf16);
  }
  for (int64_t e = 0; e < a->value_width; e++) {
    const float sum = key_sum(a, s, s->weight, g->dy, a->value_width, kv, j, e);
    g->dv[at * a->value_width + e] = rounded(sum, a->c->bf16);
  }
}

void attention_gradient(const attention *a, const attention_grads *g) {
  const config *c = a->c;
  for (int64_t start = 0; start < c->tokens; start = a->b->end[start]) {
    const int64_t n = a->b->end[start] - start;
    segment s = {.start = start, .n = n};
    s.weight = zeroed(c->heads * n * n, sizeof *s.weight);
    s.slope = zeroed(c->heads * n * n, sizeof *s.slope);
    for (int64_t head = 0; head < c->heads; head++)
      weights_of(a, g, start, n, head, s.weight + head * n * n, s.slope + head * n * n);
    queries(a, g, &s);
    for (int64_t kv = 0; kv < c->kv_heads; kv++)
      for (int64_t j = 0; j < n; j++) key(a, g, &s, kv, j);
    free(s.weight);
    free(s.slope);
  }
}

/* --- rope ------------------------------------------------------------------------------------- */

static double log2_f64(double x) {
  double e = 0, s = 1.0 / 41;
  for (; x >= 2; x = x / 2) e = e + 1;
  for (; x < 1; x = x * 2) e = e - 1;
  const double z = (x - 1) / (x + 1), q = z * z;
  for (int i = 39; i >= 1; i -= 2) s = s * q + 1.0 / i;
  return e + (2 / 0x1.62e42fefa39efp-1) * (z * s);
}

static double exp2_f64(double x) {
  const int n = (int)(x < 0 ? x - 0.5 : x + 0.5);
  const double t = (x - n) * 0x1.62e42fefa39efp-1;
  double y = 1;
  for (int i = 20; i >= 1; i--) y = 1 + t / i * y;
  return ldexp(y, n);
}

/* The pair that turns so many times in the 32 tokens that stretched waves have here. */
static double turning(double turns, double d, double base) {
  const double waves = 32.0 / (turns * (2 * 0x1.921fb54442d18p+1));
  return d * log2_f64(waves) / (2 * log2_f64(base));
}

/* Waves that turn less than once are slowed by 3, those that turn more than 4 times kept. */
static double stretched(double f, double i, double d, double base) {
  const double from = fmax(floor(turning(4, d, base)), 0);
  double to = fmin(ceil(turning(1, d, base)), d - 1);
  if (to == from) to = to + 0.001;
  const double ramp = fmin(fmax((i - from) / (to - from), 0), 1);
  return f / 3 * ramp + f * (1 - ramp);
}

/* llama3's: long waves are slowed by 3, short ones kept, and those between are mixed. */
static double long_slowed(double f) {
  const double factor = 3, original = 32, low = 1, high = 4;
  const double wave = 2 * 0x1.921fb54442d18p+1 / f;
  if (wave > original / low) return f / factor;
  if (wave < original / high) return f;
  const double t = (original / wave - low) / (high - low);
  return (1 - t) * (f / factor) + t * f;
}

void rope(const attention *a, const float *x, int64_t heads, float sign, float *y) {
  const int64_t width = a->width, pairs = width / 2, near = a->c->mla;
  const double base = a->c->mla ? 100 : 10000;
  const float loud = a->c->yarn ? (float)(loudness(1) / loudness(0.7)) : 1.0f;
  for (int64_t i = 0; i < pairs; i++) {
    const double power = -((double)(2 * i) / (double)width) * log2_f64(base);
    double wave = exp2_f64(power);
    if (a->c->waves == 1) wave = long_slowed(wave);
    if (a->c->waves == 2) wave = wave / 3;
    if (a->c->yarn) wave = stretched(wave, (double)i, (double)width, base);
    const float f = (float)wave;
    for (int64_t row = 0; row < a->c->tokens; row++) {
      const float angle = (float)(row - a->b->start[row]) * f;
      const float cosine = cos_f32(angle) * loud, sine = sign * (sin_f32(angle) * loud);
      for (int64_t head = 0; head < heads; head++) {
        const int64_t at = (row * heads + head) * width + (near ? 2 * i : i);
        const int64_t other = at + (near ? 1 : pairs);
        const float first = x[at], second = x[other];
        y[at] = rounded(fmaf(first, cosine, -(second * sine)), a->c->bf16);
        y[other] = rounded(fmaf(second, cosine, first * sine), a->c->bf16);
      }
    }
  }
}
