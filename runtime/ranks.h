/* ranks.h - the ranks of a run as threads of this process, from open to close.
**
**   caller        open ---- run(step) ------------ run(step) ---- read, hash ---- close
**   rank 0             zzz | section      | zzz  | section  | zzz                  | end
**   rank 1             zzz | section         |zz | section | zzzz                  | end
**
** Each rank has an arena, a team, and a thread that sleeps between runs. A run returns when all
** ranks have ended the section, or when one has failed and all have noticed. Signals are left to
** the caller's thread, so Ctrl-C never cuts a step.
**
** With a job (job.h) the ranks are processes. All plan the same; rank 0 is the caller, and every
** function here works for all ranks; the others serve. Traces are those of the caller's own rank.
**
** After a failure the ranks cannot run again, since they stand at different places; arenas can
** still be read. Every call is made by one thread, the caller's.
*/
#ifndef TL_RANKS_H
#define TL_RANKS_H

#include "execute.h"
#include "job.h"
#include "memory.h"
#include "verify.h"

enum { TL_SCALARS_MAX = 256 };

typedef struct tl_ranks tl_ranks;

typedef struct tl_ranks_options {
  tl_job *job; /* ranks are processes, this one executes the job's; NULL: all are threads here */
  const tl_rank_plan *plans; /* (count) programs stay the caller's and outlive the ranks */
  int32_t count;
  const tl_feed *feeds; /* (count, feed_count); the sources stay the caller's */
  int32_t feed_count;
  const int64_t *sample_bases; /* (count) */
  uint64_t seed;
  int32_t cores;     /* helpers of the pool = cores - ranks, if that is positive */
  double timeout_s;  /* a rank that is silent for longer, or for 20 median runs, is given up */
  double start_s;    /* the same for the first run of each section */
  int32_t poison;    /* 0 .. 255: arenas start filled with it, and all that a section may not expect
                       to find is filled again before each run; -1: off */
  int32_t gpu_first; /* rank i runs on GPU gpu_first + i; -1: on the host */
  int32_t gemm_tile[2];   /* tl_cuda_blocks: rows, columns */
  int32_t attention_rows; /* tl_cuda_blocks */
  int32_t gemm_provider;  /* tl_cuda_blocks */
  int32_t delay_us;       /* see tl_executor */
  int32_t shuffle;        /* see tl_team_shuffle */
  const tl_fault *faults; /* copied */
  int32_t fault_count;
} tl_ranks_options;

/* Verifies the ranks together, allocates everything, starts the threads. */
tl_status tl_ranks_open(const tl_ranks_options *options, tl_ranks **out);
/* Ends the threads and frees everything; NULL is allowed. If a rank never came back from a kernel,
** or NCCL would wait for peers that are lost, threads and memory stay behind. */
void tl_ranks_close(tl_ranks *ranks);

typedef struct tl_results {
  int32_t has[TL_RESULTS]; /* 1: some rank's section has written it */
  float loss, grad_norm, control[2];
  int64_t count;
  double ms;
} tl_results;

/* Runs a section once on all ranks. Where several ranks have a result, they must agree on every
** bit: else TL_NUMERIC. A failure of a rank is returned with that rank's code and message. */
tl_status tl_ranks_run(tl_ranks *ranks, const tl_run *run, tl_results *out);

/* A whole tensor of a rank, on its way in or out. */
typedef struct tl_carried {
  int32_t rank, tensor;
  const void *from; /* of one that goes in */
} tl_carried;

enum { TL_QUEUE_PLACES = 2, TL_QUEUE_OUTS_MAX = 4 };

/* What run does, with what is written before it and read after it, at place 0 or 1 of a queue: on
** one GPU it returns when all that is queued, so that the next run can be prepared, and queued at
** the other place, while this one runs; elsewhere when it has ended. What is written is copied
** first. A place has room made for what it carries, at its first use or when that grows. */
tl_status tl_ranks_queue(tl_ranks *ranks, int32_t place, const tl_run *run, const tl_carried *in,
                         int32_t in_count, const tl_carried *out, int32_t out_count);
/* Waits for the run of the place, and returns where its outs lie until the place is used again. */
tl_status tl_ranks_await(tl_ranks *ranks, int32_t place, const void **outs);
/* 1: queued runs and this thread's work are side by side. */
int32_t tl_ranks_queues(const tl_ranks *ranks);

/* Dtype and shape of a tensor of a rank's program; `data` is NULL. */
tl_status tl_ranks_view(const tl_ranks *ranks, int32_t rank, int32_t tensor, tl_view *out);
/* Copies a whole tensor out of the rank's arena or into it, wherever that is. */
tl_status tl_ranks_read(const tl_ranks *ranks, int32_t rank, int32_t tensor, void *to);
tl_status tl_ranks_write(const tl_ranks *ranks, int32_t rank, int32_t tensor, const void *from);
/* The share of the tensor in its logical one's hash (hash.h), where the rank is: nothing but the
** sum travels. `part` may name fewer rows and columns than the tensor has, of its pitch. */
tl_status tl_ranks_hash(const tl_ranks *ranks, int32_t rank, int32_t tensor,
                        const tl_hash_part *part, uint64_t *out);
int32_t tl_ranks_count(const tl_ranks *ranks);
const tl_program *tl_ranks_program(const tl_ranks *ranks, int32_t rank);

/* Two words of a result that the rank's section has written. */
tl_status tl_ranks_result(const tl_ranks *ranks, int32_t rank, tl_result result, void *to);

/* Bytes by kind (TL_MEMORY_COUNT), of all processes as they were after the last run. */
void tl_ranks_memory(const tl_ranks *ranks, int64_t *current, int64_t *peak);

/* What a rank has exchanged with others in a group of its program since the ranks were opened, and
** how long it has waited for them in all. -1 each: not counted. On a GPU only rows of experts are,
** of a rank elsewhere nothing is. */
typedef struct tl_traffic {
  int64_t moved, wait_ns;
  int64_t exchanged[TL_PATH_COUNT]; /* of moved, rows of experts */
} tl_traffic;
tl_traffic tl_ranks_traffic(const tl_ranks *ranks, int32_t rank, int32_t group);

/* What a process does whose rank is not 0: waits for rank 0's orders until that closes its ranks.
** Fails when the run has failed. */
tl_status tl_ranks_serve(tl_ranks *ranks);

/* Records from the next run on, or stops. `options` (by rank, copied) says what besides times;
** NULL: nothing. Ranks in other processes hand over what they recorded at the end of a run, so that
** rank 0 has all; their clocks are made ours where machines differ. */
tl_status tl_ranks_trace(tl_ranks *ranks, int32_t on, const tl_trace_options *options);
/* What the rank's trace has; NULL while tracing is off. On another rank than 0 only its own has
** anything. */
const tl_trace *tl_ranks_traced(const tl_ranks *ranks, int32_t rank);

#endif
