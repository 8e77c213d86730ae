/* model.c - section 7 of docs/numerics.md: the nodes of a decoder, forward and backward. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

enum { USES_MAX = 4, PARTS_MAX = 3, NODES_MAX = 256, WEIGHTS_MAX = 256 };

typedef struct value {
  int64_t cols;
  int bf16;
  float *x;              /* (tokens, cols) */
  float *grad[USES_MAX]; /* contributions, the last use first */
  int grads;
} value;

typedef enum op { EMBEDDING, LINEAR, NORM, SWIGLU, GELU, ROPE, ATTENTION, ADD, DROPOUT, LEVEL } op;

/* Which dims of a linear are leaf dims: those it makes, those it sums, none. */
typedef enum leaf_dims { OUTPUTS, INPUTS, NONE } leaf_dims;

typedef struct node {
  op op;
  value *in[PARTS_MAX], *out[PARTS_MAX];
  weight *w[PARTS_MAX], *bias[PARTS_MAX]; /* NORM: gain in w[0] */
  int parts;
  leaf_dims dims;           /* LINEAR */
  int positions;            /* EMBEDDING: of positions, not of ids */
  int64_t heads;            /* ROPE */
  uint64_t stream;          /* DROPOUT */
  float *rstd, *mean, *lse; /* (tokens), (tokens), (tokens, heads) */
} node;

struct model {
  const config *c;
  const batch *b;
  int64_t step;
  int32_t *position;
  value *logits;
  node node[NODES_MAX];
  weight weight[WEIGHTS_MAX];
  int nodes, weights;
};

/* --- weights: section 15 ---------------------------------------------------------------------- */

typedef enum init { ZEROS, ONES, NORMAL } init;

static weight *new_weight(model *m, const char *path, const char *name, int64_t rows, int64_t cols,
                          int leaf_axis, init kind) {
  weight *w = &m->weight[m->weights++];
  const int64_t count = rows * cols;
  snprintf(w->name, sizeof w->name, "%s%s%s", path, path[0] != '\0' ? "." : "", name);
  w->rows = w->rows_true = rows, w->cols = cols, w->leaf_axis = leaf_axis;
  w->decays = kind == NORMAL;
  w->value = zeroed(count, sizeof(float)), w->exact = zeroed(count, sizeof(float));
  w->m = zeroed(count, sizeof(float)), w->v = zeroed(count, sizeof(float));
  const float two_pi = 0x1.921fb6p+2f;
  for (int64_t i = 0; i < count; i++) {
    uint32_t word[2];
    words((uint64_t)m->c->seed, hash_name(w->name), (uint64_t)i, 0, word);
    const float r = sqrtf(-2.0f * log_f32(unit(word[0]) + 0x1p-24f));
    const float normal = fmaf((float)0.02, r * cos_f32(two_pi * unit(word[1])), 0.0f);
    w->exact[i] = kind == NORMAL ? normal : kind == ONES ? 1.0f : 0.0f;
    w->value[i] = rounded(w->exact[i], m->c->bf16);
  }
  return w;
}

weight *model_weights(model *m, int64_t *count) {
  *count = m->weights;
  return m->weight;
}

/* --- building --------------------------------------------------------------------------------- */

static value *new_value(const model *m, int64_t cols, int bf16) {
  value *v = zeroed(1, sizeof *v);
  v->cols = cols, v->bf16 = bf16;
  v->x = zeroed(m->c->tokens * cols, sizeof(float));
  return v;
}

static node *new_node(model *m, op op, value *x, int64_t cols) {
  node *n = &m->node[m->nodes++];
  n->op = op;
  n->in[0] = x;
  n->parts = 1;
  n->out[0] = new_value(m, cols, m->c->bf16);
  n->rstd = zeroed(m->c->tokens, sizeof(float)), n->mean = zeroed(m->c->tokens, sizeof(float));
  return n;
}

