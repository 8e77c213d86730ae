/* pass_share.h - how the blocks of a pass share its products.
**
**   tile i       block (i + offset) mod blocks, of those that have tiles; products go on where the
**                one before has stopped
**   pairs        two neighbours are a cluster, and with several rows do half of each other's work:
**
**     norm       every other row for both        x of the other rows comes from the neighbour.
**                Rows of up to TL_DEVICE_PARTIALS that are not added to; others each block norms
**     leaves     half of the leaves of each tile of both: half of x is enough, and what is left of
**                shared memory is more ring. Sums go to whoever ends the tile. Products of 2 or 4
**                leaves whose x was not normed: out and down
*/
#ifndef TL_PASS_SHARE_H
#define TL_PASS_SHARE_H

#include "pass_args.h"

/* Fills in what phases have of it. *x: bytes of shared memory that the largest x takes. */
void tl_pass_share_out(tl_pass_phase *phases, int32_t count, int32_t blocks, int64_t *x);

#endif
