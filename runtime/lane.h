/* lane.h - work in order on a thread of its own: what a stream is on a GPU.
**
**   caller    submit 1   submit 2   submit 3 ........ wait 3 -> first failure, or all went well
**   lane           | task 1      | task 2     | task 3 |
**
** Tasks of one lane run one after the other, in the order in which they were submitted; tasks of
** two lanes run at the same time, unless tl_lane_after puts one lane behind an event of another. An
** event is the number of a task in its lane, from 1.
**
** When a task fails, those behind it are skipped, since what they would read was never written. The
** first wait for the failed task or a later one reports it, and the lane then goes on empty-handed.
** Every call here is made by one thread, the owner of all lanes that know each other.
*/
#ifndef TL_LANE_H
#define TL_LANE_H

#include "team.h"

typedef struct tl_lane tl_lane;

/* Called once on the lane's thread; owns its context. `skipped` is 1 when a task before it has
** failed or the lane is closing: it then only frees the context, and returns TL_OK. */
typedef tl_status (*tl_lane_task)(void *context, tl_team *team, int32_t skipped);

/* Starts the thread; its team has `threads` workers, the thread itself included. */
tl_status tl_lane_open(int32_t threads, tl_lane **out);
/* Waits for the task that runs, skips the others, and waits for lanes that wait for this one. A
** failure that no wait has reported is forgotten. NULL is allowed. */
void tl_lane_close(tl_lane *lane);

/* Takes the context, also on failure. */
tl_status tl_lane_submit(tl_lane *lane, tl_lane_task task, void *context, int64_t *event);
/* Tasks of `lane` that are submitted from here on begin after `event` of `other`. They are skipped
** if that one has failed, and the failure is this lane's too. It counts as a task of this lane. */
tl_status tl_lane_after(tl_lane *lane, tl_lane *other, int64_t event);
/* Returns when the event has passed, with the failure described above. */
tl_status tl_lane_wait(tl_lane *lane, int64_t event);

/* Tasks submitted so far, and tasks that have ended. */
int64_t tl_lane_submitted(tl_lane *lane);
int64_t tl_lane_ended(tl_lane *lane);

#endif
