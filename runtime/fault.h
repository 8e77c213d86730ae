/* fault.h - what a test can plant in one rank, to see that it is found and named.
**
** A fault acts on one instruction of one rank, at one step or at every step. Programs that people
** run have none: the list is empty and costs one comparison.
*/
#ifndef TL_FAULT_H
#define TL_FAULT_H

#include "program.h"

typedef enum tl_fault_kind {
#define FAULT(name, text) TL_FAULT_##name,
#include "fault.def"
#undef FAULT
  TL_FAULTS
} tl_fault_kind;

typedef struct tl_fault {
  int32_t rank, instruction;
  tl_fault_kind kind;
  int64_t step;    /* from 0; -1: every step */
  int64_t element; /* of the first output: for kinds that change one */
} tl_fault;

/* "fail", "stall", "nan", .. */
tl_status tl_fault_find(const char *name, tl_fault_kind *out);

/* The first fault of this rank for this instruction and step; NULL: there is none. */
const tl_fault *tl_fault_at(const tl_fault *faults, int32_t count, int32_t rank,
                            int32_t instruction, int64_t step);

/* The bits of an element with a fault that changes one: NAN or ULP. */
uint32_t tl_fault_word(tl_fault_kind kind, tl_dtype dtype, uint32_t bits);
/* Rows 1 and 2 of every input that has as many rows as the first change places, in host memory. */
void tl_fault_swap(const tl_view *in, int32_t count);

#endif
