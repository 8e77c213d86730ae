/* loss_args.h - arguments of the loss kernels. */
#ifndef TL_LOSS_ARGS_H
#define TL_LOSS_ARGS_H

#include "../device_args.h"

/* One number for each token; what an operator lacks is NULL or 0. */
typedef struct tl_tokens_args {
  const float *m, *s, *zt, *zsum, *loss;
  const int32_t *targets;
  const int64_t *count; /* targets of the whole batch */
  float *out;
  int64_t rows;
  float vocab, smoothing, weight;
} tl_tokens_args;

/* Leaves that the kernels row_sum_exp_whole_* take: one for each lane of a warp. */
enum {
  TL_LOSS_WHOLE_LEAVES = 32,
  TL_LOSS_SIDE_LEAVES = 4 /* of row_sum_exp_side */
};

/* Rows of logits. */
typedef struct tl_logits_args {
  tl_array z, dz;
  const float *m, *s, *drow; /* drow: dloss or dlse */
  const int32_t *targets;
  float *out_m, *out_s, *out_zt, *out_zsum;
  int64_t rows, width, columns, first, leaves;
  int32_t lanes; /* threads of a row */
  float vocab, smoothing, weight;
} tl_logits_args;

#endif
