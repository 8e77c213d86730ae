/* fresh.h - memory of one run alone, for measuring what planned memory is worth.
**
** A program's scratch (program.h) lies in the arena, placed once. A run that is `fresh` gets it
** from the allocator before its first instruction; what it has made can be read until the next run,
** which gives it back first:
**
**   arena   | persistent | scratch ............ | persistent |
**                           first .. last byte that the section touches -> a block of its own
**
** Nothing else changes, no bit either. On a GPU a captured graph holds addresses, so such a run is
** eager, too (execute.h).
*/
#ifndef TL_FRESH_H
#define TL_FRESH_H

#include "execute.h"

typedef struct tl_fresh {
  void **blocks; /* (scratch_count) of the program; NULL: the section touches none of that part */
  int64_t *first, *end; /* of a block, in the arena */
} tl_fresh;

/* Allocates, and points the executor's views into the blocks. On failure nothing has changed. */
tl_status tl_fresh_begin(tl_executor *executor, tl_section section, tl_fresh *out);
/* Where a tensor of the program is: in a block where the section touches all of its bytes or those
** around them, else in the arena. */
char *tl_fresh_place(const tl_executor *executor, const tl_fresh *fresh, int32_t tensor);
/* Frees, and points the views into the arena again; nothing to do where nothing was begun. */
void tl_fresh_end(tl_executor *executor, tl_fresh *fresh);

#endif
