/* program.h - what one rank executes: flat arrays, made by the planner, verified, then constant.
**
**   sections       init             step                         eval
**   instructions   [fill, init ..]  [load_micro, embedding, ..]  [load_micro, ..]
**                        |
**                        +-- op, lane, micro-batch, recipe line
**                        +-- operands -> tensors -> bytes of the arena
**                        +-- ints, floats (in the order of the op's row), instructions to wait for
**
**   arena   | weight | moments | activation, later gradient | ...     one block, offsets in bytes
**
** A tensor is a place in the arena, dense and row-major; places may overlap when they are not alive
** together. Instructions of one lane run in order; another lane's instruction is waited for by
** naming it. Everything counts from 0: tensors, instructions, groups, lanes.
**
** Build: tl_program_new, then add (each call checks its own arguments), then tl_program_verify
** (verify.h). After that nothing changes and any number of ranks may execute the program at once.
*/
#ifndef TL_PROGRAM_H
#define TL_PROGRAM_H

#include <stddef.h>

#include "../kernels/op.h"

enum {
  TL_GROUPS_MAX = 16,
  TL_LANES_MAX = 16,
  TL_NO_TENSOR = -1 /* an operand that is absent, a result that the program does not have */
};

typedef enum tl_section {
#define SECTION(name, text) TL_SECTION_##name,
#include "program.def"
#undef SECTION
  TL_SECTIONS
} tl_section;

typedef enum tl_result {
#define RESULT(name, text) TL_RESULT_##name,
#include "program.def"
#undef RESULT
  TL_RESULTS
} tl_result;

typedef struct tl_place {
  int64_t offset, bytes; /* in the arena */
  tl_view view;          /* without data */
  int32_t name;          /* logical name: index in texts; -1: none */
  int32_t persistent;    /* filled from outside before the program runs */
} tl_place;

/* A run of one of the program's flat arrays. */
typedef struct tl_range {
  int32_t first, count;
} tl_range;

typedef struct tl_instruction {
  tl_op op;
  tl_range in, out; /* of operands */
  tl_range ints, floats, waits;
  int32_t site, phase; /* indices in texts; -1: none */
  int32_t micro, lane;
} tl_instruction;

typedef struct tl_bytes {
  int64_t offset, bytes;
} tl_bytes;

typedef struct tl_program {
  int64_t arena_bytes;
  tl_place *places;
  tl_instruction *instructions;
  int32_t *operands; /* indices of places or TL_NO_TENSOR */
  int64_t *ints;
  float *floats;
  int32_t *waits; /* indices of instructions */
  char **texts;
  int32_t place_count, instruction_count, operand_count, int_count, float_count, wait_count;
  int32_t text_count;
  int32_t group_names[TL_GROUPS_MAX]; /* indices in texts */
  int32_t group_count, lane_count;
  tl_range sections[TL_SECTIONS]; /* of instructions; count 0: there is none */
  int32_t results[TL_RESULTS];    /* places or TL_NO_TENSOR */
  /* Made by tl_program_verify: */
  int32_t verified;
  int32_t result_written[TL_SECTIONS][TL_RESULTS]; /* 1: the section writes the result */
  tl_bytes *scratch; /* what no section may expect to find from an earlier one, ascending */
  int32_t scratch_count;
} tl_program;

/* One instruction as its maker has it. */
typedef struct tl_instruction_parts {
  tl_op op;
  const int32_t *inputs, *outputs, *waits;
  int32_t input_count, output_count, wait_count;
  const int64_t *ints;
  const float *floats;
  int32_t int_count, float_count;
  int32_t site, phase, micro, lane;
} tl_instruction_parts;

/* An empty program. The caller closes it. */
tl_status tl_program_new(int64_t arena_bytes, tl_program **out);
void tl_program_close(tl_program *program); /* NULL is allowed */

/* All of these append and fail without changing the program. */
tl_status tl_program_add_text(tl_program *program, const char *text, int32_t *out);
tl_status tl_program_add_group(tl_program *program, const char *name);
tl_status tl_program_add_tensor(tl_program *program, int64_t offset, tl_dtype dtype, int32_t dims,
                                const int64_t *shape);
tl_status tl_program_add_instruction(tl_program *program, const tl_instruction_parts *parts);

/* "init", "step", "eval", "serve0" .. "serve9". Fails with the list of names. */
tl_status tl_section_find(const char *name, tl_section *out);
const char *tl_section_name(tl_section section);
const char *tl_result_name(tl_result result);

/* The int of this name of an instruction; `otherwise` if its row has no such name. */
int64_t tl_program_int(const tl_program *program, int32_t instruction, const char *name,
                       int64_t otherwise);

/* "instruction 214 reduce_scatter over tp (recipes/x.lua:8)". */
void tl_program_describe(const tl_program *program, int32_t instruction, char *out, size_t bytes);
/* "y (layers.3.mlp.down, tensor 77)": operand `position` of an instruction. */
void tl_program_describe_operand(const tl_program *program, int32_t instruction, int32_t output,
                                 int32_t position, char *out, size_t bytes);

#endif