static value *embedding(model *m, weight *table, int positions) {
  node *n = new_node(m, EMBEDDING, NULL, m->c->dim);
  n->w[0] = table, n->positions = positions;
  return n->out[0];
}

static value *norm_node(model *m, value *x, const char *path) {
  node *n = new_node(m, NORM, x, x->cols);
  n->w[0] = new_weight(m, path, "gain", x->cols, 1, -1, ONES);
  if (m->c->gpt) n->bias[0] = new_weight(m, path, "bias", x->cols, 1, -1, ZEROS);
  return n->out[0];
}

/* A linear node; part i has rows[i] outputs. */
static node *linear(model *m, value *x, const char *path, int parts, const char *const *names,
                    const int64_t *rows, leaf_dims dims) {
  static const int matrix_axis[] = {0, 1, -1}, bias_axis[] = {0, -1, -1};
  node *n = new_node(m, LINEAR, x, rows[0]);
  n->parts = parts, n->dims = dims;
  for (int i = 0; i < parts; i++) {
    char name[32];
    n->w[i] = new_weight(m, path, names[i], rows[i], x->cols, matrix_axis[dims], NORMAL);
    snprintf(name, sizeof name, "%s_bias", names[i]);
    if (m->c->gpt) n->bias[i] = new_weight(m, path, name, rows[i], 1, bias_axis[dims], ZEROS);
    if (i > 0) n->out[i] = new_value(m, rows[i], m->c->bf16);
  }
  return n;
}

static value *add(model *m, value *x, value *y) {
  node *n = new_node(m, ADD, x, x->cols);
  n->in[1] = y;
  return n->out[0];
}

static value *dropout(model *m, value *x, const char *path) {
  char key[96];
  if (m->c->dropout == 0) return x;
  snprintf(key, sizeof key, "%s%sdropout", path, path[0] != '\0' ? "." : "");
  node *n = new_node(m, DROPOUT, x, x->cols);
  n->stream = hash_name(key);
  return n->out[0];
}

static value *rope_node(model *m, value *x, int64_t heads) {
  if (m->c->gpt) return x;
  node *n = new_node(m, ROPE, x, x->cols);
  n->heads = heads;
  return n->out[0];
}

static value *attention_branch(model *m, value *x, const char *path, const char *norm_path) {
  static const char *const qkv[] = {"q", "k", "v"}, *const o[] = {"o"};
  const config *c = m->c;
  const int64_t width = c->dim / c->heads, kv = c->kv_heads * width;
  const int64_t rows[] = {c->dim, kv, kv};
  node *parts = linear(m, norm_node(m, x, norm_path), path, 3, qkv, rows, OUTPUTS);
  value *q = rope_node(m, parts->out[0], c->heads), *k = rope_node(m, parts->out[1], c->kv_heads);
  node *n = new_node(m, ATTENTION, q, c->dim);
  n->in[1] = k, n->in[2] = parts->out[2];
  n->lse = zeroed(c->tokens * c->heads, sizeof(float));
  return linear(m, n->out[0], path, 1, o, rows, INPUTS)->out[0];
}

static value *feed_forward(model *m, value *x, const char *path, const char *norm_path) {
  static const char *const gate_up[] = {"gate", "up"}, *const down[] = {"down"};
  const int64_t rows[] = {m->c->hidden, m->c->hidden};
  const int gated = !m->c->gpt;
  node *parts =
      linear(m, norm_node(m, x, norm_path), path, 1 + gated, gate_up + !gated, rows, OUTPUTS);
  node *n = new_node(m, gated ? SWIGLU : GELU, parts->out[0], m->c->hidden);
  n->in[1] = parts->out[1];
  return linear(m, n->out[0], path, 1, down, &m->c->dim, INPUTS)->out[0];
}

/* A state of the stream, 0.25 at first. */
static value *level(model *m, value *x, const char *path) {
  node *n = new_node(m, LEVEL, x, x->cols);
  weight *s = n->w[0] = new_weight(m, path, "level", x->cols, 1, -1, ZEROS);
  s->state = 1;
  for (int64_t i = 0; i < s->rows; i++) s->value[i] = 0.25f;
  return n->out[0];
}

