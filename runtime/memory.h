/* memory.h - the only allocator of large memory, and what it counts.
**
**   arena      activations, gradients, weights: one block a rank, planned
**   staging    copies on their way between host and device
**   comm       buffers of collectives
**   data       token files and batches
**   tensor     arrays that Lua holds
**   scratch    temporary memory of the workers of a team
**
** Peaks are counted here and nowhere else: what a plan predicted can be compared with what was
** taken. All functions may be called from any thread.
*/
#ifndef TL_MEMORY_H
#define TL_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { TL_ALIGNMENT = 64 }; /* bytes; of every block */

typedef enum tl_memory {
#define MEMORY(kind, text) TL_MEMORY_##kind,
#include "memory.def"
#undef MEMORY
  TL_MEMORY_COUNT
} tl_memory;

/* A block with arbitrary contents, also for 0 bytes. The caller frees it. Fails with the kind and
** the bytes when the system has no more. */
tl_status tl_memory_alloc(tl_memory kind, int64_t bytes, void **out);
/* NULL is allowed. */
void tl_memory_free(void *block);
/* Counts memory of another allocator, a GPU's: `bytes` more, or fewer when negative. */
void tl_memory_note(tl_memory kind, int64_t bytes);

/* Bytes asked for and not yet freed, and their largest value since the start or the last reset. */
int64_t tl_memory_current(tl_memory kind);
int64_t tl_memory_peak(tl_memory kind);
/* Peaks become the current values. */
void tl_memory_reset_peaks(void);
const char *tl_memory_name(tl_memory kind);

#endif
