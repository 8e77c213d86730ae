/* elementwise_args.h - arguments of the elementwise and rope kernels. */
#ifndef TL_ELEMENTWISE_ARGS_H
#define TL_ELEMENTWISE_ARGS_H

#include "../device_args.h"
#include "frequencies.h"

typedef struct tl_elements_args {
  tl_array a, b, c, out, out2; /* those that the operator has, in the order of ops.def */
  int64_t count, width;        /* elements; of a row, where rows matter */
  int32_t kind, broadcast;
  float number; /* factor or value; of scale_step: scalar `kind` of the step */
  const struct tl_device_step *step;
} tl_elements_args;

typedef struct tl_dropout_args {
  tl_array x, y;
  const struct tl_device_step *step;
  uint64_t key;
  int64_t rows, width;
  int64_t first, length, token_first, tokens, feature_first, features;
  float rate, factor;
} tl_dropout_args;

typedef struct tl_rope_args {
  tl_array x, y, table;       /* x (T, heads, channels), table (positions, pairs, 2) */
  const int32_t *cu, *placed; /* placed: the position of each row, where there is no cu */
  int64_t entries;            /* of cu */
  int64_t positions, pairs, heads, channels;
  int64_t rows;
  int32_t interleaved;
  float sign; /* 1, or -1 to turn back */
} tl_rope_args;

typedef struct tl_rope_table_args {
  float *table;
  int64_t positions, pairs;
  tl_rope_rule rule;
} tl_rope_table_args;

/* A block of rope_table: this many pairs, for so many positions. */
enum { TL_ROPE_TABLE_PAIRS = 32, TL_ROPE_TABLE_POSITIONS = 256 };

#endif
