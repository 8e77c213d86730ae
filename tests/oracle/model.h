/* model.h - the graph of a decoder, as build.c makes it and model.c runs it. */
#ifndef ORACLE_MODEL_H
#define ORACLE_MODEL_H

#include "oracle.h"

enum { USES_MAX = 4, PARTS_MAX = 3, NODES_MAX = 256, WEIGHTS_MAX = 256 };

typedef struct value {
  int64_t cols;
  int bf16;
  float *x;              /* (tokens, cols) */
  float *grad[USES_MAX]; /* contributions, the last use first */
  int grads;
} value;

typedef enum op {
  EMBEDDING,
  LINEAR,
  NORM,
  SWIGLU,
  GELU,
  ROPE,
  SPLIT,
  JOIN,
  ATTENTION,
  ADD,
  DROPOUT,
  LEVEL,
  EXPERTS
} op;

/* Which dims of a linear are leaf dims: those it makes, those it sums, none. */
typedef enum leaf_dims { OUTPUTS, INPUTS, NONE } leaf_dims;

typedef struct node {
  op op;
  value *in[PARTS_MAX], *out[PARTS_MAX];
  weight *w[PARTS_MAX], *bias[PARTS_MAX]; /* NORM: gain in w[0] */
  int parts;
  leaf_dims dims;           /* LINEAR */
  int positions;            /* EMBEDDING: of positions, not of ids */
  int apart;                /* NORM: of heads */
  int64_t heads;            /* NORM, ROPE, SPLIT, JOIN: of the first value; 1 where it has none */
  uint64_t stream;          /* DROPOUT */
  float *rstd, *mean, *lse; /* (tokens), (tokens), (tokens, heads) */
  /* EXPERTS: of x, z and, or NULL, the shared expert's y; w[0] is a bias, a table, or NULL */
  weight **expert;                     /* gate, up, down of each */
  int32_t *chosen;                     /* (tokens, top_k) */
  float *mix, *gate, *up, *act, *slot; /* mix (tokens, top_k), others of a row each */
} node;

/* The model; `c` are the numbers of its recipe. */
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

/* model.c */
void contribute(value *x, float *grad);
void matrix_gradient(const config *c, weight *w, int64_t runs, block_sum *sum, const void *use);

/* experts.c */
void experts_value(const model *m, const node *n);
void experts_gradient(const model *m, const node *n, float *dy);

#endif
