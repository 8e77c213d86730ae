/* exchange.h - which rows go from which rank to which, when tokens visit experts and come home.
**
**   home h       rows in home order (moe.h): listing places ascending, tokens ascending
**                | place 0: e5 | place 1: e0 | ... |
**   owner r      rows of its experts of the wave: for each expert, sources of samples ascending,
**                pieces ascending, then the `share` ranks that hold runs of the sample
**                | e0: source 0 piece 0 | piece 1 | source 1 piece 0 | ... | e1: ... |
**
** Both sides follow from the counts (ranks, pieces, experts), which every rank has. A block is a
** run of rows that is contiguous on both sides: the rows of one (home, piece, expert).
*/
#ifndef TL_EXCHANGE_H
#define TL_EXCHANGE_H

#include "../op.h"

typedef struct tl_exchange {
  const int32_t *counts;  /* (ranks, pieces, experts) */
  const int64_t *listing; /* (waves, ranks, slots): an expert, or -1 */
  int64_t ranks, pieces, experts, share, waves, slots;
  int64_t wave;
  int32_t whole; /* the home buffer holds all waves; else this wave only */
} tl_exchange;

/* A block of `rows` rows: from `home_row` of the home buffer, from `owner_row` of the owner's. */
typedef void (*tl_exchange_visit)(void *context, int64_t home_row, int64_t owner_row, int64_t rows);

/* All blocks of a pair of ranks, in the order of the owner's rows; empty ones are left out. */
void tl_exchange_pair(const tl_exchange *exchange, int32_t home, int32_t owner,
                      tl_exchange_visit visit, void *context);
/* Rows that a rank has in its home buffer in this wave (`whole`: in all waves), and as owner. */
int64_t tl_exchange_home_rows(const tl_exchange *exchange, int32_t home);
int64_t tl_exchange_owner_rows(const tl_exchange *exchange, int32_t owner);
/* Checks sizes and numbers of counts and listing; `op` for messages. */
tl_status tl_exchange_check(const char *op, const tl_view *counts, tl_exchange *exchange,
                            int64_t listed);

#endif
