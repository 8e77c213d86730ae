/* job_meet.h - how the processes of a run find each other. */
#ifndef TL_JOB_MEET_H
#define TL_JOB_MEET_H

#include "mover.h"
#include "status.h"

typedef struct tl_job_meeting {
  int32_t rank, world;
  const tl_mover *mover; /* tells all where rank 0 listens; NULL: at address and port */
  const char *address;
  int32_t port;
  double start_s;
} tl_job_meeting;

/* sockets (world): rank 0's to each other, and each other's to rank 0; else -1. Rank 0 lists the
** ranks that are missing every 10 s on stderr, and fails with them after start_s. */
tl_status tl_job_meet(const tl_job_meeting *meeting, int *sockets);

#endif
