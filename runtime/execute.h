/* execute.h - one rank runs one section of its program.
**
**   for each instruction, in program order:
**     kernel   views (arena + offset), numbers, step, team  -> tl_host_<op>
**     comm     group, views                                 -> comm.h
**     data     source, samples of this rank                 -> data.h
**
** Program order is one legal order of the lanes. Nothing is allocated. The first failure ends the
** section with a message that begins with rank, step, micro-batch, instruction and recipe line.
*/
#ifndef TL_EXECUTE_H
#define TL_EXECUTE_H

#include "comm.h"
#include "data.h"
#include "fault.h"
#include "program.h"
#include "trace.h"
#include "world.h"

/* The sources that load_micro and count_targets name, as one rank uses them. */
typedef struct tl_feed {
  const tl_data *data;
  int64_t samples;     /* of the global batch */
  int64_t sample_base; /* this rank's first sample in it */
} tl_feed;

typedef struct tl_executor {
  const tl_program *program; /* verified */
  struct tl_gpu *gpu;        /* where the arena is; NULL: host memory */
  char *arena;
  tl_view *views;  /* by operand of the program */
  tl_comm **comms; /* by group of the program */
  tl_team *team;
  tl_world *world;
  const tl_feed *feeds;
  int64_t sample_base; /* of the step: this rank's first sample of the training batch */
  int32_t rank, ranks;
  tl_trace *trace; /* NULL: nothing is recorded */
  const tl_fault *faults;
  int32_t fault_count;
  int32_t
      delay_us; /* waits up to this long before each instruction, to shake the order of events */
} tl_executor;

enum {
  TL_PROFILE_RANGES = 1, /* ranges for a profiler (nvtx.h) */
  TL_PROFILE_START = 2,  /* on a GPU: the profiler collects from here on, or until here */
  TL_PROFILE_STOP = 4
};

typedef struct tl_run {
  tl_section section;
  tl_step step;    /* its sample_base is the executor's */
  int32_t check;   /* 1: floats of every output are looked at; NaN and Inf end the run */
  int32_t profile; /* of enum below, ored */
  int32_t eager;   /* 1: on a GPU instructions are queued one by one, not replayed as a graph */
  int32_t fresh;   /* 1: scratch of this run alone (fresh.h); on a GPU it is eager, too */
} tl_run;

/* Points `views` into the arena. */
void tl_executor_resolve(tl_executor *executor);

/* Runs the section from its first instruction to its last, on the rank's own thread. The first
** failure ends it, with the place of the instruction in its message, and so does another rank's. */
tl_status tl_execute(tl_executor *executor, const tl_run *run);

#endif
