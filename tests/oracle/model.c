/* model.c - a decoder's forward and backward pass, node by node: sections 8, 11 and 12 of
** docs/numerics.md. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

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
  return (norm){.rows = m->c->tokens * n->heads,
                .d = n->in[0]->cols / n->heads,
                .layer = m->c->gpt,
                .bf16 = m->c->bf16,
                .x = n->in[0]->x,
                .gain = n->w[0]->value,
                .bias = n->bias[0] != NULL ? n->bias[0]->value : NULL,
                .rstd = n->rstd,
                .mean = n->mean};
}

static attention attention_of(const model *m, const node *n) {
  attention a = {.c = m->c, .b = m->b, .q = n->in[0]->x};
  a.width = n->op == ROPE ? n->in[0]->cols / n->heads : n->in[0]->cols / m->c->heads;
  if (n->op == ATTENTION) {
    a.k = n->in[1]->x, a.v = n->in[2]->x;
    a.value_width = n->in[2]->cols / m->c->kv_heads;
  }
  return a;
}

/* The two pieces of a SPLIT or JOIN. */
static pieces pieces_of(const model *m, const node *n) {
  const value *first = n->op == SPLIT ? n->out[0] : n->in[0];
  const value *other = n->op == SPLIT ? n->out[1] : n->in[1];
  const value *whole = n->op == SPLIT ? n->in[0] : n->out[0];
  const int64_t width = first->cols / n->heads;
  return (pieces){.c = m->c,
                  .heads = n->heads,
                  .first = width,
                  .other = whole->cols / n->heads - width,
                  .shared = other->cols < whole->cols - first->cols,
                  .x = n->in[0]->x};
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
  const pieces p = n->op == SPLIT || n->op == JOIN ? pieces_of(m, n) : (pieces){0};
  const attention a = n->op == ROPE || n->op == ATTENTION ? attention_of(m, n) : (attention){0};
  switch (n->op) {
    case LINEAR: linear_value(m, n); break;
    case NORM: norm_value(&row, y); break;
    case ROPE: rope(&a, n->in[0]->x, n->heads, 1.0f, y); break;
    case ATTENTION: attention_value(&a, y, n->lse); break;
    case SPLIT: split_value(&p, y, n->out[1]->x); break;
    case JOIN: join_value(&p, n->in[0]->x, n->in[1]->x, y); break;
    case DROPOUT: drop(m, n, n->in[0]->x, y); break;
    case LEVEL: level_value(m->c, n->w[0], n->in[0]->x, y); break;
    case EXPERTS: experts_value(m, n); break;
    default:
      for (int64_t i = 0; i < m->c->tokens * n->out[0]->cols; i++) element_value(m, n, i);
  }
}

/* --- backward --------------------------------------------------------------------------------- */

void contribute(value *x, float *grad) { x->grad[x->grads++] = grad; }

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

void matrix_gradient(const config *c, weight *w, int64_t runs, block_sum *sum, const void *use) {
  float *grad = zeroed(w->rows * w->cols, sizeof *grad);
  matrix_blocks(c, runs, w->rows * w->cols, sum, use, grad);
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
    matrix_gradient(m->c, n->w[i], n->dims == NONE ? m->c->leaves_tp : 1, linear_block, &u);
    if (n->bias[i] != NULL)
      vector_gradient(m, n->bias[i], n->dims == OUTPUTS ? 1 : m->c->leaves_tp,
                      (terms){.dy = dy[i]});
  }
}

/* The gain's gradient from one head: terms of its channels alone. */
static void head_gradient(const model *m, const node *n, const float *dy, int64_t head,
                          float *out) {
  const int64_t tokens = m->c->tokens, cols = n->in[0]->cols, width = cols / n->heads;
  float *own = zeroed(tokens * width, sizeof *own), *x = zeroed(tokens * width, sizeof *own);
  float *rstd = zeroed(tokens, sizeof *own);
  for (int64_t t = 0; t < tokens; t++) {
    rstd[t] = n->rstd[t * n->heads + head];
    memcpy(own + t * width, dy + t * cols + head * width, (size_t)width * sizeof *own);
    memcpy(x + t * width, n->in[0]->x + t * cols + head * width, (size_t)width * sizeof *own);
  }
  vector_blocks(m->c, 1, &(terms){.kind = 1, .d = width, .dy = own, .x = x, .rstd = rstd}, out);
  free(own);
  free(x);
  free(rstd);
}

