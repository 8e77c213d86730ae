/* comm_once.h - one collective by itself: as many threads as ranks, opened for this call.
**
** For trying things out and for tests; a program's ranks live longer (ranks.h).
*/
#ifndef TL_COMM_ONCE_H
#define TL_COMM_ONCE_H

#include "view.h"

typedef enum tl_collective {
#define COMM(name) TL_COMM_##name,
#include "comm.def"
#undef COMM
  TL_COLLECTIVES
} tl_collective;

typedef struct tl_comm_job {
  tl_collective kind;
  int32_t ranks;
  const tl_view *x, *y; /* (ranks): what each rank gives and gets; unused by barrier */
  int64_t outer;        /* all_gather, reduce_scatter */
  int32_t root;         /* broadcast */
} tl_comm_job;

/* Fails when sizes or dtypes do not fit (comm.h), and as the collective does. */
tl_status tl_comm_once(const tl_comm_job *job);

/* Fails with the list of names. */
tl_status tl_collective_find(const char *name, tl_collective *out);

#endif
