/* cuda_images.h - the cubins inside this program: one per kernel family and architecture.
**
** The table is written by the build (cmake/cuda.cmake); a build without nvcc has an empty one.
*/
#ifndef TL_CUDA_IMAGES_H
#define TL_CUDA_IMAGES_H

#include <stdint.h>

typedef struct tl_cuda_image {
  const char *name; /* "gemm" */
  int32_t arch;     /* 90 for sm_90a */
  const unsigned char *start, *end;
} tl_cuda_image;

extern const tl_cuda_image tl_cuda_images[];
extern const int32_t tl_cuda_image_count;
extern const char *const tl_cuda_image_archs; /* "sm_90a"; "no GPU" without nvcc */

#endif
