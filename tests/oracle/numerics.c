/* numerics.c - trains a small decoder as docs/numerics.md says, and prints the bits of every step.
**
**   numerics NAME=NUMBER .. FILE ..      options first; the files are the texts, in order
**
** One line a step: its number, the bits of the loss and of the gradient norm, the hashes of weights
** and of the optimizer's state. With requests=1, then, what some requests get from the trained
** model: position, token, the bits of its log-probability.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* --- 14: learning rate ------------------------------------------------------------------------ */

static double sine(double x, double tail) {
  const double z = x * x, v = z * x;
  double r = 0x1.71de357b1fe7dp-19 + z * (-0x1.ae5e68a2b9cebp-26 + z * 0x1.5d93a5acfd57cp-33);
  r = 0x1.111111110f8a6p-7 + z * (-0x1.a01a019c161d5p-13 + z * r);
  return x - ((z * (0.5 * tail - v * r) - tail) - v * -0x1.5555555555549p-3);
}

static double cosine(double x, double tail) {
  const double z = x * x, h = 0.5 * z, w = 1 - h;
  double r = 0x1.1ee9ebdb4b1c4p-29 + z * -0x1.8fae9be8838d4p-37;
  r = z *
      (-0x1.6c16c16c15177p-10 + z * (0x1.a01a019cb1590p-16 + z * (-0x1.27e4f809c52adp-22 + z * r)));
  r = z * (0x1.555555555554cp-5 + r);
  return w + (((1 - w) - h) + (z * r - x * tail));
}

static double cos64(double x) {
  const double n = floor(x * 0x1.45f306dc9c883p-1 + 0.5);
  const double t = x - n * 0x1.921fb544p+0;
  double w = n * 0x1.0b4611a6p-34;
  const double r = t - w;
  w = n * 0x1.3198a2e037073p-69 - ((t - r) - w);
  const double y = r - w, tail = (r - y) - w;
  const int64_t quarter = ((int64_t)n % 4 + 4) % 4;
  const double value = quarter % 2 == 0 ? cosine(y, tail) : sine(y, tail);
  return quarter == 1 || quarter == 2 ? -value : value;
}

static float learning_rate(const config *c, int64_t t) {
  const double pi = 0x1.921fb54442d18p+1;
  if (t <= c->warmup) return (float)(c->peak * (double)t / (double)c->warmup);
  const int64_t stable = c->total - c->decay;
  if (c->schedule == 1 || (c->schedule == 2 && t <= stable)) return (float)c->peak;
  if (t >= c->total) return (float)c->floor;
  if (c->schedule == 2)
    return (float)(c->peak + (c->floor - c->peak) * ((double)(t - stable) / (double)c->decay));
  const double part = (double)(t - c->warmup) / (double)(c->total - c->warmup);
  return (float)(c->floor + (c->peak - c->floor) * (0.5 * (1.0 + cos64(pi * part))));
}

/* --- 16: the weights hash --------------------------------------------------------------------- */

/* The true elements of x, which belongs to w; a bf16 number has 16 bits. */
static uint64_t tensor_hash(const weight *w, const float *x, int bf16) {
  const uint64_t name = hash_name(w->name);
  uint64_t sum = 0;
  for (int64_t i = 0; i < w->rows_true * w->cols; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], 4);
    if (bf16) bits >>= 16;
    sum += mix64(mix64(name + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15) ^ bits);
  }
  return sum;
}

static uint64_t weights_hash(const config *c, const weight *weights, int64_t count) {
  uint64_t sum = 0;
  for (int64_t k = 0; k < count; k++)
    sum += tensor_hash(&weights[k], weights[k].value, c->bf16 && !weights[k].state);
  return sum;
}

static uint64_t state_hash(const config *c, const weight *weights, int64_t count) {
  uint64_t m = 0, v = 0, master = 0;
  char text[64];
  for (int64_t k = 0; k < count; k++) {
    const weight *w = &weights[k];
    if (w->state) continue;
    m += tensor_hash(w, w->m, 0), v += tensor_hash(w, w->v, 0);
    if (c->bf16) master += tensor_hash(w, w->exact, 0);
  }
  snprintf(text, sizeof text, "%016llx %016llx %016llx", (unsigned long long)m,
           (unsigned long long)v, (unsigned long long)master);
  return hash_bytes(text, (int64_t)strlen(text));
}

/* --- requests --------------------------------------------------------------------------------- */

