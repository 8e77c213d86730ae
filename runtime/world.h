/* world.h - the ranks of a run as one: where each is, how long others wait, and who failed first.
**
**   seat   one per rank: the instruction it is in, and since when
**   gate   a mutex and a condition to wait at; an abort opens all gates of the world
**
** A rank that waits names the rank it waits for. If that rank has not begun an instruction for
** longer than the limit, the run ends on every rank, with a message such as
**
**   rank 1 waits for rank 3: silent for 10 s in instruction 214 reduce_scatter over tp
**   (recipes/x.lua:8); rank 3 is in instruction 210 linear (recipes/x.lua:6)
**
** A rank that is slow but goes on from instruction to instruction is waited for without limit, and
** so is a rank that waits for it: only the newest sign of life along a chain of waits counts. The
** message names the last link of the chain.
*/
#ifndef TL_WORLD_H
#define TL_WORLD_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { TL_ERROR_BYTES = 1024 };

typedef struct tl_world tl_world;

typedef struct tl_gate {
  struct tl_gate *next; /* all gates of the world */
  pthread_mutex_t mutex;
  pthread_cond_t open;
} tl_gate;

/* Writes where `rank` is, such as "instruction 214 linear (recipes/x.lua:8)". Called by any rank:
** it may only read what does not change during a run. */
typedef void (*tl_describe)(void *context, int32_t rank, int32_t instruction, char *out,
                            size_t bytes);

/* All seats are at no instruction. `context` goes to every call of `describe`. */
tl_status tl_world_open(int32_t ranks, tl_describe describe, void *context, tl_world **out);
/* After everything that has a gate in it is closed. */
void tl_world_close(tl_world *world);

/* Begins a run: all ranks are alive now, and one that stays silent is given up after `limit_s`
** seconds. Call while no rank runs. */
void tl_world_begin(tl_world *world, double limit_s);
/* `rank` begins an instruction; -1: it has ended its section. */
void tl_world_at(tl_world *world, int32_t rank, int32_t instruction);

/* Ends the run on every rank; only the first message is kept. TL_LOST: a rank is gone, stuck or
** somewhere else, and a new start may go well; else it is `rank` itself that failed. No gate may be
** locked. */
void tl_world_abort(tl_world *world, int32_t rank, tl_status status, const char *message);
/* 1 after an abort. */
int32_t tl_world_aborted(tl_world *world);
/* The first failure and its rank. Call only after tl_world_aborted has returned 1. */
const char *tl_world_error(tl_world *world, int32_t *rank);
tl_status tl_world_status(tl_world *world);
/* Returns when the world is aborted: what a rank does that has got stuck. For tests of limits. */
void tl_world_stall(tl_world *world);

/* Call while no rank runs. A gate is closed only after its world has no more ranks at work. */
void tl_gate_open(tl_world *world, tl_gate *gate);
void tl_gate_close(tl_gate *gate);
/* Sleeps until the gate is signalled or `peer`, and whom it waits for in turn, have been silent for
** too long; 0 if they have. The caller is `rank`, holds the mutex, looks again at what it waits
** for, and calls tl_gate_done when it stops waiting. */
int32_t tl_gate_wait(tl_world *world, tl_gate *gate, int32_t rank, int32_t peer);
void tl_gate_done(tl_world *world, int32_t rank);
/* Adds to the time that `rank` has waited for others since the world was opened; returns the sum.
** Called by the rank's own thread; gates count their waits themselves. */
int64_t tl_world_waited(tl_world *world, int32_t rank, int64_t ns);

/* For a rank that waits elsewhere than at a gate, and looks again every now and then: 0 if `peer`,
** and whom it waits for in turn, have been silent for too long. -1: it waits for nobody. */
int32_t tl_world_patient(tl_world *world, int32_t rank, int32_t peer);

/* For ranks in other processes, whose seats are told. `age_ns`: since its last sign of life. */
typedef struct tl_seat {
  int64_t age_ns;
  int32_t instruction, waits_for;
} tl_seat;
void tl_world_tell(tl_world *world, int32_t rank, const tl_seat *seat);
tl_seat tl_world_seat(tl_world *world, int32_t rank);
/* From now on only tl_world_judge judges, and tl_world_patient always returns 1: this process does
** not know where the others are. */
void tl_world_trust(tl_world *world);
/* "instruction 214 linear (recipes/x.lua:8)", or nothing when it is in none. */
void tl_world_place(tl_world *world, int32_t rank, char *out, size_t bytes);
/* Looks at all waits; aborts the world, and returns 1, when one has lasted too long. */
int32_t tl_world_judge(tl_world *world);

/* The two ways in which a wait of `rank` ends badly; no gate may be locked. The first aborts the
** world and returns TL_LOST, the second TL_COMM. */
tl_status tl_world_silent(tl_world *world, int32_t rank, int32_t peer);
tl_status tl_world_stopped(tl_world *world);

/* Nanoseconds of a clock that never jumps. */
int64_t tl_now_ns(void);

#endif