/* Norms of heads: each head's sum, chains over runs of heads, the tree over the runs. */
static void heads_gradient(const model *m, const node *n, const float *dy) {
  const int64_t width = n->in[0]->cols / n->heads, runs = n->heads & -n->heads;
  float *run = zeroed(runs * width, sizeof *run), *head = zeroed(width, sizeof *head);
  for (int64_t h = 0; h < n->heads; h++) { /* fewer than 64 in a run: one block */
    head_gradient(m, n, dy, h, head);
    for (int64_t i = 0; i < width; i++) run[h / (n->heads / runs) * width + i] += head[i];
  }
  tree(run, runs, width);
  add_gradient(n->w[0], run);
}

static void norm_node_gradient(const model *m, const node *n, float *dy) {
  float *dx = room(m, n->in[0]);
  const norm row = norm_of(m, n);
  norm_gradient(&row, dy, dx);
  contribute(n->in[0], dx);
  if (n->apart) {
    heads_gradient(m, n, dy);
    return;
  }
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

static void split_gradient(const model *m, const node *n, float *const *dy) {
  const pieces p = pieces_of(m, n);
  float *dx = room(m, n->in[0]);
  join_value(&p, dy[0], dy[1], dx);
  contribute(n->in[0], dx);
}

static void join_node_gradient(const model *m, const node *n, const float *dy) {
  const pieces p = pieces_of(m, n);
  float *first = room(m, n->in[0]), *other = room(m, n->in[1]);
  join_gradient(&p, dy, first, other);
  contribute(n->in[0], first);
  contribute(n->in[1], other);
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
    case EMBEDDING: matrix_gradient(m->c, n->w[0], 1, table_block, &table); break;
    case LINEAR: linear_gradient(m, n, dy); break;
    case NORM: norm_node_gradient(m, n, dy[0]); break;
    case SWIGLU: swiglu_gradient(m, n, dy[0]); break;
    case ATTENTION: attention_node_gradient(m, n, dy[0]); break;
    case SPLIT: split_gradient(m, n, dy); break;
    case JOIN: join_node_gradient(m, n, dy[0]); break;
    case EXPERTS: experts_gradient(m, n, dy[0]); break;
    case ADD: contribute(n->in[0], dy[0]), contribute(n->in[1], dy[0]); break;
    default: unary_gradient(m, n, dy[0]);
  }
}

static void forward(model *m, const batch *b) {
  m->b = b;
  for (int64_t t = 0; t < m->c->tokens; t++) m->position[t] = (int32_t)t - b->start[t];
  for (int i = 0; i < m->nodes; i++) node_value(m, &m->node[i]);
}

const float *model_logits(model *m, const batch *b, int64_t tokens) {
  const config *trained = m->c;
  config plain = *trained;
  plain.dropout = 0;
  plain.samples = 1, plain.length = plain.tokens = tokens;
  m->c = &plain;
  forward(m, b);
  m->c = trained;
  return m->logits->x;
}

float model_step(model *m, const batch *b, int64_t step) {
  float total, *loss = zeroed(m->c->tokens, sizeof *loss), *dz = room(m, m->logits);
  m->step = step;
  for (int i = 0; i < m->weights; i++) m->weight[i].grad = NULL;
  forward(m, b);
  cross_entropy(m->c, b, m->logits->x, loss, dz);
  contribute(m->logits, dz);
  for (int i = m->nodes - 1; i >= 0; i--) node_gradient(m, &m->node[i]);
  vector_blocks(m->c, 1, &(terms){.d = 1, .dy = loss}, &total);
  return b->targets > 0 ? total / (float)b->targets : 0.0f;
}
