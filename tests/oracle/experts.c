/* experts.c - section 17 of docs/numerics.md: the router, its experts and what combines them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

typedef enum router { SOFTMAX, SIGMOID, SQRT_SOFTPLUS, HASH } router;
enum { EXPERTS_MAX = 64 };

static const float log2e = 0x1.715476p+0f;

/* --- router ----------------------------------------------------------------------------------- */

static float softplus_root(float z) {
  if (z > 20.0f) return sqrtf(z);
  const float u = exp2_f32(z * log2e), w = 1.0f + u;
  return sqrtf(w == 1.0f ? u : log_f32(w) * (u / (w - 1.0f)));
}

static void scores_of(const config *c, const float *z, float *s) {
  float m = -INFINITY;
  for (int64_t j = 0; j < c->experts; j++) m = z[j] > m ? z[j] : m;
  for (int64_t j = 0; j < c->experts; j++) {
    if (c->router == SOFTMAX) s[j] = exp2_f32(fmaf(z[j], log2e, -(m * log2e)));
    if (c->router == SIGMOID) s[j] = sigmoid_f32(z[j]);
    if (c->router >= SQRT_SOFTPLUS) s[j] = softplus_root(z[j]);
  }
  const float total = rule(s, NULL, c->experts);
  for (int64_t j = 0; c->router == SOFTMAX && j < c->experts; j++) s[j] = s[j] / total;
}

/* The lowest index of the largest number that is not taken. */
static int64_t best_of(const float *x, const int *taken, int64_t n) {
  int64_t best = -1;
  for (int64_t j = 0; j < n; j++)
    if (!taken[j] && (best < 0 || x[j] > x[best])) best = j;
  return best;
}

static void drop_groups(const config *c, const float *choice, int *taken) {
  const int64_t each = c->experts / c->groups;
  float counts[EXPERTS_MAX];
  int stays[EXPERTS_MAX] = {0};
  for (int64_t g = 0; g < c->groups; g++) {
    int seen[EXPERTS_MAX] = {0};
    const float *own = choice + g * each;
    const int64_t first = best_of(own, seen, each);
    seen[first] = 1;
    counts[g] = own[first];
    if (c->router != SOFTMAX && each > 1) counts[g] = own[first] + own[best_of(own, seen, each)];
  }
  for (int64_t i = 0; i < c->top_groups; i++) stays[best_of(counts, stays, c->groups)] = 1;
  for (int64_t j = 0; j < c->experts; j++) taken[j] = !stays[j / each];
}

/* What the router makes of one token. */
typedef struct routing {
  float s[EXPERTS_MAX], total;
  int32_t *expert; /* (top_k) */
  float *weight;   /* (top_k) */
} routing;

static void route(const model *m, const node *n, int64_t t, routing *r) {
  const config *c = m->c;
  const float *fixed = n->w[0] != NULL ? n->w[0]->value : NULL; /* biases, or the hash's table */
  float choice[EXPERTS_MAX];
  int taken[EXPERTS_MAX] = {0};
  r->expert = n->chosen + t * c->top_k, r->weight = n->mix + t * c->top_k;
  scores_of(c, n->in[1]->x + t * c->experts, r->s);
  for (int64_t j = 0; j < c->experts; j++)
    choice[j] = c->router != HASH && fixed != NULL ? r->s[j] + fixed[j] : r->s[j];
  if (c->groups > 1) drop_groups(c, choice, taken);
  r->total = 0.0f;
  for (int64_t i = 0; i < c->top_k; i++) {
    r->expert[i] = (int32_t)(c->router == HASH ? fixed[m->b->id[t] * c->top_k + i]
                                               : best_of(choice, taken, c->experts));
    taken[r->expert[i]] = 1;
    r->total = r->total + r->s[r->expert[i]];
  }
  if (c->router != SOFTMAX) r->total = r->total + 1e-20f;
  for (int64_t i = 0; i < c->top_k; i++) {
    const float s = r->s[r->expert[i]];
    r->weight[i] = (c->normalize ? s / r->total : s) * (float)c->scale;
  }
}

/* --- forward ---------------------------------------------------------------------------------- */

/* y (rows of w) = a row of x times w. */
static void row_product(const config *c, const float *x, const weight *w, float *y) {
  for (int64_t i = 0; i < w->rows; i++)
    y[i] = rounded(chain(0.0f, x, 1, w->value + i * w->cols, 1, w->cols, c->bf16), c->bf16);
}

/* The expert of row r = token * top_k + slot, and its numbers. */
static void expert_value(const config *c, const node *n, int64_t r) {
  weight *const *w = n->expert + 3 * n->chosen[r];
  float *gate = n->gate + r * c->hidden, *up = n->up + r * c->hidden, *act = n->act + r * c->hidden;
  const float *x = n->in[0]->x + r / c->top_k * c->dim;
  row_product(c, x, w[0], gate);
  row_product(c, x, w[1], up);
  for (int64_t i = 0; i < c->hidden; i++)
    act[i] = rounded((gate[i] * sigmoid_f32(gate[i])) * up[i], c->bf16);
  row_product(c, act, w[2], n->slot + r * c->dim);
}

