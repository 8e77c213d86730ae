/* comm_nccl_inner.h - what the files of NCCL ranks share: comm_nccl.c queues, comm_nccl_open.c
** opens and closes.
*/
#ifndef TL_COMM_NCCL_INNER_H
#define TL_COMM_NCCL_INNER_H

#include "../kernels/comm/comm_args.h"
#include "comm_nccl.h"
#include "mailbox.h"
#include "nccl.h"

enum { STAGING_BYTES = 64 << 20 }; /* of what goes out, and of what comes in */

typedef struct nccl_group {
  int32_t n, position, ranks[TL_PEERS_MAX];
} nccl_group;

typedef struct nccl_channel {
  int32_t source, target, number, mine; /* mine: this rank is on one side */
  void *comm, *stream, *ready;          /* an event of the caller's stream */
  void *done[TL_SLOTS];                 /* events of the channel's stream */
  char *slots;                          /* (TL_SLOTS, slot_bytes), of the source */
  int64_t slot_bytes;
  int32_t next, used; /* slot; sends queued in this section */
} nccl_channel;

struct tl_nccl {
  tl_gpu_comm base;
  const tl_nccl_api *api;
  tl_cuda *cuda;
  void *comm; /* of all ranks */
  int32_t rank, ranks, stopped;
  char *out, *in; /* device memory, STAGING_BYTES each */
  tl_peer_row *rows;
  tl_peer_progress *progress;
  int64_t bytes; /* of device memory */
  nccl_group groups[TL_GROUPS_MAX];
  nccl_channel *channels;
  int32_t channel_count;
};

#define TRY_CUDA(n, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((n)->cuda), tl_cuda_calls((n)->cuda)->call, what))
#define TRY_NCCL(n, what, call) TL_TRY(tl_nccl_check((n)->api->call, what))

extern const tl_gpu_comm_kind tl_nccl_kind;

#endif
