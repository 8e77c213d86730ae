/* team.h - the threads that one rank computes with.
**
**   pool  (one per process)   helper threads, as many as cores are left over by the ranks
**   team  (one per rank)      the rank's own thread (worker 0) and whatever helpers are free
**
** Work is a counted loop of independent tasks. Which worker runs which task is free, so a task
** must write only its own outputs: then no bit depends on the number of threads.
** Waits block; before that they look on for a moment where the pool is told to (cores.h).
*/
#ifndef TL_TEAM_H
#define TL_TEAM_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { TL_SCRATCH_BYTES = 4 << 20 }; /* of each worker, 64-byte aligned */

typedef struct tl_pool tl_pool;
typedef struct tl_team tl_team;

/* `helpers` threads beside the ranks' own, pinned to the places from `place` on (cores.h), or
** -1: they run where the system puts them. Waits look on before they sleep when `look_on` is 1. */
tl_status tl_pool_open(int32_t helpers, int32_t place, int32_t look_on, tl_pool **out);
void tl_pool_close(tl_pool *pool);

/* A team for one rank thread, opened on that thread: it sets the thread's rounding to nearest even
** and keeps subnormals. `pool` may be NULL: the team is then its own thread alone. The pool has to
** outlive the team. */
tl_status tl_team_open(tl_pool *pool, tl_team **out);
void tl_team_close(tl_team *team);

/* `worker` is 0 .. tl_team_workers - 1: two tasks that run at once have different workers. */
typedef void (*tl_task)(void *context, int64_t index, int32_t worker);

int32_t tl_team_workers(const tl_team *team);
/* From here on tasks are taken in another order, a new one for each loop, as `seed` says; 0: in
** theirs. To show that no bit depends on it. */
void tl_team_shuffle(tl_team *team, uint64_t seed);
/* Runs tasks 0 .. count - 1 and returns when all are done. A team's loops do not nest. */
void tl_team_for(tl_team *team, int64_t count, tl_task task, void *context);
/* TL_SCRATCH_BYTES of memory that only this worker uses; contents are arbitrary. */
void *tl_team_scratch(tl_team *team, int32_t worker);

#endif
