/* job.h - the processes of one run: how they find each other, notice a death, and take orders.
**
**   rank 0   plans, prints, keeps files, says what to do       one connection to each other
**   rank 1   plans the same, then does what rank 0 says        one to rank 0
**   rank 2   ..
**
** A job has a thread in each process that reads the connections, tells where its rank is twice a
** second, and ends the run on every rank:
**
**   a connection ends                         that process is gone          at once
**   nothing is heard for `timeout_s`          it is stopped or unreachable
**   a rank waits, and whom it waits for       stuck, or another order of    limit of the section
**   has not moved for longer than the limit   calls: judged by rank 0       (limit.h)
**
** Processes find each other through MPI's own start (mover.h) or, without MPI, at an address that
** all were given (torchrun's MASTER_ADDR and MASTER_PORT): rank 0 listens at one of the 16 ports
** after that, because the launcher itself may hold the port.
*/
#ifndef TL_JOB_H
#define TL_JOB_H

#include "mover.h"
#include "wire.h"
#include "world.h"

typedef struct tl_job tl_job;

typedef struct tl_job_options {
  int32_t rank, world;
  const char *module;  /* mpi.so; NULL: no MPI */
  const char *address; /* where rank 0 listens, without MPI */
  int32_t port;
  double timeout_s, start_s; /* of silence; until all have come */
} tl_job_options;

/* Returns when all processes have found each other. Fails on every rank with the ranks that are
** missing, or when rank and world differ from what MPI says. */
tl_status tl_job_open(const tl_job_options *options, tl_job **out);
/* Says goodbye; with `failed` it does not wait for the others. NULL is allowed. */
void tl_job_close(tl_job *job, int32_t failed);

int32_t tl_job_rank(const tl_job *job);
int32_t tl_job_world(const tl_job *job);
const tl_mover *tl_job_mover(const tl_job *job); /* NULL without MPI */

/* From now on the job sees to this world; NULL: no more. */
void tl_job_watch(tl_job *job, tl_world *world);

/* Messages, in order between two ranks: rank 0 has a connection to all, others have one to rank 0.
** receive waits, and fails when the run has failed anywhere; a send to a rank that is gone ends the
** run, and says which. The caller frees out->data. */
tl_status tl_job_send(tl_job *job, int32_t rank, int32_t kind, const void *data, int64_t bytes);
tl_status tl_job_receive(tl_job *job, int32_t rank, tl_frame *out);

/* Everybody's text to everybody: texts (world) of malloc'd strings; the caller frees both. */
tl_status tl_job_gather(tl_job *job, const char *mine, char ***texts);

/* Ends the run on every rank; for failures before there is a world. */
void tl_job_fail(tl_job *job, const char *message);
/* 1 when rank 0 itself was lost, so that somebody else has to say so. */
int32_t tl_job_headless(const tl_job *job);

#endif
