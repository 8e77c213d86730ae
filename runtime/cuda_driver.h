/* cuda_driver.h - libcuda, opened at run time: one program for machines with and without a GPU.
**
** tl_cuda_driver opens libcuda.so.1 once and finds every symbol of cuda_driver.def. Where the
** library or a symbol is missing it fails and says what to do; nothing else of Tidelock needs it.
**
** Handles of the driver (contexts, streams, graphs, kernels) are void *; device addresses are
** uint64_t, as in the driver's own interface. Source: CUDA Driver API reference.
*/
#ifndef TL_CUDA_DRIVER_H
#define TL_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

/* CUlaunchConfig and CUlaunchAttribute, whose value is a union of 64 bytes. */
typedef struct tl_launch_attribute {
  int32_t id, padding;
  int32_t value[16];
} tl_launch_attribute;

typedef struct tl_launch_config {
  uint32_t grid[3], block[3], shared;
  void *stream;
  tl_launch_attribute *attributes;
  uint32_t attribute_count;
} tl_launch_config;

typedef struct tl_cuda_api {
#define DRIVER(name, symbol, arguments) int(*name) arguments;
#include "cuda_driver.def"
#undef DRIVER
} tl_cuda_api;

/* The same table for the whole process; thread safe. */
tl_status tl_cuda_driver(const tl_cuda_api **out);

/* TL_OK for 0, else TL_DEVICE with the driver's words: "launch: an illegal memory access .." */
tl_status tl_cuda_check(const tl_cuda_api *api, int error, const char *what);

enum { /* numbers of the driver's interface */
       TL_CUDA_ATTRIBUTE_SHARED_OPTIN = 97,
       TL_CUDA_ATTRIBUTE_REGISTERS = 12, /* of a block */
       TL_CUDA_ATTRIBUTE_MULTIPROCESSORS = 16,
       TL_CUDA_ATTRIBUTE_CACHE = 38, /* bytes, second level */
       TL_CUDA_ATTRIBUTE_MAJOR = 75,
       TL_CUDA_ATTRIBUTE_MINOR = 76,
       TL_CUDA_LINK_RANK = 1, /* cuDeviceGetP2PAttribute: 0 is the best link of the machine */
       TL_CUDA_KERNEL_SHARED_MAX = 8, /* cuKernelSetAttribute: dynamic shared memory */
       TL_CUDA_KERNEL_LOCAL = 3,      /* bytes of local memory a thread: spills and arrays */
       TL_CUDA_KERNEL_REGISTERS = 4,
       TL_CUDA_STREAM_NON_BLOCKING = 1,
       TL_CUDA_CAPTURE_RELAXED = 2,
       TL_CUDA_HOST_PORTABLE = 1,
       TL_CUDA_EVENT_PLAIN = 2,     /* an event that takes no time */
       TL_CUDA_NOT_READY = 600,     /* cuStreamQuery: there is work left */
       TL_CUDA_LAUNCH_TOGETHER = 2, /* attributes of a launch: cooperative */
       TL_CUDA_LAUNCH_OVERLAPS = 6, /* programmatic stream serialization */
       TL_CUDA_PEER_ENABLED = 704,  /* cuCtxEnablePeerAccess: it was already */
};

#endif
