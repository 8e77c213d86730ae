/* cuda_link.h - what lies beside the GPUs: links between them, and libraries opened by name.
**
** For `./tl doctor`. A link's speed is measured: copies of 64 MiB from one GPU's memory to the
** other's, the best of eight. Nothing else of a run asks for these; `./tl bench rowwise` asks for
** the speed of copies inside a GPU.
*/
#ifndef TL_CUDA_LINK_H
#define TL_CUDA_LINK_H

#include "cuda.h"

typedef struct tl_cuda_link {
  int32_t direct;          /* 1: they reach each other's memory, without the host between */
  int32_t rank;            /* 0 is the best kind of link of this machine */
  double bytes_per_second; /* in one direction */
} tl_cuda_link;

/* Looks at both GPUs and measures the speed with copies in memory of their own. */
tl_status tl_cuda_link_between(int32_t from, int32_t to, tl_cuda_link *out);

/* Bytes read and written a second by copies of 1 GiB inside a GPU, the best of eight: what a kernel
** that only moves bytes can hope for. */
tl_status tl_cuda_copy_speed(int32_t ordinal, double *out);

/* The driver's version: 13000 is CUDA 13.0. */
tl_status tl_cuda_driver_version(int32_t *out);

typedef struct tl_cuda_library {
  const char *name, *use; /* "NCCL", what it is for */
  const char *file;       /* the name it was found by; NULL: it is not here */
  int64_t version;        /* as the library numbers it */
} tl_cuda_library;

enum { TL_CUDA_LIBRARIES = 2 };

/* Looks for library `index`. */
void tl_cuda_library_find(int32_t index, tl_cuda_library *out);

#endif
