/* verify.h - what must hold before a program runs; found on the host, before any kernel runs.
**
** tl_program_verify, one program:
**   operands      as many as the row of the operator says; only optional ones absent; ints and
**                 floats complete; dtypes that communication can carry; groups that exist
**   places        an output overlaps no other output, and no input, except that it may be exactly
**                 the input in operators that say so: the all_reduces, unary, scale, dropout,
**                 swiglu_grad, cast (same size), binary (a), cross_entropy_grad (z)
**   memory        every byte read has been written: in the section itself, by init, or from outside
**                 (persistent); and written as the dtype that reads it
**   lanes         whatever reads or overwrites a byte has waited, directly or by way of others, for
**                 the instructions that wrote or read it in other lanes
**
** tl_ranks_verify, all ranks together:
**   groups        each rank is in its group, all members have the same list; trees need 2^k ranks
**   sizes         all_gather, reduce_scatter, all_reduce fit their group; members agree
**   channels      messages match in number, order and size; nothing is left over
**   progress      no rank waits forever, even with one slot in each channel
**
** A failure names the instruction, its operator and recipe line, and the operand.
*/
#ifndef TL_VERIFY_H
#define TL_VERIFY_H

#include "program.h"

/* Fails with TL_PROGRAM, or marks the program as verified and fills what verification makes. */
tl_status tl_program_verify(tl_program *program);

/* What one rank has besides its program. */
typedef struct tl_rank_group {
  const int32_t *ranks; /* of the world, in group order */
  int32_t size, position;
} tl_rank_group;

typedef struct tl_rank_plan {
  const tl_program *program;           /* verified */
  tl_rank_group groups[TL_GROUPS_MAX]; /* by the program's groups */
} tl_rank_plan;

typedef struct tl_channel {
  int32_t source, target, number;
  int64_t bytes_max; /* of its messages */
} tl_channel;

/* Fails with TL_PROGRAM, or hands out the channels that the programs use; the caller frees *out. */
tl_status tl_ranks_verify(const tl_rank_plan *ranks, int32_t count, tl_channel **out,
                          int32_t *out_count);

/* Records "instruction 3 linear (x.lua:8): <message>" as TL_PROGRAM. */
tl_status tl_program_fail(const tl_program *program, int32_t instruction, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Parts of tl_program_verify, in their own files. */
tl_status tl_verify_memory(tl_program *program);

#endif
