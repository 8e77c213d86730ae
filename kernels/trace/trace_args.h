/* trace_args.h - arguments of the kernels that a trace queues beside instructions. */
#ifndef TL_TRACE_ARGS_H
#define TL_TRACE_ARGS_H

#include <stdint.h>

enum {
  TL_TRACE_PARTS = 8,         /* outputs of one launch */
  TL_TRACE_BLOCKS = 512,      /* for one output at most: each adds one number to its hash */
  TL_TRACE_BLOCKS_FULL = 2048 /* where all elements are hashed */
};

/* The part of runtime/hash.h, the tensor in device memory, and where its share is added. */
typedef struct tl_trace_part {
  const void *data;
  uint64_t *hash; /* 0 before the first block adds to it */
  uint64_t name;
  int64_t cols, pitch, row_first, piece_rows, piece_stride, col_first, cols_full;
  int64_t runs;   /* runs of neighbouring elements: pieces of whole rows, or single rows */
  int64_t length; /* elements of a run */
  int64_t slots;  /* places of a run: 64 for each 4,096 that it touches, or one an element */
  int32_t blocks; /* that share the places */
  int16_t size;   /* bytes of an element */
  int16_t sampled;
} tl_trace_part;

/* Parts 0 .. count - 1 have the blocks of the grid one after the other. */
typedef struct tl_trace_args {
  int32_t count;
  tl_trace_part parts[TL_TRACE_PARTS];
} tl_trace_args;

/* A time and nothing else. */
typedef struct tl_trace_stamp_args {
  uint64_t *stamp;
} tl_trace_stamp_args;

#endif
