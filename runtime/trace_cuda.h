/* trace_cuda.h - a trace of a rank on a GPU, without a wait inside the step.
**
**   kernels   [a]---[b]------[c]---[d]---[e writes where a's output was]---[f]
**               \     \        \     \    /                                \
**   hashes       \     \        \     [a to d] ..                           [..]
**   clock        [time][time]   [time][time] ..                             [time]
**
** Times and hashes are kernels (kernels/trace) behind the instruction they look at and beside the
** ones that follow. Hashes have a stream of their own: one launch hashes the outputs of several
** instructions, and whoever writes where an output still has to be hashed waits for that. Times
** have one for either stream of the section, so that neither seems to end with the other. A traced
** step is captured and replayed as a graph like any other.
**
** Launches do not overlap in a traced step (tl_cuda_set_apart). An instruction begins, as the trace
** sees it, when the one before it on its stream and those it waits for have ended. What the kernels
** leave is copied to pinned memory at the end and handed to the trace. Everything is allocated when
** it is opened.
*/
#ifndef TL_TRACE_CUDA_H
#define TL_TRACE_CUDA_H

#include "cuda.h"
#include "trace.h"

typedef struct tl_gpu_trace tl_gpu_trace;

/* `trace` has no captures: those are taken by the host, between instructions. The caller closes it,
** before the trace. */
tl_status tl_gpu_trace_open(tl_cuda *cuda, const tl_program *program, tl_trace *trace,
                            tl_gpu_trace **out);
void tl_gpu_trace_close(tl_gpu_trace *trace); /* NULL is allowed */

/* These four only queue: the first and the last around all streams of the section, the others
** around an instruction on `stream`. `views` are by operand of the program. */
tl_status tl_gpu_trace_begin(tl_gpu_trace *trace);
tl_status tl_gpu_trace_before(tl_gpu_trace *trace, int32_t instruction, const tl_view *views,
                              void *stream);
tl_status tl_gpu_trace_after(tl_gpu_trace *trace, int32_t instruction, const tl_view *views,
                             void *stream);
tl_status tl_gpu_trace_end(tl_gpu_trace *trace);

/* After the wait for the stream: hashes and times of instructions first .. first + count - 1, which
** began at `start_ns` of the host's clock. */
void tl_gpu_trace_take(tl_gpu_trace *trace, int32_t first, int32_t count, int64_t start_ns);

/* Fills in the kernels queued since there were `before`: how many, and the last one's grid. */
void tl_gpu_trace_launch(tl_cuda *cuda, int64_t before, tl_trace_record *out);

/* Queues the share of a shard that is in device memory (hash.h) on the first stream; `word`, in
** device memory too, gets it. */
tl_status tl_gpu_hash_part(tl_cuda *cuda, const tl_hash_part *part, const tl_view *view,
                           void *word);

#endif
