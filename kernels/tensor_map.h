/* tensor_map.h - what Hopper's copy engine must know of a tensor to move boxes of it.
**
**   tensor in device memory          box in shared memory, up to 256 elements a dim
**   dims (n2, n1, n0)       <---->   (b2, b1, b0), dense, rows of b0 elements = 128 bytes,
**   strides (s2, s1, 1)              16-byte piece c of row r stands at c ^ (r % 8)
**
** A map is 128 bytes of the driver's own making. Making one allocates nothing and touches no GPU;
** a launcher puts it into the arguments of its kernel, which takes them by value
** (__grid_constant__), so a captured step holds it for good.
**
** Loads: elements outside the tensor arrive as zeros, and count as bytes that arrived. Stores:
** elements outside are not written. Coordinates may start anywhere.
**
** Source: CUDA Driver API, cuTensorMapEncodeTiled.
*/
#ifndef TL_TENSOR_MAP_H
#define TL_TENSOR_MAP_H

#include <stdint.h>

#if defined(__CUDACC__)
struct alignas(64) tl_tensor_map {
  uint64_t words[16];
};
#else
#include "../runtime/cuda.h"
#include "../runtime/dtype.h"

typedef struct tl_tensor_map {
  _Alignas(64) uint64_t words[16];
} tl_tensor_map;

enum { TL_TENSOR_MAP_DIMS = 4 };

/* Innermost dim first; its stride is 1. Address and strides are multiples of 16 bytes. */
typedef struct tl_tensor_box {
  const void *data;
  tl_dtype dtype; /* bf16, f32 */
  int32_t dims;
  int64_t size[TL_TENSOR_MAP_DIMS];
  int64_t stride[TL_TENSOR_MAP_DIMS]; /* elements; stride[0] is not read */
  int32_t box[TL_TENSOR_MAP_DIMS];    /* box[0] elements are at most 128 bytes */
  int32_t plain;                      /* the cache reads what a box has, not pieces of 256 bytes */
} tl_tensor_box;

/* Fails where the driver refuses the numbers; `what` names the tensor. */
tl_status tl_tensor_map_make(tl_cuda *cuda, const char *what, const tl_tensor_box *box,
                             tl_tensor_map *out);
#endif

#endif
