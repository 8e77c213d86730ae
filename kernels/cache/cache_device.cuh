/* cache_device.cuh - where a position lies, for kernels. */
#ifndef TL_CACHE_DEVICE_CUH
#define TL_CACHE_DEVICE_CUH

#include "cache_args.h"

#define CACHE_GPU static __device__ __forceinline__

/* Where launches overlap (tl_after_earlier of device.cuh): the next kernel may begin; all that
** earlier ones wrote is there. */
CACHE_GPU void begin_next(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
CACHE_GPU void wait_earlier(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Entry of the table, and the place in its page. */
CACHE_GPU int page_entry(const tl_cache_places &p, int position) {
  return p.shift >= 0 ? position >> p.shift : position / p.page;
}
CACHE_GPU int page_place(const tl_cache_places &p, int position) {
  return p.shift >= 0 ? position & (p.page - 1) : position % p.page;
}

/* The page of a position of a request; -1: there is none. */
CACHE_GPU int page_of(const tl_cache_places &p, int request, int position) {
  const int page = p.table[(int64_t)request * p.pages_max + page_entry(p, position)];
  return page < p.pages ? page : -1;
}

/* Whether a row's request and position exist. */
CACHE_GPU bool is_place(const tl_cache_places &p, int request, int position) {
  return request < p.requests && position >= 0 && page_entry(p, position) < p.pages_max;
}

#endif
