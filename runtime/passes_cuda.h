/* passes_cuda.h - instructions of a program that one kernel of a GPU does: the passes of its
** sections (kernels/fused/pass.h), and what fused.h does.
**
**   device memory   | meeting | phases of a pass | phases of the next | ..    room for all sections
**
** Room is taken when the program is opened. Passes of a section are found, and their phases brought
** to the device, before the section is captured; while it is, they are queued.
*/
#ifndef TL_PASSES_CUDA_H
#define TL_PASSES_CUDA_H

#include "../kernels/fused/fused.h"
#include "cuda.h"
#include "program.h"

typedef struct tl_passes tl_passes;

/* Fills in instruction `index` of a section that ends at `end`; 0: it is no call that may be fused.
*/
typedef int32_t (*tl_passes_call)(void *context, int32_t index, int32_t end, tl_fused_call *out);

/* Device memory that the passes of a program take beside its arena, on any GPU. */
int64_t tl_passes_bytes(const tl_program *program);
/* A program without sections of requests has no passes and takes no room. */
tl_status tl_passes_open(tl_cuda *cuda, const tl_program *program, tl_passes **out);
void tl_passes_close(tl_passes *passes); /* NULL is allowed */

/* Finds the passes of the section, unless they are known; waits for the device. */
tl_status tl_passes_find(tl_passes *passes, tl_range section, tl_passes_call call, void *context);
/* Queues the kernel that does instruction `index` and others behind it: a pass, or one of fused.h.
** *done: how many instructions it does; 0: there is none. */
tl_status tl_passes_queue(tl_passes *passes, int32_t index, int32_t end, tl_passes_call call,
                          void *context, int32_t *done);

#endif
