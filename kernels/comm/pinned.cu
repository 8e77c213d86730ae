// pinned.cu - small tensors come from pinned memory of the host, and go there, by kernels: the copy
// engine begins and ends 2 to 8 us later, and no kernel may overlap with it.
//
// What comes in is read while earlier kernels still run, and written when they have ended.
#include "../device.cuh"
#include "pinned_args.h"

TL_GPU uint32_t read_host(const uint32_t *at) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
  return v;
}

TL_GPU void next_begin(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
TL_GPU void earlier_wait(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Row y of the grid has piece y, a thread a word. */
TL_KERNEL pinned_in(const __grid_constant__ tl_pinned_args k) {
  next_begin();
  const tl_pinned_piece &p = k.pieces[blockIdx.y];
  const int64_t i = tl_thread();
  uint32_t word = 0;
  if (i < p.words) word = read_host(p.from + i);
  earlier_wait();
  if (i < p.words) ((uint32_t *)p.to)[i] = word;
}

TL_KERNEL pinned_out(const __grid_constant__ tl_pinned_args k) {
  next_begin();
  earlier_wait();
  const tl_pinned_piece &p = k.pieces[blockIdx.y];
  const int64_t i = tl_thread();
  if (i < p.words)
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"((tl_pinned_word *)p.to + i),
                 "r"(p.from[i]), "r"(k.turn)
                 : "memory");
}
