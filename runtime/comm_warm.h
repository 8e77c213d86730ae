/* comm_warm.h - in which order a rank meets its peers two by two, so that nobody waits in a circle.
**
** All pairs of ranks have one order, the same for everybody: by a ^ b, then by the smaller one. A
** rank meets its peers in that order and waits for each, so the first pair of all that have not met
** is never kept waiting, whatever the groups are. Pairs of the same a ^ b share no rank:
**
**   a ^ b = 1   0-1  2-3  4-5  6-7    at once
**   a ^ b = 2   0-2  1-3  4-6  5-7
**   a ^ b = 3   0-3  1-2  4-7  5-6
*/
#ifndef TL_COMM_WARM_H
#define TL_COMM_WARM_H

#include <stdint.h>

/* Puts `peer` where it belongs in the peers of `rank`; itself, and who is there already, are left
** out. peers has room for one more than `count`; returns the new count. */
int32_t tl_warm_add(int32_t rank, int32_t peer, int32_t *peers, int32_t count);

#endif
