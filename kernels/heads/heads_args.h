/* heads_args.h - arguments of the kernels on heads. */
#ifndef TL_HEADS_ARGS_H
#define TL_HEADS_ARGS_H

#include "../device_args.h"

/* A tl_heads_piece in device memory. */
typedef struct tl_heads_copy_args {
  tl_array from, to;
  int64_t rows, heads;
  int64_t from_heads, from_channels, from_first;
  int64_t to_channels, to_first;
  int64_t width;
} tl_heads_copy_args;

typedef struct tl_heads_sum_args {
  tl_array x, y;
  int64_t rows, heads, channels, first, width;
  int64_t run; /* heads of a leaf */
} tl_heads_sum_args;

/* Pairs, pairs of pairs, ..: log2 of the leaves at most. */
enum { TL_HEADS_LEVELS = 6 };

#endif
