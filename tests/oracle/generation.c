/* generation.c - section 18 of docs/numerics.md: what requests get from a trained model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

static const float log2e = 0x1.715476p+0f;

/* The true logits that candidates are sorted by. */
static const float *sorted_by;

static int by_falling_z(const void *a, const void *b) {
  const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
  if (sorted_by[i] != sorted_by[j]) return sorted_by[i] > sorted_by[j] ? -1 : 1;
  return i < j ? -1 : 1;
}

/* S(0) .. S(count - 1) of weights in the order of the candidates. */
static void sums(const float *w, const int32_t *candidate, int64_t count, float *S) {
  float whole = 0.0f, s = 0.0f;
  for (int64_t i = 0; i < count; i++) {
    if (i % 256 == 0) whole = whole + s, s = 0.0f;
    s = s + w[candidate[i]];
    S[i] = whole + s;
  }
}

/* The token that `r` takes at `position`, by the V true logits z. */
static int32_t choose(const config *c, const request *r, const float *z, int64_t position) {
  const int64_t V = c->vocab;
  int32_t best = 0, *candidate = zeroed(V, sizeof *candidate);
  float *w = zeroed(V, sizeof *w), *S = zeroed(V, sizeof *S);
  for (int32_t j = 0; j < V; j++) {
    candidate[j] = j;
    if (z[j] > z[best]) best = j;
  }
  if (r->temperature == 0) return best;
  for (int64_t j = 0; j < V; j++)
    w[j] = exp2_f32(((z[j] - z[best]) / (float)r->temperature) * log2e);

  const int cut = 0 < r->top_k && r->top_k < V;
  int64_t count = cut ? r->top_k : V;
  sums(w, candidate, V, S);
  float total = S[V - 1]; /* of all ids, ascending */
  if (cut || r->top_p < 1) {
    sorted_by = z;
    qsort(candidate, (size_t)V, sizeof *candidate, by_falling_z);
    sums(w, candidate, count, S);
  }
  if (cut) total = S[count - 1];
  if (r->top_p < 1) {
    int64_t i = 0;
    while (i < count - 1 && !(S[i] >= (float)r->top_p * total)) i++;
    count = i + 1;
  }
  uint32_t word[2];
  words((uint64_t)r->seed, hash_name("sample"), (uint64_t)position, (uint64_t)r->number, word);
  const float u = unit(word[0]) * S[count - 1];
  for (int64_t i = 0; i < count; i++)
    if (S[i] > u) return candidate[i];
  return candidate[count - 1];
}

void generate(const config *c, model *m, const request *r) {
  config plain = *c; /* the loss as a log-probability has it */
  plain.smoothing = plain.z = 0;
  const int64_t most = r->prompt + r->count, bytes = sizeof(int32_t);
  batch b = {zeroed(most + 1, bytes), zeroed(most, bytes), zeroed(most, bytes), zeroed(most, bytes),
             1};
  for (int64_t t = 0; t < r->prompt; t++) b.id[t] = (int32_t)((7 * t + 3) % c->vocab);
  float *loss = zeroed(most, sizeof *loss);
  float *dz = zeroed(most * c->vocab_padded, sizeof *dz);
  for (int64_t n = r->prompt; n < most; n++) {
    plain.tokens = n;
    for (int64_t t = 0; t < n; t++) b.target[t] = -1, b.end[t] = (int32_t)n;
    const float *logits = model_logits(m, &b, n);
    b.id[n] = b.target[n - 1] = choose(c, r, logits + (n - 1) * c->vocab_padded, n);
    cross_entropy(&plain, &b, logits, loss, dz);
    const float logprob = -loss[n - 1];
    uint32_t bits;
    memcpy(&bits, &logprob, sizeof bits);
    printf("%lld:%d %08x\n", (long long)n, b.id[n], bits);
  }
}
