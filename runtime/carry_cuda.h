/* carry_cuda.h - gigabytes between the arena of a GPU and host memory that is not pinned.
**
**   GPU   --copy engine-->  pinned, 2 MiB  --memcpy-->  to         threads carry
**   GPU   <-copy engine---  pinned, 2 MiB  <--memcpy--  from       chunk by chunk, the next free
**
** The driver alone does the same with one thread, which also pays for the first touch of every page
** of `to`; so a checkpoint waited for that thread. Small copies are left to it.
*/
#ifndef TL_CARRY_CUDA_H
#define TL_CARRY_CUDA_H

#include "cuda.h"

typedef struct tl_carrier tl_carrier;

/* From here on threads carry; fewer bytes are not worth waking them. */
enum { TL_CARRY_BYTES = 4 << 20 };

/* Takes pinned memory and streams, once. */
tl_status tl_carrier_open(tl_cuda *cuda, tl_carrier **out);
void tl_carrier_close(tl_carrier *carrier); /* NULL is allowed */

/* Both wait. What was queued before on the GPU's stream has to have ended. */
tl_status tl_carry_out(tl_carrier *carrier, const void *from, int64_t bytes, void *to);
tl_status tl_carry_in(tl_carrier *carrier, void *to, int64_t bytes, const void *from);

#endif
