/* ranks_inner.h - what the files of ranks share: ranks.c runs, ranks_open.c opens and closes,
** ranks_remote.c speaks with ranks in other processes.
*/
#ifndef TL_RANKS_INNER_H
#define TL_RANKS_INNER_H

#include <pthread.h>

#include "../kernels/comm/pinned_args.h"
#include "comm_processes.h"
#include "comm_nccl.h"
#include "comm_threads.h"
#include "cores.h"
#include "execute_cuda.h"
#include "fresh.h"
#include "limit.h"
#include "memory.h"
#include "peers_cuda.h"
#include "ranks.h"

/* What a rank in another process says after a run. */
typedef struct tl_told {
  uint64_t results[TL_RESULTS][2]; /* no result is larger */
  int64_t current[TL_MEMORY_COUNT], peak[TL_MEMORY_COUNT];
} tl_told;

typedef struct tl_rank {
  tl_ranks *ranks;
  tl_executor executor;
  tl_fresh fresh; /* of the last run, if it was so */
  tl_comm *comms[TL_GROUPS_MAX];
  tl_feed *feeds;
  pthread_t thread;
  int32_t started;
  tl_status status; /* of the last run */
  char error[TL_ERROR_BYTES];
  tl_told told;     /* of a rank elsewhere, after a run */
  int64_t later_ns; /* of a rank elsewhere: what makes its clock ours */
} tl_rank;

/* A place of the queue of runs: ranks_queue.c. */
typedef struct tl_queue_place {
  void *room; /* what comes out, then what goes in; pinned where a GPU is */
  int64_t bytes;
  tl_pinned_word *told; /* what the GPU tells of what comes out */
  int64_t told_bytes;
  void *outs[TL_QUEUE_OUTS_MAX]; /* in the room */
  int64_t out_words[TL_QUEUE_OUTS_MAX];
  int32_t out_count;
  int32_t busy;  /* 1: nobody has awaited the run */
  int32_t flies; /* 1: the GPU may still work on it */
  uint32_t turn; /* of the last run, as words that are told say */
} tl_queue_place;

struct tl_ranks {
  tl_world *world;
  tl_threads *transport;
  tl_processes *processes; /* ranks are processes: instead of `transport` */
  tl_peers *peers;         /* GPUs of this process: instead of both */
  tl_nccl *nccl;           /* a process for each GPU */
  tl_pool *pool;
  tl_fault *faults;
  tl_limit limit;
  tl_job *job; /* ranks are processes, and one of them is here; NULL: all are */
  int32_t count, poison;
  tl_placement placement;
  int32_t first, local;  /* ranks first .. first + local - 1 are here; the others have a program */
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t begin, end;
  int64_t turn;    /* runs begun */
  int32_t running; /* ranks that have not ended the run */
  int32_t closing, lost;
  tl_run run;
  float scalars[TL_SCALARS_MAX];
  tl_queue_place queue[TL_QUEUE_PLACES];
  tl_rank list[];
};

/* Waits for what is queued, and gives back its room. */
void tl_ranks_end_queue(tl_ranks *ranks);

int32_t tl_ranks_here(const tl_ranks *ranks, int32_t rank);

/* One rank's thread: sleeps, runs, sleeps. The argument is its tl_rank. */
void *tl_rank_main(void *rank);
/* Runs a section on the ranks that are here, and waits for them. Fails as one of them has. */
tl_status tl_ranks_run_here(tl_ranks *ranks, const tl_run *run, double limit_s);

/* Traces a rank, or stops. For one elsewhere: makes the room for what it will say. */
tl_status tl_ranks_trace_one(tl_ranks *ranks, int32_t rank, int32_t on, const tl_trace_options *of);

/* For ranks elsewhere: what rank 0 asks of them. */
tl_status tl_remote_run(tl_ranks *ranks, const tl_run *run, double limit_s);
tl_status tl_remote_finish(tl_ranks *ranks);
tl_status tl_remote_hash(tl_ranks *ranks, int32_t rank, int32_t tensor, const tl_hash_part *part,
                         uint64_t *out);
tl_status tl_remote_read(tl_ranks *ranks, int32_t rank, int32_t tensor, void *to, int64_t bytes);
tl_status tl_remote_write(tl_ranks *ranks, int32_t rank, int32_t tensor, const void *from,
                          int64_t bytes);
tl_status tl_remote_trace(tl_ranks *ranks, int32_t rank, int32_t on, const tl_trace_options *of);
/* Ends their tl_ranks_serve; on another rank than 0 it does nothing. */
void tl_remote_close(tl_ranks *ranks);

#endif
