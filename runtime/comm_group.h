/* comm_group.h - thread ranks that do nothing but collectives, for trying things out and for tests.
**
**   caller    open ---- run(all_reduce) --------- run(all_gather) ------- close
**   rank 0         zzz | its share     | zzzzzzz | its share      | zzzz | end
**   rank 1         zzz | its share         | zzz | its share   | zzzzzzz | end
**
** The caller has the tensors of all ranks and hands them over for one collective at a time; their
** own threads, and the transport of comm.h, do the work. A program's ranks are another thing: they
** have arenas and compute (ranks.h).
*/
#ifndef TL_COMM_GROUP_H
#define TL_COMM_GROUP_H

#include "view.h"

enum { TL_COMM_GROUP_MAX = 4096 };

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

typedef struct tl_comm_group tl_comm_group;

/* Starts `ranks` threads, 1 to TL_COMM_GROUP_MAX. */
tl_status tl_comm_group_open(int32_t ranks, tl_comm_group **out);
/* NULL is allowed. */
void tl_comm_group_close(tl_comm_group *group);
int32_t tl_comm_group_ranks(const tl_comm_group *group);

/* Returns when all ranks have ended it. job->ranks is the group's. Sizes and dtypes that do not fit
** (comm.h) are refused before anything begins, and the group can go on; after a failure inside a
** collective it cannot. */
tl_status tl_comm_group_run(tl_comm_group *group, const tl_comm_job *job);
/* A group that lives for one collective. */
tl_status tl_comm_once(const tl_comm_job *job);

const char *tl_collective_name(tl_collective kind);
/* Fails with the list of names. */
tl_status tl_collective_find(const char *name, tl_collective *out);

#endif
