/* reduce_args.h - arguments of the reduce kernels. */
#ifndef TL_REDUCE_ARGS_H
#define TL_REDUCE_ARGS_H

#include "../device_args.h"

enum {
  TL_TOKEN_BLOCK = 64,        /* rows of a block of sum_tokens */
  TL_TOKEN_THREADS = 64,      /* of a kernel block that sums them */
  TL_SQUARE_CHUNK = 65536,    /* elements of a chunk of square_sum */
  TL_SQUARE_ROWS = 512,       /* rows of one launch of square_sum_rows */
  TL_NORM_THREADS = 1024,     /* of grad_norm's one block */
  TL_NORM_TENSORS_MAX = 3072, /* of one launch: arguments have at most 4 KB */
  TL_NORM_TREES = 64          /* floats in front of the trees in grad_norm's scratch */
};

/* Columns column_first .. + columns - 1, and the blocks of every piece; those of a (run, piece) are
** `blocks`, some of which may be empty. partial: [run][piece][block][column]. */
typedef struct tl_sum_tokens_args {
  tl_array dy, x, partial;
  const float *rstd, *mean;
  float *acc;
  int64_t dim, first, samples, length, runs, blocks, column_first, columns;
  int32_t kind, mode;
} tl_sum_tokens_args;

/* Rows of `parts` times `width` columns, each part with its own rstd and mean. */
typedef struct tl_sum_parts_args {
  tl_sum_tokens_args sums;
  int64_t parts, width;
} tl_sum_parts_args;

typedef struct tl_fold_args {
  tl_array x, y;
  int64_t n, dim;
} tl_fold_args;

/* g as (outer, length, inner); part p is [:, begin + border p .. begin + border p + 1, :]. */
typedef struct tl_square_sum_args {
  tl_array g;
  float *chunks, *slots; /* chunks: sum of every chunk, chunks_each places a part */
  int64_t outer, length, inner, begin, extent, parts, chunks_each;
  int64_t slot_first, slot_count;
} tl_square_sum_args;

/* Rows of g as parts, from `sums.begin` on; their slots by place. */
typedef struct tl_square_rows_args {
  tl_square_sum_args sums;
  int32_t place[TL_SQUARE_ROWS];
} tl_square_rows_args;

/* Some of the tensors; scratch[0] carries the chain to the next launch. */
typedef struct tl_grad_norm_args {
  const float *slots, *loss;
  const int64_t *count;
  float *norm, *control, *scratch;
  int64_t slot_first; /* of the first tensor here */
  int32_t tensors, is_first, is_last;
  float clip;
  uint8_t levels[TL_NORM_TENSORS_MAX]; /* tensor i has 2^levels[i] slots */
} tl_grad_norm_args;

#endif