static void serve(const config *c, model *m) {
  static const request requests[] = {
      {1,  4, 0, 1,   0,         0, 0  },
      {9,  5, 0, 1,   3,         1, 0.8},
      {20, 4, 0, 0.9, 1LL << 40, 0, 1.2},
      {5,  6, 6, 0.7, 5,         0, 1.0},
      {33, 4, 3, 1,   0,         7, 1.5},
  };
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) generate(c, m, &requests[i]);
}

/* --- training --------------------------------------------------------------------------------- */

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static model *train(const config *c, const corpus *texts) {
  model *m = model_new(c);
  int64_t count;
  weight *weights = model_weights(m, &count);
  const double beta1 = (float)0.9, beta2 = (float)0.95;
  const float clip = (float)c->clip;
  double power1 = 1, power2 = 1;
  for (int64_t t = 1; t <= c->steps; t++) {
    batch b;
    corpus_batch(texts, c, t - 1, &b);
    const float loss = model_step(m, &b, t - 1), norm = gradient_norm(c, weights, count);
    power1 = power1 * beta1, power2 = power2 * beta2;
    scalars s = {.lr = learning_rate(c, t),
                 .c1 = (float)(1 / (1 - power1)),
                 .c2 = (float)(1 / (1 - power2)),
                 .factor = 1.0f};
    const float q = clip / (norm + (float)1e-6);
    if (clip > 0 && q < 1) s.factor = q;
    for (int64_t i = 0; i < count; i++) update(c, &weights[i], &s);
    printf("%lld %08x %08x %016llx %016llx\n", (long long)t, bits_of(loss), bits_of(norm),
           (unsigned long long)weights_hash(c, weights, count),
           (unsigned long long)state_hash(c, weights, count));
  }
  return m;
}

/* --- options ---------------------------------------------------------------------------------- */

static double option(int argc, char **argv, const char *name) {
  const size_t length = strlen(name);
  for (int i = 1; i < argc; i++)
    if (strncmp(argv[i], name, length) == 0 && argv[i][length] == '=')
      return strtod(argv[i] + length + 1, NULL);
  fprintf(stderr, "the option %s is missing\n", name);
  exit(1);
}

#define WHOLE(name) c->name = (int64_t)option(argc, argv, #name)
#define FLAG(name) c->name = (int)option(argc, argv, #name)
#define NUMBER(name) c->name = option(argc, argv, #name)

static void read_model(int argc, char **argv, config *c) {
  FLAG(bf16), FLAG(gpt), FLAG(qk_norm), FLAG(linear), FLAG(level), FLAG(ruled), FLAG(waves);
  WHOLE(vocab), WHOLE(dim), WHOLE(layers), WHOLE(hidden);
  WHOLE(heads), WHOLE(kv_heads), WHOLE(head_dim), WHOLE(window);
  FLAG(mla), FLAG(yarn);
  WHOLE(q_rank), WHOLE(kv_rank), WHOLE(nope_dim), WHOLE(rope_dim), WHOLE(v_dim);
  WHOLE(experts), WHOLE(top_k), WHOLE(shared), WHOLE(groups), WHOLE(top_groups);
  FLAG(router), FLAG(normalize), FLAG(moves);
  NUMBER(scale), NUMBER(balance), WHOLE(router_seed);
  WHOLE(leaves_tp), WHOLE(leaves_dp), WHOLE(kv_block), WHOLE(split), WHOLE(seed);
  const int64_t aligned = 16 * c->leaves_tp;
  c->vocab_padded = (c->vocab + aligned - 1) / aligned * aligned;
}

static void read_training(int argc, char **argv, config *c) {
  FLAG(lines), FLAG(mix), NUMBER(fraction);
  WHOLE(samples), WHOLE(length);
  WHOLE(steps), FLAG(schedule), WHOLE(warmup), WHOLE(decay), WHOLE(total);
  NUMBER(peak), NUMBER(floor), NUMBER(clip), NUMBER(dropout), NUMBER(smoothing), NUMBER(z);
  c->tokens = c->samples * c->length;
}

int main(int argc, char **argv) {
  config c = {0};
  read_model(argc, argv, &c);
  read_training(argc, argv, &c);
  int files = argc;
  while (files > 1 && strchr(argv[files - 1], '=') == NULL) files--;
  model *trained = train(&c, corpus_open(&c, argv + files, argc - files));
  if (option(argc, argv, "requests") == 1) serve(&c, trained);
  return 0;
}
