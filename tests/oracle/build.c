/* build.c - section 7 of docs/numerics.md: the nodes of a decoder, and its weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

/* --- weights: section 15 ---------------------------------------------------------------------- */

typedef enum init { ZEROS, ONES, NORMAL } init; /* matrices: NORMAL, unless a rule is theirs */

static weight *new_weight(model *m, const char *path, const char *name, int64_t rows, int64_t cols,
                          int leaf_axis, init kind) {
  weight *w = &m->weight[m->weights++];
  const int64_t count = rows * cols;
  snprintf(w->name, sizeof w->name, "%s%s%s", path, path[0] != '\0' ? "." : "", name);
  w->rows = w->rows_true = rows, w->cols = cols, w->leaf_axis = leaf_axis;
  w->decays = kind == NORMAL;
  const int ruled = m->c->ruled && strcmp(name, "gate") == 0;
  w->lr_scale = ruled ? 0.5f : 1.0f;
  w->value = zeroed(count, sizeof(float)), w->exact = zeroed(count, sizeof(float));
  w->m = zeroed(count, sizeof(float)), w->v = zeroed(count, sizeof(float));
  const float two_pi = 0x1.921fb6p+2f;
  for (int64_t i = 0; i < count; i++) {
    uint32_t word[2];
    words((uint64_t)m->c->seed, hash_name(w->name), (uint64_t)i, 0, word);
    const float r = sqrtf(-2.0f * log_f32(unit(word[0]) + 0x1p-24f));
    const float normal = fmaf((float)0.02, r * cos_f32(two_pi * unit(word[1])), 0.0f);
    w->exact[i] = kind == NORMAL ? normal : kind == ONES ? 1.0f : 0.0f;
    const float a = (float)0.05;
    if (ruled) w->exact[i] = fmaf(a - (-a), unit(word[0]), -a);
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
  n->heads = 1;
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

/* A norm of each head of x, where the model has them. */
static value *head_norm(model *m, value *x, const char *path, const char *name, int64_t heads) {
  char gain[32];
  if (!m->c->qk_norm) return x;
  node *n = new_node(m, NORM, x, x->cols);
  n->heads = heads, n->apart = 1;
  n->rstd = zeroed(m->c->tokens * heads, sizeof(float));
  n->mean = zeroed(m->c->tokens * heads, sizeof(float));
  snprintf(gain, sizeof gain, "%s.gain", name);
  n->w[0] = new_weight(m, path, gain, x->cols / heads, 1, -1, ONES);
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
  const int64_t width = c->head_dim > 0 ? c->head_dim : c->dim / c->heads;
  const int64_t rows[] = {c->heads * width, c->kv_heads * width, c->kv_heads * width};
  node *parts = linear(m, norm_node(m, x, norm_path), path, 3, qkv, rows, OUTPUTS);
  value *q = head_norm(m, parts->out[0], path, "q_norm", c->heads);
  value *k = head_norm(m, parts->out[1], path, "k_norm", c->kv_heads);
  q = rope_node(m, q, c->heads), k = rope_node(m, k, c->kv_heads);
  node *n = new_node(m, ATTENTION, q, rows[0]);
  n->in[1] = k, n->in[2] = parts->out[2];
  n->lse = zeroed(c->tokens * c->heads, sizeof(float));
  return linear(m, n->out[0], path, 1, o, &c->dim, INPUTS)->out[0];
}

/* The first `first` channels of each head, and the others. */
static node *split(model *m, value *x, int64_t heads, int64_t first) {
  node *n = new_node(m, SPLIT, x, heads * first);
  n->parts = 2, n->heads = heads;
  n->out[1] = new_value(m, x->cols - heads * first, m->c->bf16);
  return n;
}

/* Turns `turned`, which has `heads` heads, and puts it behind the channels of every head of x. */
static value *join_turned(model *m, value *x, value *turned, int64_t heads) {
  value *t = rope_node(m, turned, heads);
  node *n = new_node(m, JOIN, x, x->cols + m->c->heads * m->c->rope_dim);
  n->in[1] = t, n->heads = m->c->heads;
  return n->out[0];
}

static value *latent_norm(model *m, value *x, const char *path, const char *name) {
  char norm_path[80];
  snprintf(norm_path, sizeof norm_path, "%s.%s", path, name);
  return norm_node(m, x, norm_path);
}

static value *mla_branch(model *m, value *x, const char *path, const char *norm_path) {
  static const char *const from_x[] = {"q_a", "kv_a"}, *const q_b[] = {"q_b"};
  static const char *const kv_b[] = {"kv_b"}, *const o[] = {"o"}, *const q_only[] = {"q"};
  const config *c = m->c;
  const int64_t query = c->heads * (c->nope_dim + c->rope_dim), latent = c->kv_rank + c->rope_dim;
  const int64_t both[] = {c->q_rank, latent}, kv = c->heads * (c->nope_dim + c->v_dim);
  value *q, *from, *y = norm_node(m, x, norm_path);
  if (c->q_rank > 0) {
    node *parts = linear(m, y, path, 2, from_x, both, NONE);
    q = latent_norm(m, parts->out[0], path, "q_norm"), from = parts->out[1];
    q = linear(m, q, path, 1, q_b, &query, OUTPUTS)->out[0];
  } else {
    q = linear(m, y, path, 1, q_only, &query, OUTPUTS)->out[0];
    from = linear(m, y, path, 1, from_x + 1, &latent, NONE)->out[0];
  }
  node *pieces = split(m, from, 1, c->kv_rank);
  value *narrow = latent_norm(m, pieces->out[0], path, "kv_norm");
  node *wide =
      split(m, linear(m, narrow, path, 1, kv_b, &kv, OUTPUTS)->out[0], c->heads, c->nope_dim);
  node *own = split(m, q, c->heads, c->nope_dim);
  q = join_turned(m, own->out[0], own->out[1], c->heads);
  value *k = join_turned(m, wide->out[0], pieces->out[1], 1);
  node *n = new_node(m, ATTENTION, q, c->heads * c->v_dim);
  n->in[1] = k, n->in[2] = wide->out[1];
  n->lse = zeroed(c->tokens * c->heads, sizeof(float));
  return linear(m, n->out[0], path, 1, o, &c->dim, INPUTS)->out[0];
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

/* --- experts: section 17 ---------------------------------------------------------------------- */

/* The state of a router: a bias of each expert, or the table of the hash. */
static weight *router_state(model *m, const char *path) {
  const config *c = m->c;
  if (c->router != 3 && !c->moves) return NULL;
  weight *s = c->router == 3 ? new_weight(m, path, "choices", c->vocab, c->top_k, -1, ZEROS)
                             : new_weight(m, path, "bias", c->experts, 1, -1, ZEROS);
  s->state = 1;
  if (c->router != 3) return s;
  s->m = s->value; /* nothing updates it */
  const uint64_t key = mix64((uint64_t)c->router_seed + mix64(hash_name(path)));
  for (int64_t id = 0; id < c->vocab; id++) {
    int64_t p[64];
    for (int64_t i = 0; i < c->experts; i++) p[i] = i;
    for (int64_t i = 0; i < c->top_k; i++) {
      const uint64_t n = mix64(key + mix64((uint64_t)(64 * id + i))) >> 33;
      const int64_t other = i + (int64_t)(n % (uint64_t)(c->experts - i)), kept = p[i];
      p[i] = p[other], p[other] = kept;
      s->value[id * c->top_k + i] = (float)p[i];
    }
  }
  return s;
}

static value *swiglu(model *m, value *gate, value *up) {
  node *n = new_node(m, SWIGLU, gate, gate->cols);
  n->in[1] = up;
  return n->out[0];
}

static value *shared_expert(model *m, value *x, const char *path) {
  static const char *const gate_up[] = {"shared.gate", "shared.up"}, *const down[] = {
                                                                         "shared.down"};
  const int64_t rows[] = {m->c->shared * m->c->hidden, m->c->shared * m->c->hidden};
  node *parts = linear(m, x, path, 2, gate_up, rows, OUTPUTS);
  value *act = swiglu(m, parts->out[0], parts->out[1]);
  return linear(m, act, path, 1, down, &m->c->dim, INPUTS)->out[0];
}

static value *moe_branch(model *m, value *x, const char *path, const char *norm_path) {
  static const char *const router[] = {"router"}, *const names[] = {"gate", "up", "down"};
  const config *c = m->c;
  const int64_t rows = c->tokens * c->top_k;
  value *y = norm_node(m, x, norm_path);
  node *z = linear(m, y, path, 1, router, &c->experts, NONE);
  z->out[0]->bf16 = 0;
  value *shared = c->shared > 0 ? shared_expert(m, y, path) : NULL;
  node *n = new_node(m, EXPERTS, y, c->dim);
  n->in[1] = z->out[0], n->in[2] = shared;
  n->w[0] = router_state(m, path);
  n->expert = zeroed(3 * c->experts, sizeof *n->expert);
  for (int64_t i = 0; i < 3 * c->experts; i++) {
    char name[48];
    const int down = i % 3 == 2;
    snprintf(name, sizeof name, "experts.%lld.%s", (long long)i / 3, names[i % 3]);
    n->expert[i] =
        new_weight(m, path, name, down ? c->dim : c->hidden, down ? c->hidden : c->dim, -1, NORMAL);
  }
  n->chosen = zeroed(rows, sizeof *n->chosen), n->mix = zeroed(rows, sizeof(float));
  n->gate = zeroed(rows * c->hidden, sizeof(float));
  n->up = zeroed(rows * c->hidden, sizeof(float));
  n->act = zeroed(rows * c->hidden, sizeof(float));
  n->slot = zeroed(rows * c->dim, sizeof(float));
  return n->out[0];
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
  snprintf(path, sizeof path, "layers.%lld.%s", (long long)i, m->c->mla ? "mla" : "attention");
  snprintf(norm_path, sizeof norm_path, "%s.%s", path, norm);
  value *mixed =
      m->c->mla ? mla_branch(m, x, path, norm_path) : attention_branch(m, x, path, norm_path);
  x = add(m, x, dropout(m, mixed, path));
  const char *const wide = m->c->experts > 0 ? "moe" : m->c->gpt ? "gelu" : "swiglu";
  snprintf(path, sizeof path, "layers.%lld.%s", (long long)i, wide);
  snprintf(norm_path, sizeof norm_path, "%s.%s", path, norm);
  mixed =
      m->c->experts > 0 ? moe_branch(m, x, path, norm_path) : feed_forward(m, x, path, norm_path);
  x = add(m, x, dropout(m, mixed, path));
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
