/* comm_threads_inner.h - what the files of the thread transport share. */
#ifndef TL_COMM_THREADS_INNER_H
#define TL_COMM_THREADS_INNER_H

#include <stdatomic.h>

#include "comm_threads.h"

enum { NAME_BYTES = 16 };

typedef struct member {
  const void *x;
  void *y;
  uint32_t entered; /* barriers; guarded by the gate */
} member;

typedef struct group {
  tl_gate gate;
  struct group *next;
  char name[NAME_BYTES];
  int32_t size, arrived;
  _Atomic uint32_t generation; /* barriers that are complete */
  member *members;             /* in group order */
  int32_t *ranks;
} group;

typedef struct thread_comm {
  tl_comm base;
  tl_threads *threads;
  tl_world *world;
  group *group;
  int32_t rank;
  const void **parts; /* (size) of the collective under way */
  void *whole;        /* WHOLE_BYTES */
} thread_comm;

/* Returns when all ranks of the group have come. */
tl_status tl_threads_barrier(tl_comm *comm);
/* Shows x and y to the others and waits for theirs: c->parts is everybody's x then. */
tl_status tl_threads_publish(thread_comm *c, const void *x, void *y);
tl_status tl_threads_exchange(tl_comm *comm, const tl_swap *swap);

#endif
