/* cublaslt.h - cuBLASLt, opened at run time: one program for machines with and without it.
**
** A product is described once (product, layouts); an algorithm with all its settings is 64 bytes of
** the library's own making, here a way. Matrices are columns first, as in Fortran. Nothing but
** kernels/gemm/gemm_library.c calls it. Source: cuBLAS documentation, "Using the cuBLASLt API".
*/
#ifndef TL_CUBLASLT_H
#define TL_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct tl_cublaslt_way { /* cublasLtMatmulAlgo_t */
  uint64_t words[8];
} tl_cublaslt_way;

typedef struct tl_cublaslt_found { /* cublasLtMatmulHeuristicResult_t */
  tl_cublaslt_way way;
  size_t workspace; /* bytes */
  int32_t error;    /* 0: the other fields hold */
  float waves;
  int32_t reserved[4];
} tl_cublaslt_found;

typedef struct tl_cublaslt_api {
#define LT(name, symbol, arguments) int(*name) arguments;
#include "cublaslt.def"
#undef LT
} tl_cublaslt_api;

/* The same table for the whole process; thread safe. Fails where the library is not, with what to
** do. */
tl_status tl_cublaslt_find(const tl_cublaslt_api **out);
/* TL_OK for 0, else TL_DEVICE with the number of the error. */
tl_status tl_cublaslt_check(int error, const char *what);

enum { /* numbers of the library's interface */
       TL_CUBLASLT_F32 = 0,
       TL_CUBLASLT_BF16 = 14,
       TL_CUBLASLT_COMPUTE_F32 = 68,
       TL_CUBLASLT_PRODUCT_TURN_A = 3, /* int32: 0 as it lies, 1 transposed */
       TL_CUBLASLT_PRODUCT_TURN_B = 4,
       TL_CUBLASLT_LAYOUT_BATCH = 5,    /* int32: matrices */
       TL_CUBLASLT_LAYOUT_STRIDE = 6,   /* int64: elements from each to the next */
       TL_CUBLASLT_WISH_WORKSPACE = 1,  /* uint64: bytes at most */
       TL_CUBLASLT_WISH_REDUCTIONS = 3, /* uint32: mask of ways to split k */
       TL_CUBLASLT_WAY_ID = 0,          /* int32 */
       TL_CUBLASLT_WAY_SPLIT = 2,       /* int32: parts of k */
       TL_CUBLASLT_WAY_REDUCTION = 3    /* uint32: how parts are added, 0 where k is whole */
};

#endif
