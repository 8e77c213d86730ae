/* sums.c - sections 12 and 13 of docs/numerics.md: gradients of weights, their norm, AdamW. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

enum { MATRIX_TOKENS = 8192, VECTOR_TOKENS = 64, CHUNK = 65536 };

/* acc = block, or acc + block when it is not the first. */
static void take(float *acc, const float *block, int64_t size, int first) {
  for (int64_t i = 0; i < size; i++) acc[i] = first ? block[i] : acc[i] + block[i];
}

void matrix_blocks(const config *c, int64_t runs, int64_t size, block_sum *sum, const void *use,
                   float *out) {
  float *acc = zeroed(runs * c->leaves_dp * size, sizeof *acc), *block = zeroed(size, sizeof *acc);
  for (int64_t run = 0; run < runs; run++) {
    const int64_t start = border(run, runs, c->length);
    const int64_t length = border(run + 1, runs, c->length) - start;
    for (int64_t leaf = 0; leaf < c->leaves_dp; leaf++) {
      float *own = acc + (run * c->leaves_dp + leaf) * size;
      const int64_t end = border(leaf + 1, c->leaves_dp, c->samples);
      const int64_t together = length > 0 && length <= MATRIX_TOKENS ? MATRIX_TOKENS / length : 1;
      int first = 1;
      for (int64_t s = border(leaf, c->leaves_dp, c->samples); s < end; s += together) {
        for (int64_t at = 0; at < length; at += MATRIX_TOKENS) {
          const piece p = {.first = s,
                           .samples = end - s < together ? end - s : together,
                           .start = start + at,
                           .length = length - at < MATRIX_TOKENS ? length - at : MATRIX_TOKENS};
          sum(use, &p, block);
          take(own, block, size, first);
          first = 0;
        }
      }
    }
    tree(acc + run * c->leaves_dp * size, c->leaves_dp, size);
    memmove(acc + run * size, acc + run * c->leaves_dp * size, (size_t)size * sizeof *acc);
  }
  tree(acc, runs, size);
  memcpy(out, acc, (size_t)size * sizeof *acc);
  free(acc);
  free(block);
}

/* s of one column over tokens first .. first + n - 1. */
static float vector_block(const terms *t, int64_t column, int64_t first, int64_t n) {
  float s = 0.0f;
  for (int64_t row = first; row < first + n; row++) {
    const float dy = t->dy[row * t->d + column];
    const float x = t->kind != 0 ? t->x[row * t->d + column] : 0.0f;
    if (t->kind == 0) s = s + dy;
    if (t->kind == 1) s = fmaf(dy, x * t->rstd[row], s);
    if (t->kind == 2) s = fmaf(dy, (x - t->mean[row]) * t->rstd[row], s);
  }
  return s;
}

static float vector_leaf(const config *c, const terms *t, int64_t column, int64_t leaf,
                         int64_t start, int64_t end) {
  float acc = 0.0f;
  const int64_t last = border(leaf + 1, c->leaves_dp, c->samples);
  for (int64_t s = border(leaf, c->leaves_dp, c->samples); s < last; s++)
    for (int64_t at = start; at < end; at += VECTOR_TOKENS)
      acc = acc + vector_block(t, column, s * c->length + at,
                               end - at < VECTOR_TOKENS ? end - at : VECTOR_TOKENS);
  return acc;
}

void vector_blocks(const config *c, int64_t runs, const terms *t, float *out) {
  float *leaf = zeroed(c->leaves_dp, sizeof *leaf), *run = zeroed(runs, sizeof *run);
  for (int64_t column = 0; column < t->d; column++) {
    for (int64_t r = 0; r < runs; r++) {
      const int64_t start = border(r, runs, c->length), end = border(r + 1, runs, c->length);
      for (int64_t i = 0; i < c->leaves_dp; i++) leaf[i] = vector_leaf(c, t, column, i, start, end);
      tree(leaf, c->leaves_dp, 1);
      run[r] = leaf[0];
    }
    tree(run, runs, 1);
    out[column] = run[0];
  }
  free(leaf);
  free(run);
}

/* --- 13 --------------------------------------------------------------------------------------- */

/* The squared sum of rows r0 .. r1 - 1, columns c0 .. c1 - 1. */
static float squares(const weight *w, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
  float *chunk = zeroed(CHUNK, sizeof *chunk), part = 0.0f;
  int64_t used = 0;
  for (int64_t r = r0; r < r1; r++)
    for (int64_t c = c0; c < c1; c++) {
      chunk[used++] = w->grad[r * w->cols + c];
      if (used < CHUNK && !(r == r1 - 1 && c == c1 - 1)) continue;
      part = part + rule(chunk, chunk, used);
      used = 0;
    }
  free(chunk);
  return part;
}

static int by_name(const void *a, const void *b) {
  return strcmp((*(weight *const *)a)->name, (*(weight *const *)b)->name);
}

float gradient_norm(const config *c, weight *weights, int64_t count) {
  weight **sorted = zeroed(count, sizeof(weight *));
  float total = 0.0f;
  for (int64_t i = 0; i < count; i++) sorted[i] = &weights[i];
  qsort(sorted, (size_t)count, sizeof *sorted, by_name);
  for (int64_t i = 0; i < count; i++) {
    const weight *w = sorted[i];
    if (w->state) continue;
    const int64_t parts = w->leaf_axis >= 0 ? c->leaves_tp : 1;
    float part[64];
    for (int64_t p = 0; p < parts; p++) {
      if (w->leaf_axis == 1)
        part[p] = squares(w, 0, w->rows, border(p, parts, w->cols), border(p + 1, parts, w->cols));
      else
        part[p] = squares(w, border(p, parts, w->rows), border(p + 1, parts, w->rows), 0, w->cols);
    }
    tree(part, parts, 1);
    total = total + part[0];
  }
  free(sorted);
  return sqrtf(total);
}

void update(const config *c, weight *w, const scalars *s) {
  const float beta1 = (float)0.9, beta2 = (float)0.95, eps = (float)1e-8;
  const float decay = w->decays ? (float)0.1 : 0.0f, rate = s->lr * w->lr_scale;
  for (int64_t i = 0; w->state && i < w->rows; i++) w->value[i] = w->m[i];
  for (int64_t i = 0; !w->state && i < w->rows * w->cols; i++) {
    const float g = w->grad[i] * s->factor;
    w->m[i] = fmaf(beta1, w->m[i], (1.0f - beta1) * g);
    w->v[i] = fmaf(beta2, w->v[i], ((1.0f - beta2) * g) * g);
    const float u = (w->m[i] * s->c1) / (sqrtf(w->v[i] * s->c2) + eps);
    w->exact[i] = fmaf(-rate, fmaf(decay, w->exact[i], u), w->exact[i]);
    w->value[i] = rounded(w->exact[i], c->bf16);
  }
}
