/* states.c - states, of sections 12 and 13 of docs/numerics.md: one that averages the stream. */
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* s.m is what the step leaves: 0.75 * s + 0.25 * g.mean(x), each sign an operator of the graph. */
static void next(const config *c, const weight *s, const float *x) {
  float *sum = zeroed(s->rows, sizeof *sum);
  const float share = (float)(1.0 / (double)c->tokens);
  vector_blocks(c, c->leaves_tp, &(terms){.d = s->rows, .dy = x}, sum); /* x lies in the trunk */
  for (int64_t i = 0; i < s->rows; i++)
    s->m[i] = (s->value[i] * 0.75f) + ((sum[i] * share) * 0.25f);
  free(sum);
}

void level_value(const config *c, const weight *s, const float *x, float *y) {
  for (int64_t i = 0; i < c->tokens * s->rows; i++) {
    const float product = rounded(x[i] * s->value[i % s->rows], c->bf16);
    y[i] = rounded(x[i] + product, c->bf16);
  }
  next(c, s, x);
}

/* x is used by the product first, then by the sum; the state has no gradient. */
void level_gradient(const config *c, const weight *s, const float *dy, float *dx) {
  for (int64_t i = 0; i < c->tokens * s->rows; i++) {
    const float product = rounded(dy[i] * s->value[i % s->rows], c->bf16);
    dx[i] = rounded(product + dy[i], c->bf16);
  }
}
