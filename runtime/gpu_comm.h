/* gpu_comm.h - how a rank on a GPU communicates: instructions are queued on a stream, like kernels.
**
** Two transports are behind this interface:
**
**   peers_cuda.h   GPUs of one process read and write each other's memory
**   comm_nccl.h    a process for each GPU: NCCL moves bytes, kernels fold
**
** Both give the sums of comm.h, bit for bit. Queueing never waits and never allocates, so that a
** section can be captured as a graph.
*/
#ifndef TL_GPU_COMM_H
#define TL_GPU_COMM_H

#include "comm.h"
#include "program.h"

typedef struct tl_gpu_comm tl_gpu_comm;

/* An instruction; ints as in its row (ops.def), operands in device memory. */
typedef struct tl_gpu_message {
  tl_op op;
  int32_t instruction;
  const int64_t *ints;
  int32_t int_count;
  const tl_view *x, *y; /* NULL: it has none */
  void *stream;
} tl_gpu_message;

typedef struct tl_gpu_comm_kind {
  tl_path path;
  tl_status (*queue)(tl_gpu_comm *comm, const tl_gpu_message *message);
  /* At the end of a section: `stream` ends after everything that was queued elsewhere. May be
  ** NULL. */
  tl_status (*finish)(tl_gpu_comm *comm, void *stream);
  /* The rank that the device waits for, -1: none is known; and the instruction that it is in, -1:
  ** not known. */
  int32_t (*waits_for)(tl_gpu_comm *comm, int32_t *instruction);
  /* Ends what the device waits for, after a failure; results are then arbitrary. */
  void (*stop)(tl_gpu_comm *comm);
  /* Bytes of experts' rows that have come from the others of a group, between two sections. */
  int64_t (*exchanged)(tl_gpu_comm *comm, int32_t group);
} tl_gpu_comm_kind;

struct tl_gpu_comm {
  const tl_gpu_comm_kind *kind;
};

#endif
