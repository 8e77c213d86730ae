/* device_args.h - what the arguments of GPU kernels are made of, in plain C.
**
** A launcher fills one struct <family>_args.h and hands it to a kernel by value. Arrays keep their
** dtype: kernels choose while running, so one kernel serves f32 and bf16.
*/
#ifndef TL_DEVICE_ARGS_H
#define TL_DEVICE_ARGS_H

#include <stdint.h>

enum {
  TL_DEVICE_THREADS = 256,   /* of a block, where nothing else is said */
  TL_DEVICE_PIECE = 8,       /* neighbouring elements that one thread takes at a time */
  TL_DEVICE_PARTIALS = 2048, /* of the row rule: 256 threads with 8 each */
  TL_DEVICE_WARP = 32
};

typedef struct tl_array {
  void *data;      /* in device memory; NULL where an operator has no such operand */
  int32_t bf16;    /* else f32 */
  int32_t aligned; /* to 16 bytes: pieces that start at a multiple of 8 are loaded at once */
} tl_array;

#if defined(__CUDACC__)
#define TL_EITHER static __device__ __forceinline__
#else
#define TL_EITHER static inline
#endif

/* Rows of `width` bf16 elements that consist of whole, aligned pieces. */
TL_EITHER int tl_whole(const tl_array *a, int64_t width) {
  return a->bf16 && a->aligned && width % TL_DEVICE_PIECE == 0;
}

#endif