static value *layer(model *m, value *x, int64_t i) {
  char path[48], norm_path[64];
  const char *norm = m->c->gpt ? "layer_norm" : "rms_norm";
  snprintf(path, sizeof path, "layers.%lld.attention", (long long)i);
  snprintf(norm_path, sizeof norm_path, "%s.%s", path, norm);
  x = add(m, x, dropout(m, attention_branch(m, x, path, norm_path), path));
  snprintf(path, sizeof path, "layers.%lld.%s", (long long)i, m->c->gpt ? "gelu" : "swiglu");
  snprintf(norm_path, sizeof norm_path, "%s.%s", path, norm);
  x = add(m, x, dropout(m, feed_forward(m, x, path, norm_path), path));
  snprintf(path, sizeof path, "layers.%lld.kept", (long long)i);
  if (m->c->level) x = level(m, x, path);
  if (!m->c->linear) return x;
  static const char *const names[] = {"weight"};
  snprintf(path, sizeof path, "layers.%lld.linear", (long long)i);
  return linear(m, x, path, 1, names, &m->c->dim, NONE)->out[0];
}

model *model_new(const config *c) {
  model *m = zeroed(1, sizeof *m);
  m->c = c;
  weight *table = new_weight(m, "", "embed", c->vocab_padded, c->dim, 0, NORMAL);
  table->rows_true = c->vocab;
  value *x = embedding(m, table, 0);
  if (c->gpt) {
    const int64_t rows = (c->length + c->leaves_tp - 1) / c->leaves_tp * c->leaves_tp;
    weight *positions = new_weight(m, "", "positions", rows, c->dim, 0, NORMAL);
    positions->rows_true = c->length;
    x = add(m, x, embedding(m, positions, 1));
  }
  x = dropout(m, x, "");
  for (int64_t i = 0; i < c->layers; i++) x = layer(m, x, i);
  x = norm_node(m, x, "norm");
  node *head = new_node(m, LINEAR, x, c->vocab_padded);
  head->dims = OUTPUTS;
  head->out[0]->bf16 = 0; /* logits are f32 */
  head->w[0] = table;
  if (!c->gpt) {
    head->w[0] = new_weight(m, "", "head", c->vocab_padded, c->dim, 0, NORMAL);
    head->w[0]->rows_true = c->vocab;
  }
  m->logits = head->out[0];
  m->position = zeroed(c->tokens, sizeof *m->position);
  return m;
}

/* --- forward ---------------------------------------------------------------------------------- */

static void linear_value(const model *m, const node *n) {
  const int64_t leaves = n->dims == INPUTS ? m->c->leaves_tp : 1, k = n->in[0]->cols;
  int64_t borders[65];
  for (int64_t j = 0; j <= leaves; j++) borders[j] = border(j, leaves, k);
  for (int i = 0; i < n->parts; i++) {
    const product p = {.a = n->in[0]->x,
                       .b = n->w[i]->value,
                       .rows = m->c->tokens,
                       .n = n->w[i]->rows,
                       .k = k,
                       .leaves = leaves,
                       .borders = borders,
                       .bias = n->bias[i] != NULL ? n->bias[i]->value : NULL,
                       .factors_bf16 = m->c->bf16,
                       .out_bf16 = n->out[i]->bf16};
    multiply(&p, n->out[i]->x);
  }
}

static norm norm_of(const model *m, const node *n) {
  return (norm){.rows = m->c->tokens,
                .d = n->in[0]->cols,
                .layer = m->c->gpt,
                .bf16 = m->c->bf16,
                .x = n->in[0]->x,
                .gain = n->w[0]->value,
                .bias = n->bias[0] != NULL ? n->bias[0]->value : NULL,
                .rstd = n->rstd,
                .mean = n->mean};
}

