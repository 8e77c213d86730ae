/* results.h - the numbers that a section hands out: loss, gradient norm, control, count.
**
** A pipeline has them on some ranks only, and a tensor or data parallel group has them several
** times. They are taken from the first rank that has them; all others must hold the same bits.
*/
#ifndef TL_RESULTS_H
#define TL_RESULTS_H

#include "ranks.h"

/* Fills has, loss, grad_norm, control and count. Fails with TL_NUMERIC, naming two ranks and their
** bits, when they differ. */
tl_status tl_results_read(const tl_ranks *ranks, tl_section section, tl_results *out);

#endif
