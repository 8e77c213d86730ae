/* lanes_cuda.h - the streams of a rank on a GPU: one for kernels, one for communication.
**
**   kernels         [a][b]------[c][d]----[e]
**                       \ event       / event       c and d run beside the sum of b's result
**   communication        [all_reduce]
**
** A lane of the program that holds nothing but communication has its instructions on the second
** stream; all others share the first, in program order. What an instruction waits for is what the
** program states (verify.c proves that it states enough). With one lane there is one stream.
*/
#ifndef TL_LANES_CUDA_H
#define TL_LANES_CUDA_H

#include "cuda.h"
#include "program.h"

typedef struct tl_lanes tl_lanes;

/* Streams and events of all that the program waits for; both arguments outlive the lanes. */
tl_status tl_lanes_open(tl_cuda *cuda, const tl_program *program, tl_lanes **out);
void tl_lanes_close(tl_lanes *lanes); /* NULL is allowed */

/* 1: communication has a stream of its own. */
int32_t tl_lanes_apart(const tl_lanes *lanes);
void *tl_lanes_stream(const tl_lanes *lanes, int32_t instruction);
/* Around a section: all streams begin after the first one, and the first ends after all. */
tl_status tl_lanes_fork(tl_lanes *lanes);
tl_status tl_lanes_join(tl_lanes *lanes);
/* Whether an instruction waits for another stream, or is waited for by one. */
int32_t tl_lanes_meet(const tl_lanes *lanes, int32_t instruction);
/* Around an instruction: queues its waits, then what others wait for. Says how many multiprocessors
** a kernel leaves to rows of experts that may travel beside it (tl_cuda_set_spare). */
tl_status tl_lanes_before(tl_lanes *lanes, int32_t instruction);
tl_status tl_lanes_after(tl_lanes *lanes, int32_t instruction);

#endif