static attention attention_of(const model *m, const node *n) {
  attention a = {.c = m->c, .b = m->b, .width = m->c->dim / m->c->heads, .q = n->in[0]->x};
  if (n->op == ATTENTION) a.k = n->in[1]->x, a.v = n->in[2]->x;
  return a;
}

static const int32_t *ids_of(const model *m, const node *n) {
  return n->positions ? m->position : m->b->id;
}

static void drop(const model *m, const node *n, const float *x, float *y) {
  const float rate = (float)m->c->dropout, factor = 1.0f / (1.0f - rate);
  for (int64_t i = 0; i < m->c->tokens * n->in[0]->cols; i++) {
    uint32_t word[2];
    words((uint64_t)m->c->seed, n->stream, (uint64_t)i, (uint64_t)m->step, word);
    y[i] = unit(word[0]) >= rate ? rounded(x[i] * factor, m->c->bf16) : 0.0f;
  }
}

/* Operators whose outputs depend on one element of each input. */
static void element_value(const model *m, const node *n, int64_t i) {
  const float x = n->in[0] != NULL ? n->in[0]->x[i] : 0.0f;
  float y = 0.0f;
  if (n->op == EMBEDDING) {
    const int64_t d = m->c->dim;
    y = n->w[0]->value[ids_of(m, n)[i / d] * d + i % d] + 0.0f;
  }
  if (n->op == SWIGLU) y = (x * sigmoid_f32(x)) * n->in[1]->x[i];
  if (n->op == GELU) y = gelu(x);
  if (n->op == ADD) y = x + n->in[1]->x[i];
  n->out[0]->x[i] = rounded(y, m->c->bf16);
}

static void node_value(const model *m, const node *n) {
  float *y = n->out[0]->x;
  const norm row = n->op == NORM ? norm_of(m, n) : (norm){0};
  const attention a = n->op == ROPE || n->op == ATTENTION ? attention_of(m, n) : (attention){0};
  switch (n->op) {
    case LINEAR: linear_value(m, n); break;
    case NORM: norm_value(&row, y); break;
    case ROPE: rope(&a, n->in[0]->x, n->heads, 1.0f, y); break;
    case ATTENTION: attention_value(&a, y, n->lse); break;
    case DROPOUT: drop(m, n, n->in[0]->x, y); break;
    case LEVEL: level_value(m->c, n->w[0], n->in[0]->x, y); break;
    default:
      for (int64_t i = 0; i < m->c->tokens * n->out[0]->cols; i++) element_value(m, n, i);
  }
}

/* --- backward --------------------------------------------------------------------------------- */

static void contribute(value *x, float *grad) { x->grad[x->grads++] = grad; }

/* Contributions in the order of forward uses, rounded after every addition: section 11. */
static float *gradient(const model *m, value *x) {
  const int64_t count = m->c->tokens * x->cols;
  float *sum = zeroed(count, sizeof *sum);
  for (int64_t i = 0; i < count; i++) {
    sum[i] = x->grad[x->grads - 1][i];
    for (int k = x->grads - 2; k >= 0; k--) sum[i] = rounded(sum[i] + x->grad[k][i], m->c->bf16);
  }
  x->grads = 0;
  return sum;
}

/* A finished sum; the use that comes first in the graph arrives last. */
static void add_gradient(weight *w, float *grad) {
  for (int64_t i = 0; w->grad != NULL && i < w->rows * w->cols; i++) grad[i] += w->grad[i];
  w->grad = grad;
}

/* A use of a matrix: dy (tokens, n) and x (tokens, k), or ids in place of x. */
typedef struct use {
  const config *c;
  const float *dy, *x;
  const int32_t *ids;
  int64_t n, k;
} use;

static void linear_block(const void *context, const piece *p, float *out) {
  const use *u = context;
  for (int64_t n = 0; n < u->n; n++)
    for (int64_t k = 0; k < u->k; k++) {
      float acc = 0.0f;
      for (int64_t s = p->first; s < p->first + p->samples; s++) {
        const int64_t t = s * u->c->length + p->start;
        acc = chain(acc, u->dy + t * u->n + n, u->n, u->x + t * u->k + k, u->k, p->length,
                    u->c->bf16);
      }
      out[n * u->k + k] = acc;
    }
}

