/* comm_processes.h - the transport whose ranks are processes: a mover brings bytes, folds are ours.
**
**   reduce_scatter   every rank sends each other its piece; a piece's owner folds, in tree order
**   all_reduce       the same with slices, then the owners send the sums round
**   all_gather       every rank sends its x to each other
**   send             copies into one of two slots and goes on, like a mailbox
**
** A thread of its own pushes every millisecond: a message that MPI took into its buffers would
** otherwise stay there while its rank computes, or has ended its section and waits for the next.
**
** Long messages are cut into chunks, so staging has a fixed size. A rank that waits looks at the
** world every now and then and leaves when it is aborted; it tells the world whom it waits for.
*/
#ifndef TL_COMM_PROCESSES_H
#define TL_COMM_PROCESSES_H

#include "comm.h"
#include "mover.h"
#include "world.h"

typedef struct tl_processes tl_processes;

/* `rank` is this process; `largest`: ranks of its largest group. */
tl_status tl_processes_open(tl_world *world, const tl_mover *mover, int32_t rank, int32_t largest,
                            tl_processes **out);
void tl_processes_close(tl_processes *processes); /* after its comms; NULL is allowed */

/* The group of these ranks, which are copied, with this process at `position`. Its messages are
** told apart by the name: the same on all its ranks. Close *out before the transport. */
tl_status tl_processes_group(tl_processes *processes, const char *name, const int32_t *ranks,
                             int32_t size, int32_t position, tl_comm **out);
/* A channel that this rank sends or receives on. */
tl_status tl_processes_channel(tl_processes *processes, int32_t source, int32_t target,
                               int32_t number, int64_t bytes);
/* At the end of a section: waits until what was sent is on its way. */
tl_status tl_processes_finish(tl_processes *processes);

#endif
