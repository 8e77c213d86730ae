/* mailbox.h - a channel from one rank to another, inside one process.
**
**   send --> [slot 0][slot 1] --> recv        messages leave in the order in which they came
**
** The sender copies into a free slot, or waits for one; the receiver copies out of a full slot, or
** waits for one. With one slot every pipeline schedule is free of deadlock; the second keeps both
** sides busy.
*/
#ifndef TL_MAILBOX_H
#define TL_MAILBOX_H

#include "world.h"

enum { TL_SLOTS = 2 };

typedef struct tl_mailbox tl_mailbox;

/* Messages up to `bytes`. Call while no rank runs. */
tl_status tl_mailbox_open(tl_world *world, int32_t source, int32_t target, int64_t bytes,
                          tl_mailbox **out);
void tl_mailbox_close(tl_mailbox *mailbox);

/* Called by the source's thread. Fails when the message is too long or the target is silent. */
tl_status tl_mailbox_send(tl_mailbox *mailbox, const void *x, int64_t bytes);
/* Called by the target's thread. Fails when a message of another size came, or the source is
** silent. */
tl_status tl_mailbox_recv(tl_mailbox *mailbox, void *x, int64_t bytes);

#endif
