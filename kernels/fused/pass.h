/* pass.h - the pass of few rows through a whole model as one kernel of a GPU.
**
**   before    norm x | x + y, norm      what takes less time than an instruction does to begin:
**   product   linear                    every block does it for itself
**   after     swiglu | rope, cache_write
**
**   phases    | norm, q k v, rope, pages | attention | out | add, norm, gate up, swiglu | down | ..
**   blocks    one a multiprocessor; what a phase makes goes to the next one's blocks by mail
**   weights   | q k v | out | gate up        | down   |    a ring in shared memory, which runs on
**                                                          over the borders of phases and layers
**
** A row of few reads every weight once and does little else, so its time is that of the bytes, if
** they never stop. Separate kernels stop them: each begins with nothing in shared memory and ends
** with its longest chain. Here weights, which do not depend on x, come while blocks wait, norm and
** attend.
**
** Every sum is what its instruction says (gemm.h, norm.h, cache.h); a value that leaves an
** instruction is rounded there and written where it was before, so no bit changes.
**
** A sum x + y is made by whoever makes y, if all come by mail. While q, k and v are made, blocks
** that attend next have no tile of them, and read what earlier steps have kept.
**
** Pairs. Two neighbours are a cluster, and with several rows do half of each other's work
** (pass_share.h).
**
** Mail. Blocks hand x, q, k and v on in words that say for themselves whether they are there
** (pass_mail.cuh), so that nothing is fenced. Whoever finds a value elsewhere waits until all
** blocks have left the phase before: a phase `meets` then.
**
** A launch overlaps with the kernels before it: weights are asked for at once, and whoever
** multiplies waits for what these have made.
**
** Memory. Blocks run apart between two meetings, so no output of the phases in between may lie
** where another output or an input does: the planner keeps places of few rows apart (serving.lua),
** and it is looked at here; where places touch, blocks meet. As in fused.h, k turned is not
** written, nor rstd where nothing reads it.
*/
#ifndef TL_PASS_H
#define TL_PASS_H

#include "fused.h"
#include "pass_args.h"

typedef struct tl_pass {
  int32_t taken; /* calls that it does; 0: there is no pass here */
  tl_pass_args args;
  uint32_t shared; /* bytes */
  const char *kernel;
} tl_pass;

/* Whether a pass may begin with a call of `op`. */
int32_t tl_pass_begins(tl_op op);

/* The longest pass that begins with the first of `count` calls, all of one GPU. `phases`: room in
** host memory for as many phases as there are calls; `maps`: for TL_GEMM_FEW_PARTS times as many,
** used if out->args.boxed. Both have to be in device memory before the launch, at
** out->args.phases and out->args.maps, with a tl_pass_meeting of zeros at out->args.meeting and two
** halves of `mail` bytes at out->args.mail, all of which were TL_PASS_ABSENT at first. Passes that
** do not run at once share meeting and mail. */
tl_status tl_pass_find(const tl_fused_call *calls, int32_t count, int64_t mail,
                       tl_pass_phase *phases, tl_tensor_map *maps, tl_pass *out);
/* Bytes of mail that an output of a call may take. */
int64_t tl_pass_mail(tl_op op, const tl_view *output);
tl_status tl_pass_launch(struct tl_cuda *cuda, const tl_pass *pass);

#endif
