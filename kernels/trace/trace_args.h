/* trace_args.h - arguments of the kernels that a trace queues between instructions. */
#ifndef TL_TRACE_ARGS_H
#define TL_TRACE_ARGS_H

#include <stdint.h>

/* The part of runtime/hash.h, the tensor in device memory, and where its share is added. */
typedef struct tl_trace_args {
  const void *data;
  uint64_t *hash;  /* 0 before the first block adds to it */
  uint64_t *stamp; /* gets the time at which the kernel begins; NULL: no time is taken */
  uint64_t name;
  int64_t cols, pitch, row_first, piece_rows, piece_stride, col_first, cols_full;
  int64_t runs;   /* runs of neighbouring elements: pieces of whole rows, or single rows */
  int64_t length; /* elements of a run */
  int64_t slots;  /* threads of a run: 64 for each 4,096 that it touches, or one an element */
  int32_t size;   /* bytes of an element */
  int32_t sampled;
} tl_trace_args;

#endif
