/* comm_threads.h - the transport whose ranks are threads of one process. */
#ifndef TL_COMM_THREADS_H
#define TL_COMM_THREADS_H

#include "comm.h"
#include "world.h"

typedef struct tl_threads tl_threads;

/* `look_on` 1: a rank that waits for a group looks on for a moment before it sleeps (cores.h). */
tl_status tl_threads_open(tl_world *world, int32_t look_on, tl_threads **out);
/* After its comms are closed and before its world is. */
void tl_threads_close(tl_threads *threads);

/* The handle of ranks[position] on a group, to be closed by the caller. The same name with the same
** ranks is the same group. `team` is that rank's. Call while no rank runs. */
tl_status tl_threads_group(tl_threads *threads, const char *name, const int32_t *ranks,
                           int32_t size, int32_t position, tl_team *team, tl_comm **out);

/* Opens the channel for messages up to `bytes`. Call once per channel, while no rank runs. */
tl_status tl_threads_channel(tl_threads *threads, int32_t source, int32_t target, int32_t number,
                             int64_t bytes);

#endif
