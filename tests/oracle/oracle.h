/* oracle.h - a second implementation of docs/numerics.md, written from that page alone.
**
** Section numbers are those of the page. Nothing here comes from Tidelock's own source, and
** nothing is done for speed: one thread, one number at a time. bf16 numbers are kept as the f32
** that they widen to.
**
**   arithmetic.c   sections 1 to 5      operators.c   sections 8, 10 and 11, on arrays
**   attention.c    section 9, rope      build.c       section 7: the nodes
**   sums.c         sections 12, 13      model.c       the nodes, forward and backward
**   states.c       sections 12, 13      latent.c      pieces of heads
**   corpus.c       section 6            experts.c     section 17
**   generation.c   section 18           numerics.c    the rest, and the training loop
*/
#ifndef ORACLE_H
#define ORACLE_H

#include <stdint.h>

/* arithmetic.c */
float bf(float x);
float rounded(float x, int bf16);
/* A chain over n products a[i * a_stride] * b[i * b_stride] that resumes acc. */
float chain(float acc, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
            int64_t n, int bf16);
int64_t border(int64_t i, int64_t n, int64_t length);
/* The tree over n rows of `size` numbers; the result is row 0. */
void tree(float *rows, int64_t n, int64_t size);
/* The row rule of a * b, or of a alone where b is NULL. */
float rule(const float *a, const float *b, int64_t n);
float exp2_f32(float x);
float log2_f32(float x);
float log_f32(float x);
float sigmoid_f32(float x);
float tanh_f32(float x);
float sin_f32(float x);
float cos_f32(float x);
uint64_t mix64(uint64_t x);
uint64_t hash_bytes(const void *data, int64_t bytes);
uint64_t hash_name(const char *name);
/* Words 0 and 1 of a stream. */
void words(uint64_t seed, uint64_t stream, uint64_t index, uint64_t step, uint32_t out[2]);
float unit(uint32_t word);

/* What is trained: numbers of a recipe. */
typedef struct config {
  int bf16, gpt; /* gpt: layer_norm, gelu, biases, positions, a tied head, dropout, no rope */
  int qk_norm;   /* norms of the heads of q and k */
  int linear;    /* a linear without leaf dims behind every layer */
  int level;     /* a moving average of the stream, a state, that every layer's stream meets */
  int ruled;     /* the gates: uniform initial values in 0.05, half the rate */
  int waves;     /* 1: llama3's, stretched by 3 from 32 tokens, 1 and 4; 2: all stretched by 3 */
  int lines;     /* the files are 16-bit ids in documents that end with id 10 */
  int mix;       /* a mixture of two sources */
  int schedule;  /* 0 cosine, 1 constant, 2 the peak but for the last `decay` steps */
  int mla;       /* latent attention in the place of attention; pairs are neighbours, base 100 */
  int yarn;      /* waves stretched by 3 from 32 tokens, borders 4 and 1, mscale 1 and 0.7 */
  int64_t q_rank, kv_rank, nope_dim, rope_dim, v_dim; /* of latent attention */
  int64_t experts;                                    /* 0: none; hidden is the width of one */
  int64_t top_k, shared, groups, top_groups;
  int router, normalize;    /* softmax, sigmoid, sqrt_softplus, hash from 0 */
  int moves;                /* balance moves a bias, else it is the weight of a loss */
  double scale, balance;    /* 0: no balance */
  int64_t router_seed;      /* of the hash */
  int64_t head_dim, window; /* 0: dim / heads, all keys */
  int64_t vocab, vocab_padded, dim, layers, heads, kv_heads, hidden, samples, length;
  int64_t tokens; /* samples * length */
  int64_t leaves_tp, leaves_dp, kv_block, split, seed, steps, warmup, decay, total;
  double fraction; /* of the documents that the first part of a split has; 1: no split */
  double peak, floor, clip, dropout, smoothing, z;
} config;

/* corpus.c: the global batch of a step, and where each token's segment starts and ends. */
typedef struct batch {
  int32_t *id, *target, *start, *end; /* (tokens); start and end are rows of the batch */
  int64_t targets;                    /* N */
} batch;
typedef struct corpus corpus;
corpus *corpus_open(const config *c, char **paths, int count);
void corpus_batch(const corpus *corpus, const config *c, int64_t step, batch *out);

