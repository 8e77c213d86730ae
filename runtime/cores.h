/* cores.h - the processors that this process may use, threads that are pinned to them, and waits.
**
**   mask of the calling thread   0 1 . . 4 5 6 7     as taskset or a container left it
**   place                        0 1     2 3 4 5     counted without holes
**
** Where there are at least as many places as threads, rank r runs at place r and helper h of the
** pool at place ranks + h; with fewer, a pinned thread could wait for its core while another one
** idles, so the system decides. Only threads that this library started are pinned: nothing is left
** behind when they end.
**
** A step is many short loops, a few microseconds apart; waking a thread takes longer than that. So
** who waits looks on for TL_LOOK_ON_NS before it sleeps, again only with a place for each thread:
** otherwise it would take the core from the one that it waits for. Gain: docs/performance.md.
**
** TL_PIN=off and TL_SPIN=off switch the two off, for several runs that share a machine (all would
** take the first places). Neither moves a bit.
*/
#ifndef TL_CORES_H
#define TL_CORES_H

#include <pthread.h>
#include <stdint.h>

#include "status.h"

enum { TL_LOOK_ON_NS = 20000 };

/* Places of the calling thread, at least 1. */
int32_t tl_cores_allowed(void);
typedef struct tl_placement {
  int32_t pinned;  /* each thread to its place */
  int32_t look_on; /* before sleeping */
} tl_placement;

/* What is right for this many threads. Fails when a variable is neither "on", "off" nor unset. */
tl_status tl_cores_place(int32_t threads, tl_placement *out);
/* Lets `thread` run at this place of the calling thread only. Fails when the system refuses. */
tl_status tl_cores_pin(pthread_t thread, int32_t place);

/* What tools such as top and gdb call the thread: "rank 3", "helper 1". */
void tl_cores_name(pthread_t thread, const char *kind, int32_t number);

#endif