static void table_block(const void *context, const piece *p, float *out) {
  const use *u = context;
  for (int64_t i = 0; i < u->n * u->k; i++) out[i] = 0.0f;
  for (int64_t s = p->first; s < p->first + p->samples; s++)
    for (int64_t t = s * u->c->length + p->start, end = t + p->length; t < end; t++)
      for (int64_t i = 0; i < u->k; i++) out[u->ids[t] * u->k + i] += u->dy[t * u->k + i];
}

static void matrix_gradient(weight *w, int64_t runs, block_sum *sum, const use *u) {
  float *grad = zeroed(w->rows * w->cols, sizeof *grad);
  matrix_blocks(u->c, runs, w->rows * w->cols, sum, u, grad);
  add_gradient(w, grad);
}

static void vector_gradient(const model *m, weight *w, int64_t runs, terms t) {
  float *grad = zeroed(w->rows, sizeof *grad);
  t.d = w->rows;
  vector_blocks(m->c, runs, &t, grad);
  add_gradient(w, grad);
}

/* dx of a linear: parts side by side, leaf after leaf. */
static void linear_input_gradient(const model *m, const node *n, float *const *dy, float *dx) {
  const int64_t leaves = n->dims == OUTPUTS ? m->c->leaves_tp : 1, width = n->in[0]->cols;
  int64_t borders[65] = {0}, total = 0, at = 0;
  for (int i = 0; i < n->parts; i++) total += n->w[i]->rows;
  float *a = zeroed(m->c->tokens * total, sizeof *a), *b = zeroed(width * total, sizeof *b);
  for (int64_t j = 0; j < leaves; j++) {
    for (int i = 0; i < n->parts; i++) {
      const int64_t rows = n->w[i]->rows;
      for (int64_t f = border(j, leaves, rows); f < border(j + 1, leaves, rows); f++, at++) {
        for (int64_t t = 0; t < m->c->tokens; t++) a[t * total + at] = dy[i][t * rows + f];
        for (int64_t k = 0; k < width; k++) b[k * total + at] = n->w[i]->value[f * width + k];
      }
    }
    borders[j + 1] = at;
  }
  const product p = {.a = a,
                     .b = b,
                     .rows = m->c->tokens,
                     .n = width,
                     .k = total,
                     .leaves = leaves,
                     .borders = borders,
                     .factors_bf16 = m->c->bf16,
                     .out_bf16 = m->c->bf16};
  multiply(&p, dx);
  free(a);
  free(b);
}

static float *room(const model *m, const value *x) {
  return zeroed(m->c->tokens * x->cols, sizeof(float));
}

static void linear_gradient(const model *m, const node *n, float *const *dy) {
  float *dx = room(m, n->in[0]);
  linear_input_gradient(m, n, dy, dx);
  contribute(n->in[0], dx);
  for (int i = 0; i < n->parts; i++) {
    const use u = {
        .c = m->c, .dy = dy[i], .x = n->in[0]->x, .n = n->w[i]->rows, .k = n->in[0]->cols};
    matrix_gradient(n->w[i], n->dims == NONE ? m->c->leaves_tp : 1, linear_block, &u);
    if (n->bias[i] != NULL)
      vector_gradient(m, n->bias[i], n->dims == OUTPUTS ? 1 : m->c->leaves_tp,
                      (terms){.dy = dy[i]});
  }
}

static void norm_node_gradient(const model *m, const node *n, float *dy) {
  float *dx = room(m, n->in[0]);
  const norm row = norm_of(m, n);
  norm_gradient(&row, dy, dx);
  contribute(n->in[0], dx);
  vector_gradient(
      m, n->w[0], m->c->leaves_tp,
      (terms){
          .kind = m->c->gpt ? 2 : 1, .dy = dy, .x = n->in[0]->x, .rstd = n->rstd, .mean = n->mean});
  if (n->bias[0] != NULL) vector_gradient(m, n->bias[0], m->c->leaves_tp, (terms){.dy = dy});
}

