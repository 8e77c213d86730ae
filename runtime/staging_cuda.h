/* staging_cuda.h - what the data instructions of a program make, on its way to a GPU.
**
** The host makes it in pinned memory before the section is queued, and a copy is queued where the
** instruction stands.
*/
#ifndef TL_STAGING_CUDA_H
#define TL_STAGING_CUDA_H

#include "cuda.h"
#include "execute.h"

typedef struct tl_staging tl_staging;

tl_status tl_staging_open(tl_cuda *cuda, const tl_program *program, tl_staging **out);
void tl_staging_close(tl_staging *staging); /* NULL is allowed; the context is the thread's */
/* Whether the program has such instructions. */
int32_t tl_staging_needed(const tl_staging *staging);

/* Samples and counts of a whole section. The executor's views point into the arena. */
tl_status tl_staging_make(tl_staging *staging, tl_executor *executor, tl_range section,
                          const tl_step *step);
/* Queues the copies of instruction `index`. */
tl_status tl_staging_queue(tl_staging *staging, const tl_executor *executor, int32_t index);

#endif
