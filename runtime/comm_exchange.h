/* comm_exchange.h - the transport whose ranks are processes: a mover brings bytes, folds are ours.
**
**   reduce_scatter   every rank sends each other its piece; a piece's owner folds, in tree order
**   all_reduce       the same with slices, then the owners send the sums round
**   all_gather       every rank sends its x to each other
**   send             copies into one of two slots and goes on, like a mailbox
**
** Long messages are cut into chunks, so staging has a fixed size. A rank that waits looks at the
** world every now and then and leaves when it is aborted; it tells the world whom it waits for.
*/
#ifndef TL_COMM_EXCHANGE_H
#define TL_COMM_EXCHANGE_H

#include "comm.h"
#include "mover.h"
#include "world.h"

typedef struct tl_exchange tl_exchange;

/* `rank` is this process; `largest`: ranks of its largest group. */
tl_status tl_exchange_open(tl_world *world, const tl_mover *mover, int32_t rank, int32_t largest,
                           tl_exchange **out);
void tl_exchange_close(tl_exchange *exchange); /* after its comms; NULL is allowed */

tl_status tl_exchange_group(tl_exchange *exchange, const char *name, const int32_t *ranks,
                            int32_t size, int32_t position, tl_comm **out);
/* A channel that this rank sends or receives on. */
tl_status tl_exchange_channel(tl_exchange *exchange, int32_t source, int32_t target, int32_t number,
                              int64_t bytes);
/* At the end of a section: waits until what was sent is on its way. */
tl_status tl_exchange_finish(tl_exchange *exchange);

#endif
