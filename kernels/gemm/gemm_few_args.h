/* gemm_few_args.h - what one launch of gemm_few.cu is passed. */
#ifndef TL_GEMM_FEW_ARGS_H
#define TL_GEMM_FEW_ARGS_H

#include <stdint.h>

enum {
  TL_GEMM_FEW_PARTS = 4,
  TL_GEMM_FEW_ROWS = 16, /* of x at most */
  TL_GEMM_FEW_WARPS = 16,
  TL_GEMM_FEW_FEATURES = 8,                           /* of a warp */
  TL_GEMM_FEW_SLOTS = 2 * TL_GEMM_FEW_WARPS * 32 * 16 /* bytes: sums that go from warp to warp */
};

typedef struct tl_gemm_few_args {
  const void *x;    /* (rows, depth) */
  int64_t x_stride; /* elements */
  int32_t rows, depth;
  int32_t x_pitch; /* bytes of a row of x in shared memory */
  int32_t leaves;  /* chains that are added up; 1: `relay` warps hand one chain on */
  int32_t relay;
  int32_t run;   /* k of a warp; a multiple of 16, but for the last warp of a relay */
  int32_t tiles; /* of features, of all parts */
  int32_t parts;
  int32_t ahead; /* weights are read before earlier kernels have ended: none of them writes any */
  int32_t out_is_bf16, bias_is_bf16;
  const void *weight[TL_GEMM_FEW_PARTS]; /* (columns, depth) */
  int64_t weight_stride[TL_GEMM_FEW_PARTS];
  const void *bias[TL_GEMM_FEW_PARTS]; /* (columns), or NULL */
  void *out[TL_GEMM_FEW_PARTS];        /* (rows, columns) */
  int32_t columns[TL_GEMM_FEW_PARTS], first_tile[TL_GEMM_FEW_PARTS];
} tl_gemm_few_args;

#endif