static void attention_node_gradient(const model *m, const node *n, float *dy) {
  const attention a = attention_of(m, n);
  const attention_grads g = {.o = n->out[0]->x,
                             .lse = n->lse,
                             .dy = dy,
                             .dq = room(m, n->in[0]),
                             .dk = room(m, n->in[1]),
                             .dv = room(m, n->in[2])};
  attention_gradient(&a, &g);
  contribute(n->in[0], g.dq);
  contribute(n->in[1], g.dk);
  contribute(n->in[2], g.dv);
}

static void swiglu_gradient(const model *m, const node *n, const float *dy) {
  float *dgate = room(m, n->in[0]), *dup = room(m, n->in[1]);
  for (int64_t i = 0; i < m->c->tokens * n->in[0]->cols; i++) {
    const float g = n->in[0]->x[i], u = n->in[1]->x[i], s = sigmoid_f32(g);
    dup[i] = rounded(dy[i] * (g * s), m->c->bf16);
    dgate[i] = rounded((dy[i] * u) * (s * (1.0f + g * (1.0f - s))), m->c->bf16);
  }
  contribute(n->in[0], dgate);
  contribute(n->in[1], dup);
}

static void unary_gradient(const model *m, const node *n, const float *dy) {
  float *dx = room(m, n->in[0]);
  const attention a = attention_of(m, n);
  if (n->op == ROPE) rope(&a, dy, n->heads, -1.0f, dx);
  if (n->op == DROPOUT) drop(m, n, dy, dx);
  if (n->op == LEVEL) level_gradient(m->c, n->w[0], dy, dx);
  for (int64_t i = 0; n->op == GELU && i < m->c->tokens * n->in[0]->cols; i++)
    dx[i] = rounded(gelu_gradient(dy[i], n->in[0]->x[i]), m->c->bf16);
  contribute(n->in[0], dx);
}

static void node_gradient(const model *m, const node *n) {
  float *dy[PARTS_MAX] = {0};
  for (int i = 0; i < n->parts; i++) dy[i] = gradient(m, n->out[i]);
  const use table = {.c = m->c,
                     .dy = dy[0],
                     .ids = ids_of(m, n),
                     .k = m->c->dim,
                     .n = n->op == EMBEDDING ? n->w[0]->rows : 0};
  switch (n->op) {
    case EMBEDDING: matrix_gradient(n->w[0], 1, table_block, &table); break;
    case LINEAR: linear_gradient(m, n, dy); break;
    case NORM: norm_node_gradient(m, n, dy[0]); break;
    case SWIGLU: swiglu_gradient(m, n, dy[0]); break;
    case ATTENTION: attention_node_gradient(m, n, dy[0]); break;
    case ADD: contribute(n->in[0], dy[0]), contribute(n->in[1], dy[0]); break;
    default: unary_gradient(m, n, dy[0]);
  }
}

float model_step(model *m, const batch *b, int64_t step) {
  float total, *loss = zeroed(m->c->tokens, sizeof *loss), *dz = room(m, m->logits);
  m->b = b, m->step = step;
  for (int64_t t = 0; t < m->c->tokens; t++) m->position[t] = (int32_t)t - b->start[t];
  for (int i = 0; i < m->weights; i++) m->weight[i].grad = NULL;
  for (int i = 0; i < m->nodes; i++) node_value(m, &m->node[i]);
  cross_entropy(m->c, b, m->logits->x, loss, dz);
  contribute(m->logits, dz);
  for (int i = m->nodes - 1; i >= 0; i--) node_gradient(m, &m->node[i]);
  vector_blocks(m->c, 1, &(terms){.d = 1, .dy = loss}, &total);
  return b->targets > 0 ? total / (float)b->targets : 0.0f;
}
