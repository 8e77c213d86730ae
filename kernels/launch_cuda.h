/* launch_cuda.h - what launchers (<family>_cuda.c) share: arrays from views, grids from counts.
**
**   elements, 8 a thread, 256 threads a block      tl_launch_threads(.., (count + 7) / 8, ..)
**   rows, `lanes` threads a row                    tl_launch_rows(.., rows, lanes, ..)
**
** Lanes of a row are a function of its width alone, so that they can never change a sum's order:
** the power of two that gives each lane 8 partials of the row rule, 1 to 256.
*/
#ifndef TL_LAUNCH_CUDA_H
#define TL_LAUNCH_CUDA_H

#include "../runtime/cuda.h"
#include "device_args.h"
#include "rows.h"

TL_INLINE tl_array tl_array_of(const tl_view *view) {
  return (tl_array){.data = view->data,
                    .bf16 = view->dtype == TL_BF16,
                    .aligned = (uintptr_t)view->data % 16 == 0};
}

/* Threads for so many elements, a piece each. */
TL_INLINE int64_t tl_pieces(int64_t elements) {
  return (elements + TL_DEVICE_PIECE - 1) / TL_DEVICE_PIECE;
}

/* Threads for a row of this width. */
TL_INLINE int32_t tl_row_lanes(int64_t width) {
  int32_t lanes = 1;
  while (lanes < TL_DEVICE_THREADS && lanes * TL_DEVICE_PIECE < width) lanes *= 2;
  return lanes;
}

/* `blocks` blocks of `threads` threads; none is no launch. `overlaps`: the kernel begins with
** tl_after_earlier. */
TL_INLINE tl_status tl_launch(tl_cuda *cuda, const char *kernel, int64_t blocks, uint32_t threads,
                              int32_t overlaps, const void *arguments) {
  if (blocks > INT32_MAX)
    return tl_fail(TL_SHAPE, "kernel %s: %lld blocks; a grid has at most %d", kernel,
                   (long long)blocks, INT32_MAX);
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)blocks, 1, 1},
      .threads = {threads,          1, 1},
      .overlaps = overlaps && tl_cuda_device(cuda)->major >= 9
  };
  return tl_cuda_launch(cuda, kernel, &grid, arguments);
}

TL_INLINE tl_status tl_launch_blocks(tl_cuda *cuda, const char *kernel, int64_t blocks,
                                     uint32_t threads, const void *arguments) {
  return tl_launch(cuda, kernel, blocks, threads, 0, arguments);
}

/* At least `threads` threads. */
TL_INLINE tl_status tl_launch_threads(tl_cuda *cuda, const char *kernel, int64_t threads,
                                      const void *arguments) {
  const int64_t blocks = (threads + TL_DEVICE_THREADS - 1) / TL_DEVICE_THREADS;
  return tl_launch(cuda, kernel, blocks, TL_DEVICE_THREADS, 0, arguments);
}

TL_INLINE tl_status tl_launch_rows(tl_cuda *cuda, const char *kernel, int64_t rows, int32_t lanes,
                                   const void *arguments) {
  return tl_launch_threads(cuda, kernel, rows * lanes, arguments);
}

/* The same for kernels that begin with tl_after_earlier. */
TL_INLINE tl_status tl_overlap_threads(tl_cuda *cuda, const char *kernel, int64_t threads,
                                       const void *arguments) {
  const int64_t blocks = (threads + TL_DEVICE_THREADS - 1) / TL_DEVICE_THREADS;
  return tl_launch(cuda, kernel, blocks, TL_DEVICE_THREADS, 1, arguments);
}

#endif
