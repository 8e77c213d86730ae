/* latent.c - split_heads and join_heads of sections 8 and 11 of docs/numerics.md. */
#include "oracle.h"

/* Channel e of a head of the whole, and of a piece that begins at channel `first`. */
static int64_t whole_at(const pieces *p, int64_t row, int64_t head) {
  return (row * p->heads + head) * (p->first + p->other);
}

static int64_t other_at(const pieces *p, int64_t row, int64_t head) {
  return (p->shared ? row : row * p->heads + head) * p->other;
}

void split_value(const pieces *p, float *first, float *other) {
  for (int64_t row = 0; row < p->c->tokens; row++)
    for (int64_t head = 0; head < p->heads; head++) {
      const float *x = p->x + whole_at(p, row, head);
      for (int64_t e = 0; e < p->first; e++) first[(row * p->heads + head) * p->first + e] = x[e];
      for (int64_t e = 0; e < p->other; e++) other[other_at(p, row, head) + e] = x[p->first + e];
    }
}

void join_value(const pieces *p, const float *first, const float *other, float *y) {
  for (int64_t row = 0; row < p->c->tokens; row++)
    for (int64_t head = 0; head < p->heads; head++) {
      float *out = y + whole_at(p, row, head);
      for (int64_t e = 0; e < p->first; e++) out[e] = first[(row * p->heads + head) * p->first + e];
      for (int64_t e = 0; e < p->other; e++) out[p->first + e] = other[other_at(p, row, head) + e];
    }
}

/* The largest power of two that divides both. */
static int64_t leaves_of(int64_t a, int64_t b) {
  int64_t leaves = 1;
  while (a % (2 * leaves) == 0 && b % (2 * leaves) == 0) leaves *= 2;
  return leaves;
}

/* Channel e of all heads of a row. */
static float sum_of_heads(const pieces *p, const float *dy, int64_t row, int64_t e) {
  const int64_t leaves = leaves_of(p->c->leaves_tp, p->heads), each = p->heads / leaves;
  float leaf[64];
  for (int64_t i = 0; i < leaves; i++) {
    leaf[i] = 0.0f;
    for (int64_t head = i * each; head < (i + 1) * each; head++)
      leaf[i] = leaf[i] + dy[whole_at(p, row, head) + p->first + e];
  }
  tree(leaf, leaves, 1);
  return rounded(leaf[0], p->c->bf16);
}

void join_gradient(const pieces *p, const float *dy, float *first, float *other) {
  for (int64_t row = 0; row < p->c->tokens; row++) {
    for (int64_t head = 0; head < p->heads; head++) {
      const float *from = dy + whole_at(p, row, head);
      for (int64_t e = 0; e < p->first; e++)
        first[(row * p->heads + head) * p->first + e] = from[e];
      for (int64_t e = 0; e < p->other && !p->shared; e++)
        other[other_at(p, row, head) + e] = from[p->first + e];
    }
    for (int64_t e = 0; e < p->other && p->shared; e++)
      other[row * p->other + e] = sum_of_heads(p, dy, row, e);
  }
}
