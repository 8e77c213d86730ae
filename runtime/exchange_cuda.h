/* exchange_cuda.h - queues an exchange of experts' rows between GPUs: those that write each other's
** memory, and those that send each other slabs (comm/exchange_args.h).
*/
#ifndef TL_EXCHANGE_CUDA_H
#define TL_EXCHANGE_CUDA_H

#include "../kernels/comm/comm_args.h"
#include "cuda.h"
#include "gpu_comm.h"

/* An exchange that runs beside products is made of blocks for so many multiprocessors, which the
** products leave free: they keep theirs till they end, and rows could not begin to travel. */
enum { TL_EXCHANGE_MULTIPROCESSORS = 16 };

/* A place in a group. */
typedef struct tl_exchange_seat {
  int32_t ranks, position;
  int64_t *exchanged; /* pinned memory, to which the bytes that come from others are added */
} tl_exchange_seat;

/* Sends what belongs to others, and what stays, once all have come to this meeting, so that nobody
** still uses his y; NULL for a rank alone. A meeting of two turns has to follow. Fails where the
** lists of runs have no room in a block's memory, and for ways other than the flat one; so do the
** functions below. */
tl_status tl_exchange_queue(tl_cuda *cuda, const tl_gpu_message *message, const tl_meet_args *meet,
                            const tl_exchange_seat *seat);

/* Rows that a slab could have at most; the same on all ranks. */
int64_t tl_exchange_slab_rows(const tl_gpu_message *message);
int64_t tl_exchange_row_bytes(const tl_gpu_message *message);

/* Rows at .. at + most - 1 of my slab for the rank at `target`, to `slab` in device memory. */
tl_status tl_exchange_pack(tl_cuda *cuda, const tl_gpu_message *message,
                           const tl_exchange_seat *seat, int32_t target, int64_t at, int64_t most,
                           char *slab);
/* These rows of the slabs of all others to their places; mine too when `at` is 0. parts: the slabs,
** and x of this rank, in device memory. */
tl_status tl_exchange_place(tl_cuda *cuda, const tl_gpu_message *message,
                            const tl_exchange_seat *seat, const tl_peer_row *parts, int64_t at,
                            int64_t most);

#endif
