/* gpu_memory.c - the arena of a rank on a GPU as the host sees it between runs (execute_cuda.h). */
#include "execute_cuda.h"
#include "trace_cuda.h"

#define TRY_CUDA(g, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls(tl_gpu_cuda(g)), tl_cuda_calls(tl_gpu_cuda(g))->call, what))

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status wait_for(tl_gpu *gpu) {
  TRY_CUDA(gpu, "waiting for the GPU", stream_wait(tl_cuda_stream(tl_gpu_cuda(gpu))));
  return TL_OK;
}

tl_status tl_gpu_read(tl_gpu *gpu, const void *from, int64_t bytes, void *to) {
  TL_TRY(tl_cuda_enter(tl_gpu_cuda(gpu)));
  TRY_CUDA(gpu, "copy out",
           copy_out(to, address(from), (size_t)bytes, tl_cuda_stream(tl_gpu_cuda(gpu))));
  return wait_for(gpu);
}

tl_status tl_gpu_write(tl_gpu *gpu, void *to, int64_t bytes, const void *from) {
  TL_TRY(tl_cuda_enter(tl_gpu_cuda(gpu)));
  TRY_CUDA(gpu, "copy in",
           copy_in(address(to), from, (size_t)bytes, tl_cuda_stream(tl_gpu_cuda(gpu))));
  return wait_for(gpu);
}

tl_status tl_gpu_fill(tl_gpu *gpu, void *to, int64_t bytes, int32_t byte) {
  TL_TRY(tl_cuda_enter(tl_gpu_cuda(gpu)));
  TRY_CUDA(gpu, "fill",
           fill(address(to), (unsigned char)byte, (size_t)bytes, tl_cuda_stream(tl_gpu_cuda(gpu))));
  return wait_for(gpu);
}

tl_status tl_gpu_hash(tl_gpu *gpu, const tl_hash_part *part, const tl_view *view, uint64_t *out) {
  void *word = tl_gpu_word(gpu);
  TL_TRY(tl_gpu_hash_part(tl_gpu_cuda(gpu), part, view, word));
  return tl_gpu_read(gpu, word, sizeof *out, out);
}