/* bias + sign * speed for the next step. */
static void move_bias(const config *c, const node *n) {
  int64_t rows[EXPERTS_MAX] = {0};
  for (int64_t r = 0; r < c->tokens * c->top_k; r++) rows[n->chosen[r]]++;
  for (int64_t j = 0; j < c->experts; j++) {
    const int64_t rest = c->tokens * c->top_k - c->experts * rows[j];
    const float sign = rest > 0 ? 1.0f : rest < 0 ? -1.0f : 0.0f;
    n->w[0]->m[j] = n->w[0]->value[j] + sign * (float)c->balance;
  }
}

void experts_value(const model *m, const node *n) {
  const config *c = m->c;
  for (int64_t t = 0; t < c->tokens; t++) {
    routing r;
    route(m, n, t, &r);
    for (int64_t i = 0; i < c->top_k; i++) expert_value(c, n, t * c->top_k + i);
    for (int64_t d = 0; d < c->dim; d++) {
      float a = 0.0f;
      for (int64_t i = 0; i < c->top_k; i++)
        a = fmaf(r.weight[i], n->slot[(t * c->top_k + i) * c->dim + d], a);
      if (n->in[2] != NULL) a = a + n->in[2]->x[t * c->dim + d];
      n->out[0]->x[t * c->dim + d] = rounded(a, c->bf16);
    }
  }
  if (n->w[0] != NULL && c->router != HASH) move_bias(c, n);
}

/* --- backward --------------------------------------------------------------------------------- */

/* f * load of each expert in the sample of token t. */
static void slopes_of_balance(const config *c, const node *n, int64_t t, float *slope) {
  const double length = (double)c->length;
  const float f = (float)(c->balance * (double)c->experts / (length * length * (double)c->samples));
  const int64_t first = t / c->length * c->length * c->top_k;
  for (int64_t j = 0; j < c->experts; j++) {
    int64_t load = 0;
    for (int64_t i = 0; i < c->length * c->top_k; i++) load += n->chosen[first + i] == j;
    slope[j] = f * (float)load;
  }
}

/* dz of one token; d (top_k): the gradients of its weights. */
static void router_gradient(const model *m, const node *n, int64_t t, const float *d, float *dz) {
  const config *c = m->c;
  const float scale = (float)c->scale, *z = n->in[1]->x + t * c->experts;
  float g = 0.0f, of[EXPERTS_MAX] = {0}, slope[EXPERTS_MAX];
  routing r;
  route(m, n, t, &r);
  for (int64_t j = 0; j < c->experts; j++) dz[j] = 0.0f;
  for (int64_t i = 0; i < c->top_k; i++) {
    const float s = r.s[r.expert[i]];
    g = fmaf(c->normalize ? s / r.total : s, d[i], g);
    of[r.expert[i]] = d[i];
  }
  for (int64_t i = 0; i < c->top_k; i++) {
    const int32_t j = r.expert[i];
    const float s = r.s[j];
    const float ds = c->normalize ? (scale * (d[i] - g)) / r.total : scale * d[i];
    if (c->router == SOFTMAX) dz[j] = (scale * (s / r.total)) * (d[i] - g);
    if (c->router == SIGMOID) dz[j] = ds * (s * (1.0f - s));
    if (c->router >= SQRT_SOFTPLUS) dz[j] = s == 0.0f ? 0.0f : ds * (sigmoid_f32(z[j]) / (s + s));
  }
  for (int64_t j = 0; c->router == SOFTMAX && !c->normalize && j < c->experts; j++)
    dz[j] = (scale * r.s[j]) * (of[j] - g);
  if (c->balance > 0 && n->w[0] == NULL) {
    slopes_of_balance(c, n, t, slope);
    const float mean = rule(slope, r.s, c->experts);
    for (int64_t j = 0; j < c->experts; j++) dz[j] = dz[j] + r.s[j] * (slope[j] - mean);
  }
  for (int64_t j = 0; j < c->experts; j++) dz[j] = rounded(dz[j], c->bf16);
}

/* The gradients that row r of an expert leaves: of its output, gate and up. */
typedef struct slot_grads {
  float *dout, *dgate, *dup; /* (rows, dim), (rows, hidden) twice */
} slot_grads;

