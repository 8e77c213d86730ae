/* moe_args.h - arguments of the kernels of mixtures of experts, but for the products
** (grouped_args.h).
*/
#ifndef TL_MOE_ARGS_H
#define TL_MOE_ARGS_H

#include "../device_args.h"

enum {
  TL_MOE_MOST_EXPERTS = 1024, /* TL_MOE_EXPERTS_MAX */
  TL_MOE_WARPS = 8,           /* rows that a block of a router kernel has under way */
  TL_MOE_SUM_TOKENS = 64,     /* of a block of route_sums */
  TL_MOE_COUNT_TOKENS = 1024  /* whose choices a block of expert_counts counts */
};

/* Rows of router logits. */
typedef struct tl_route_args {
  const float *z, *bias; /* bias: or NULL */
  float *weight;
  int32_t *expert;
  uint64_t *found; /* what is wrong with a row: note | token << 2 | fault, the least stays */
  uint64_t note;
  int64_t rows;
  int32_t experts, slots, kind, groups, top_groups, normalize;
  int32_t vectors; /* rows begin at multiples of what a lane takes */
  float scale;
} tl_route_args;

/* The same where a table chooses: ids (samples, length), table (vocab, slots). */
typedef struct tl_route_table_args {
  tl_route_args route;
  const int32_t *ids;
  const float *table;
  int64_t tokens, length, token_first, vocab; /* tokens: of a sample here */
} tl_route_table_args;

typedef struct tl_route_grad_args {
  const float *z;
  const int32_t *expert, *place;
  const float *dweight, *load; /* load: or NULL */
  tl_array dz;
  int64_t rows, tokens; /* tokens of a sample here */
  int32_t experts, slots, kind, normalize;
  int32_t vectors;
  float scale, balance;
} tl_route_grad_args;

/* Sums of a sample's runs: of blocks of 64 tokens, then over blocks and runs. */
typedef struct tl_route_sums_args {
  const float *z;
  const int32_t *expert;
  float *share, *load;
  float *sums;                           /* (samples, runs, blocks, experts) */
  int32_t *counts;                       /* the same */
  int64_t samples, tokens, runs, blocks; /* blocks: of the longest run */
  int32_t experts, slots;
  int32_t vectors;
} tl_route_sums_args;

typedef struct tl_balance_args {
  const float *share, *load;
  float *loss;
  int64_t samples;
  int32_t experts;
  float length;
} tl_balance_args;

typedef struct tl_counts_args {
  const int32_t *expert;
  int32_t *counts;
  int64_t tokens, samples, pieces, block, token_first; /* tokens: of a sample here */
  int64_t blocks;                                      /* of threads, for a piece */
  int32_t experts, slots;
} tl_counts_args;

/* A stable counting sort: chunks of slots, one warp each. */
typedef struct tl_order_args {
  const int32_t *expert;
  int32_t *place, *order, *starts;
  int32_t *table; /* (listed, chunks): first how many, then how many before */
  int64_t count, chunk, chunks;
  int32_t experts, listed;
  uint16_t place_of[TL_MOE_MOST_EXPERTS];
} tl_order_args;

typedef struct tl_load_args {
  const int32_t *counts;
  int64_t *load;
  float *sign;
  int64_t rows;
  int32_t experts, adds;
} tl_load_args;

typedef struct tl_segments_args {
  const int32_t *counts; /* (ranks pieces, experts) */
  int32_t *offsets, *segments;
  int32_t ranks, share, pieces, experts, slots;
  int16_t expert[TL_MOE_MOST_EXPERTS]; /* of each slot, -1: none */
} tl_segments_args;

/* rows[r] = x[order[starts[first] + r] / per]; `words` of `word` bytes a row, `lanes` threads. */
typedef struct tl_take_args {
  const char *x;
  char *rows;
  const int32_t *order, *starts;
  int64_t room, words;
  int32_t per, first, last, word, lanes;
} tl_take_args;

typedef struct tl_combine_args {
  tl_array rows, shared, y; /* shared.data: or NULL */
  const int32_t *place;
  const float *weight; /* or NULL */
  int64_t tokens, width;
  int32_t slots, lanes;
} tl_combine_args;

/* Elements of rows 0 .. offsets[experts] - 1. */
typedef struct tl_expert_rows_args {
  tl_array a, b, c, out, out2;
  const int32_t *rows; /* offsets + experts */
  int64_t room, width;
} tl_expert_rows_args;

typedef struct tl_scale_grad_args {
  tl_array dy, out, dout;
  const float *weight;
  float *dweight;
  const int32_t *rows;
  int64_t room, width;
  int32_t lanes;
} tl_scale_grad_args;

#endif
