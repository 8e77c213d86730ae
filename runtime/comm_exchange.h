/* comm_exchange.h - what exchanges share, whatever carries their bytes.
**
** With islands, the stage of a rank has a part for each other island, in ascending order.
*/
#ifndef TL_COMM_EXCHANGE_H
#define TL_COMM_EXCHANGE_H

#include "comm.h"

/* Rows that go from `source` to the ranks first .. last - 1. */
int64_t tl_swap_rows(const tl_swap *swap, int32_t source, int32_t first, int32_t last);
/* Rows of a part of the stage, in a group of `size`; which part is another island's. */
int64_t tl_swap_part_rows(const tl_swap *swap, int32_t size);
int32_t tl_swap_part(int32_t island, int32_t other);
/* Fail with TL_PROGRAM when `rows` from an island, or of a ring's step, have too little room. */
tl_status tl_swap_check_part(const tl_swap *swap, int32_t size, int64_t rows);
tl_status tl_swap_check_half(const tl_swap *swap, int64_t rows);
/* Fails with TL_ARGUMENT when islands do not divide the group. */
tl_status tl_swap_check_island(const tl_swap *swap, int32_t size);

#endif
