/* comm_processes_inner.h - what the files of the process transport share. */
#ifndef TL_COMM_PROCESSES_INNER_H
#define TL_COMM_PROCESSES_INNER_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm_processes.h"
#include "mailbox.h"

enum { CHUNK_BYTES = 256 << 10 /* of one rank's share that is under way at once */ };

typedef struct slot {
  tl_move move;
  char *data;
} slot;

typedef struct channel {
  struct channel *next;
  int32_t source, target, number;
  int64_t bytes;
  uint64_t sent;
  slot slots[TL_SLOTS];
} channel;

struct tl_processes {
  tl_world *world;
  const tl_mover *mover;
  int32_t rank, largest;
  char *out, *in; /* (largest, CHUNK_BYTES) */
  channel *channels;
  pthread_mutex_t mutex; /* one thread at a time calls the mover */
  pthread_t pusher;
  int pushes;
  atomic_int closing;
};

typedef struct process_comm {
  tl_comm base;
  tl_processes *processes;
  int32_t tag, rank;
  tl_move *moves; /* (2, size): to and from each member */
  const void **parts;
  int32_t ranks[];
} process_comm;

/* Starts a message to, or from, a member of the group; of no bytes: does nothing. */
tl_status tl_processes_put(process_comm *c, int32_t member, const void *data, int64_t bytes);
tl_status tl_processes_take(process_comm *c, int32_t member, void *data, int64_t bytes);
/* Returns when all of them have arrived or are on their way. */
tl_status tl_processes_wait(process_comm *c);

tl_status tl_processes_exchange(tl_comm *comm, const tl_swap *swap);

#endif
