/* execute_cuda.h - one rank runs one section on a GPU.
**
**   host     fill: samples, counts, numbers of the step         wait
**              | pinned memory                                   ^
**   stream   [copy in][kernel][kernel] ... [kernel][copy out results]
**                     captured once per section as a graph, then replayed
**
** A step has no allocation and no wait of the host inside. While outputs are checked or times are
** taken, in the first run of a section, and when the run says `eager`, instructions are queued one
** by one instead; both ways queue the same kernels, so they give the same bits.
**
** Instructions that communicate are queued by their transport (gpu_comm.h), on a stream of their
** own where the program gives them a lane of their own (lanes_cuda.h). While the host waits for the
** device it sees whom the device waits for, and ends both when that rank is silent.
*/
#ifndef TL_EXECUTE_CUDA_H
#define TL_EXECUTE_CUDA_H

#include "carry_cuda.h"
#include "cuda.h"
#include "execute.h"
#include "gpu_comm.h"

typedef struct tl_gpu tl_gpu;

/* Opens GPU `ordinal` for the executor's rank: arena, pinned memory. `poison`: a byte that the
** arena starts with, or -1. The executor's views then point into tl_gpu_arena. */
tl_status tl_gpu_open(const tl_program *program, int32_t ordinal, int32_t poison,
                      const tl_cuda_blocks *blocks, tl_gpu **out);
void tl_gpu_close(tl_gpu *gpu);
/* Bytes of experts' rows that have come from other ranks of a group, and their way. */
int64_t tl_gpu_exchanged(const tl_gpu *gpu, int32_t group, tl_path *path);
char *tl_gpu_arena(const tl_gpu *gpu);

tl_cuda *tl_gpu_cuda(const tl_gpu *gpu);
/* What carries its large copies: NULL until the first one. */
tl_carrier **tl_gpu_carrier(tl_gpu *gpu);
/* 64 bytes of device memory that are free between runs. */
void *tl_gpu_word(const tl_gpu *gpu);
/* How its instructions communicate; stays the caller's. Needed when the program has any. */
void tl_gpu_connect(tl_gpu *gpu, tl_gpu_comm *comm);

/* Forgets captured sections. A communicator of NCCL that a graph knows cannot be closed. */
void tl_gpu_forget(tl_gpu *gpu);

/* tl_execute for a rank on a GPU: waits until the section has ended there. */
tl_status tl_gpu_execute(tl_gpu *gpu, tl_executor *executor, const tl_run *run);

/* The same without waiting, for a section that runs as a graph: *queued 1. 0: nothing was done, as
** someone looks at the section or it has not run yet, or as the program has peers, routes or
** samples, which tl_gpu_queues says. The numbers of the step are those of its last run. A section
** that is a pass and what stands around it is queued kernel by kernel: these overlap with the
** kernels of the run before, and a graph does not. */
int32_t tl_gpu_queues(const tl_gpu *gpu);
tl_status tl_gpu_queue(tl_gpu *gpu, tl_executor *executor, const tl_run *run, int32_t *queued);

/* Records into `trace` from the next run on; NULL: no more. Hashes and times are then taken by
** kernels between the instructions; where operands are kept too, by the host, which waits for each
** instruction. The caller closes the trace after it has been replaced. */
tl_status tl_gpu_set_trace(tl_gpu *gpu, tl_trace *trace);

/* Copies between a place of the arena and host memory; they wait. */
tl_status tl_gpu_read(tl_gpu *gpu, const void *from, int64_t bytes, void *to);
tl_status tl_gpu_write(tl_gpu *gpu, void *to, int64_t bytes, const void *from);
tl_status tl_gpu_fill(tl_gpu *gpu, void *to, int64_t bytes, int32_t byte);

/* The share of a shard in the arena (hash.h), by a kernel; waits. */
tl_status tl_gpu_hash(tl_gpu *gpu, const tl_hash_part *part, const tl_view *view, uint64_t *out);

#endif
