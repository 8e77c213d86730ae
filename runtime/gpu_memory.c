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

/* The carrier of large copies, whose streams know nothing of the rank's: that has to be empty. */
static tl_status find_carrier(tl_gpu *gpu, tl_carrier **out) {
  tl_carrier **kept = tl_gpu_carrier(gpu);
  if (*kept == NULL) TL_TRY(tl_carrier_open(tl_gpu_cuda(gpu), kept));
  *out = *kept;
  return wait_for(gpu);
}

tl_status tl_gpu_read(tl_gpu *gpu, const void *from, int64_t bytes, void *to) {
  tl_carrier *carrier;
  TL_TRY(tl_cuda_enter(tl_gpu_cuda(gpu)));
  if (bytes >= TL_CARRY_BYTES) {
    TL_TRY(find_carrier(gpu, &carrier));
    return tl_carry_out(carrier, from, bytes, to);
  }
  TRY_CUDA(gpu, "copy out",
           copy_out(to, address(from), (size_t)bytes, tl_cuda_stream(tl_gpu_cuda(gpu))));
  return wait_for(gpu);
}

tl_status tl_gpu_write(tl_gpu *gpu, void *to, int64_t bytes, const void *from) {
  tl_carrier *carrier;
  TL_TRY(tl_cuda_enter(tl_gpu_cuda(gpu)));
  if (bytes >= TL_CARRY_BYTES) {
    TL_TRY(find_carrier(gpu, &carrier));
    return tl_carry_in(carrier, to, bytes, from);
  }
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
