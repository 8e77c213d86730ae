/* hash_team.h - the hash of a shard in host memory, shared out among the threads of a team.
**
**   rows   0 .. 31 | 32 .. 63 | 64 .. 95 | ..     a task each; shares are added in any order,
**                                                 since a sum of integers has none
*/
#ifndef TL_HASH_TEAM_H
#define TL_HASH_TEAM_H

#include "hash.h"
#include "team.h"

/* The shard's share (hash.h), by a team that nobody else uses meanwhile; NULL: by this thread
** alone. */
uint64_t tl_hash_by_team(tl_team *team, const tl_hash_part *part, const void *data, tl_dtype dtype);

#endif
