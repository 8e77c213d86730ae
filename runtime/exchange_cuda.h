/* exchange_cuda.h - queues an exchange of experts' rows between GPUs that read each other's memory.
*/
#ifndef TL_EXCHANGE_CUDA_H
#define TL_EXCHANGE_CUDA_H

#include "../kernels/comm/comm_args.h"
#include "cuda.h"
#include "gpu_comm.h"

/* An exchange that runs beside products is made of blocks for so many multiprocessors, which the
** products leave free: they keep theirs till they end, and rows could not begin to travel. */
enum { TL_EXCHANGE_MULTIPROCESSORS = 16 };

/* The rank at `position` of a group of `ranks` takes what is for it. parts: x of every rank, in
** device memory, once all have come (peer_meet); NULL for a rank alone. Fails where the lists of
** runs have no room in a block's memory, and for ways other than the flat one. */
tl_status tl_exchange_queue(tl_cuda *cuda, const tl_gpu_message *message, const tl_peer_row *parts,
                            int32_t ranks, int32_t position);
/* The same where bytes travel as messages (NCCL): a rank alone only. */
tl_status tl_exchange_by_messages(tl_cuda *cuda, const tl_gpu_message *message, int32_t ranks);

#endif