/* A weight of the model. */
typedef struct weight {
  char name[64];
  int64_t rows, cols, rows_true;
  int leaf_axis; /* 0 rows, 1 columns, -1 none: section 13 */
  int decays;
  float lr_scale;
  int state;                    /* f32 in every dtype, no gradient; m is its value after the step */
  float *value, *exact, *m, *v; /* value: what operators see; exact: what AdamW steps */
  float *grad;                  /* f32, NULL before the first use of a step */
} weight;

/* sums.c: section 12. A use of a weight adds `size` numbers over the tokens of the batch. */
typedef struct piece { /* tokens start .. start + length - 1 of each of the samples */
  int64_t first, samples, start, length;
} piece;
typedef void block_sum(const void *use, const piece *p, float *out);
void matrix_blocks(const config *c, int64_t runs, int64_t size, block_sum *sum, const void *use,
                   float *out);
/* kind 0: dy; 1: dy * (x * rstd); 2: dy * ((x - mean) * rstd). d numbers for each token. */
typedef struct terms {
  int kind;
  int64_t d;
  const float *dy, *x, *rstd, *mean;
} terms;
void vector_blocks(const config *c, int64_t runs, const terms *t, float *out);
/* Section 13: the norm, then the update with the step's three scalars. */
float gradient_norm(const config *c, weight *weights, int64_t count);
typedef struct scalars {
  float lr, c1, c2, factor;
} scalars;
void update(const config *c, weight *w, const scalars *s);

/* operators.c: x (rows, d) and so on; outputs are rounded to bf16 where the flag says so. */

/* out (rows, n): the tree over leaves of chains over k, which borders[0 .. leaves] cut. */
typedef struct product {
  const float *a, *b; /* (rows, k), (n, k) */
  int64_t rows, n, k, leaves;
  const int64_t *borders;
  const float *bias; /* (n) or NULL */
  int factors_bf16, out_bf16;
} product;
void multiply(const product *p, float *out);
typedef struct norm {
  int64_t rows, d;
  int layer, bf16; /* layer_norm, else rms_norm */
  const float *x, *gain, *bias;
  float *rstd, *mean; /* (rows), outputs of norm_value */
} norm;
void norm_value(const norm *n, float *y);
void norm_gradient(const norm *n, const float *dy, float *dx);
float gelu(float x);
float gelu_gradient(float dy, float x);
/* The loss of each token, and dz. */
void cross_entropy(const config *c, const batch *b, const float *z, float *loss, float *dz);

/* attention.c: q (tokens, heads, width), k (tokens, kv_heads, width), lse (tokens, heads), v and o
** the same with value_width */
typedef struct attention {
  const config *c;
  const batch *b;
  int64_t width, value_width;
  const float *q, *k, *v;
} attention;
void attention_value(const attention *a, float *o, float *lse);
typedef struct attention_grads {
  const float *o, *lse, *dy;
  float *dq, *dk, *dv;
} attention_grads;
void attention_gradient(const attention *a, const attention_grads *g);
/* Turns x (tokens, heads, width) into y; sign -1 turns back. */
void rope(const attention *a, const float *x, int64_t heads, float sign, float *y);

/* latent.c: x (tokens, heads, first + other), its pieces (tokens, heads, first) and (tokens, heads,
** other); shared: the other piece is (tokens, other), the same for every head */
typedef struct pieces {
  const config *c;
  int64_t heads, first, other;
  int shared;
  const float *x;
} pieces;
void split_value(const pieces *p, float *first, float *other);
void join_value(const pieces *p, const float *first, const float *other, float *y);
void join_gradient(const pieces *p, const float *dy, float *first, float *other);

/* states.c: y = x + x * s, and after the step s = 3/4 s + 1/4 of the mean of x over all tokens. */
void level_value(const config *c, const weight *s, const float *x, float *y);
void level_gradient(const config *c, const weight *s, const float *dy, float *dx);

/* build.c, model.c */
typedef struct model model;
model *model_new(const config *c);
weight *model_weights(model *m, int64_t *count);
/* One step's forward and backward pass: the loss, and the gradients of all weights. */
float model_step(model *m, const batch *b, int64_t step);
/* The forward pass of one sample, without dropout: logits (tokens, vocab_padded). */
const float *model_logits(model *m, const batch *b, int64_t tokens);

/* generation.c: prints position, token and bits of the log-probability for `count` tokens behind a
** prompt of `prompt` tokens, which are (7 * position + 3) mod vocab. */
typedef struct request {
  int64_t prompt, count, top_k;
  double top_p;
  int64_t seed, number;
  double temperature;
} request;
void generate(const config *c, model *m, const request *r);

void *zeroed(int64_t count, int64_t size); /* memory for the life of the program */

#endif
