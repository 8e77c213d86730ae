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
  LEVEL
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
  int64_t heads;            /* ROPE, SPLIT, JOIN: of the first value; 1 where it has none */
  uint64_t stream;          /* DROPOUT */
  float *rstd, *mean, *lse; /* (tokens), (tokens), (tokens, heads) */
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

#endif