/* What row r gives to x is added to dx. */
static void expert_gradient(const config *c, const node *n, const slot_grads *s, int64_t r,
                            float *dx) {
  weight *const *w = n->expert + 3 * n->chosen[r];
  float *both = zeroed(2 * c->hidden, sizeof *both), *column = zeroed(2 * c->hidden, sizeof *both);
  for (int64_t i = 0; i < c->hidden; i++) {
    const float gate = n->gate[r * c->hidden + i], up = n->up[r * c->hidden + i];
    const float sigmoid = sigmoid_f32(gate);
    const float dact = rounded(
        chain(0.0f, s->dout + r * c->dim, 1, w[2]->value + i, c->hidden, c->dim, c->bf16), c->bf16);
    both[i] = rounded((dact * up) * (sigmoid * (1.0f + gate * (1.0f - sigmoid))), c->bf16);
    both[c->hidden + i] = rounded(dact * (gate * sigmoid), c->bf16);
  }
  memcpy(s->dgate + r * c->hidden, both, (size_t)c->hidden * sizeof *both);
  memcpy(s->dup + r * c->hidden, both + c->hidden, (size_t)c->hidden * sizeof *both);
  for (int64_t d = 0; d < c->dim; d++) {
    for (int64_t i = 0; i < 2 * c->hidden; i++)
      column[i] = w[i / c->hidden]->value[i % c->hidden * c->dim + d];
    dx[d] = dx[d] + rounded(chain(0.0f, both, 1, column, 1, 2 * c->hidden, c->bf16), c->bf16);
  }
  free(both);
  free(column);
}

/* A use of an expert's matrix: dy (rows, n), and x by row, or by token where `by_token`. */
typedef struct rows_use {
  const config *c;
  const int32_t *chosen;
  const float *dy, *x;
  int64_t n, k, expert;
  int by_token;
} rows_use;

/* The expert's rows of tokens first .. last - 1, one behind the other. */
static int64_t collect(const rows_use *u, int64_t first, int64_t last, float *dy, float *x) {
  int64_t count = 0;
  for (int64_t r = first * u->c->top_k; r < last * u->c->top_k; r++) {
    if (u->chosen[r] != u->expert) continue;
    const int64_t from = u->by_token ? r / u->c->top_k : r;
    memcpy(dy + count * u->n, u->dy + r * u->n, (size_t)u->n * sizeof *dy);
    memcpy(x + count * u->k, u->x + from * u->k, (size_t)u->k * sizeof *x);
    count++;
  }
  return count;
}

static void expert_block(const void *context, const piece *p, float *out) {
  const rows_use *u = context;
  const int64_t most = p->length * u->c->top_k;
  float *dy = zeroed(most * u->n, sizeof *dy), *x = zeroed(most * u->k, sizeof *x);
  for (int64_t i = 0; i < u->n * u->k; i++) out[i] = 0.0f;
  for (int64_t s = p->first; s < p->first + p->samples; s++) {
    const int64_t first = s * u->c->length + p->start;
    const int64_t count = collect(u, first, first + p->length, dy, x);
    for (int64_t i = 0; i < u->n * u->k; i++)
      out[i] = chain(out[i], dy + i / u->k, u->n, x + i % u->k, u->k, count, u->c->bf16);
  }
  free(dy);
  free(x);
}

static void expert_weights(const config *c, const node *n, const slot_grads *s) {
  for (int64_t e = 0; e < c->experts; e++) {
    rows_use u = {.c = c, .chosen = n->chosen, .x = n->in[0]->x, .n = c->hidden, .k = c->dim};
    u.expert = e, u.by_token = 1;
    u.dy = s->dgate;
    matrix_gradient(c, n->expert[3 * e], 1, expert_block, &u);
    u.dy = s->dup;
    matrix_gradient(c, n->expert[3 * e + 1], 1, expert_block, &u);
    u.dy = s->dout, u.x = n->act, u.n = c->dim, u.k = c->hidden, u.by_token = 0;
    matrix_gradient(c, n->expert[3 * e + 2], 1, expert_block, &u);
  }
}

void experts_gradient(const model *m, const node *n, float *dy) {
  const config *c = m->c;
  const int64_t rows = c->tokens * c->top_k;
  float *dx = zeroed(c->tokens * c->dim, sizeof *dx);
  float *dz = zeroed(c->tokens * c->experts, sizeof *dz);
  const slot_grads s = {.dout = zeroed(rows * c->dim, sizeof *dx),
                        .dgate = zeroed(rows * c->hidden, sizeof *dx),
                        .dup = zeroed(rows * c->hidden, sizeof *dx)};
  for (int64_t t = 0; t < c->tokens; t++) {
    float d[EXPERTS_MAX];
    for (int64_t i = 0; i < c->top_k; i++) {
      const int64_t r = t * c->top_k + i;
      d[i] = rule(dy + t * c->dim, n->slot + r * c->dim, c->dim);
      for (int64_t k = 0; k < c->dim; k++)
        s.dout[r * c->dim + k] = rounded(n->mix[r] * dy[t * c->dim + k], c->bf16);
      expert_gradient(c, n, &s, r, dx + t * c->dim);
    }
    for (int64_t k = 0; k < c->dim; k++) dx[t * c->dim + k] = rounded(dx[t * c->dim + k], c->bf16);
    router_gradient(m, n, t, d, dz + t * c->experts);
  }
  expert_weights(c, n, &s);
  contribute(n->in[0], dx);
  contribute(n->in[1], dz);
  if (n->in[2] != NULL) contribute(n->in[2], dy);
}
