/* comm_nccl.h - a process for each GPU: NCCL moves bytes between them, kernels of ours fold.
**
**   all_reduce   slices to their owners | fold in tree order | sums to everybody
**   send, recv   a communicator and a stream for each channel, two slots at the sender
**
** Only sends and receives of NCCL (nccl.h) are used: its own reductions add in an order that
** depends on size and topology. The ids of communicators travel over the job's connections.
*/
#ifndef TL_COMM_NCCL_H
#define TL_COMM_NCCL_H

#include "cuda.h"
#include "gpu_comm.h"
#include "job.h"
#include "verify.h"

typedef struct tl_nccl tl_nccl;

/* Called by every rank of the job at the same place; `channels` are those of the whole run, in the
** same order everywhere. */
tl_status tl_nccl_open(tl_job *job, tl_cuda *cuda, const tl_channel *channels,
                       int32_t channel_count, tl_nccl **out);
/* After tl_gpu_comm's stop it gives up what is under way. NULL is allowed. */
void tl_nccl_close(tl_nccl *nccl);

/* Group `index` of this rank's program. */
tl_status tl_nccl_group(tl_nccl *nccl, int32_t index, const tl_rank_group *group);
/* After all groups, by every rank: one word to and from each peer of its groups, then over each of
** its channels, in index order. NCCL connects two ranks, and loads the kernels that move bytes,
** when the first message goes between them, and all ranks of a step would wait for that; after this
** the first step is like any other. Only who will talk meets: a connection costs device memory. The
** order cannot deadlock (comm_warm.h). A word says who sent it; fails with both ranks when it is
** another's, or has not come after a minute. */
tl_status tl_nccl_warm(tl_nccl *nccl);

/* What the executor queues with; lives as long as `nccl`. */
tl_gpu_comm *tl_nccl_end(tl_nccl *nccl);

#endif
