/* signature.h - a row of ops.def, taken apart.
**
**   "x weight* bias*?"            one operand, `parts` operands, `parts` operands or none
**   "x? rstd?"                    each may be absent
**   "dweight!" "master!?"         read and written in place
**   "parts biases leaves"         ints by position
**   "parts leaves ranges..."      the last name takes every further int
**
** A group that may be absent (bias*?) is there exactly when the int of its plural (biases) is 1.
** A single operand that may be absent keeps its position: its view has data NULL and no dims.
*/
#ifndef TL_SIGNATURE_H
#define TL_SIGNATURE_H

#include "op.h"

enum { TL_NAMES_MAX = 8, TL_NAME_BYTES = 24 };

typedef struct tl_operand {
  char name[TL_NAME_BYTES];
  int32_t many, optional, in_place;
} tl_operand;

typedef struct tl_signature {
  tl_operand inputs[TL_NAMES_MAX], outputs[TL_NAMES_MAX];
  char ints[TL_NAMES_MAX][TL_NAME_BYTES], floats[TL_NAMES_MAX][TL_NAME_BYTES];
  int32_t input_count, output_count, int_count, float_count; /* names, not operands */
  int32_t ints_rest, floats_rest;                            /* the last name is a list */
} tl_signature;

/* Taken apart once; the table of all rows lives as long as the process. */
const tl_signature *tl_op_signature(tl_op op);

/* Fails with the nearest name when there is no such operator. */
tl_status tl_op_find(const char *name, tl_op *out);

/* How many operands `list` of this row takes when its ints are `ints` (int_count names at least,
** as in tl_call). Fails when `parts` is not positive. */
tl_status tl_op_operands(tl_op op, int32_t outputs, const int64_t *ints, int32_t *out);

/* Entry `position` of a row's operands, for `parts` operands in each group. */
const tl_operand *tl_op_operand(tl_op op, int32_t outputs, const int64_t *ints, int32_t position);

#endif
