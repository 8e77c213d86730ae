/* program.c - growing the flat arrays, and naming what is in them. */
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/signature.h"
#include "memory.h"

static const char *const section_names[] = {
#define SECTION(name, text) text,
#include "program.def"
#undef SECTION
};

static const char *const result_names[] = {
#define RESULT(name, text) text,
#include "program.def"
#undef RESULT
};

/* Room for `more` elements after `count`; capacities are powers of two from 64 on. */
static tl_status reserve(void *array, int32_t count, int64_t more, size_t element) {
  int64_t have = count == 0 ? 0 : 64, need = count + more;
  while (have < count) have *= 2;
  if (need <= have) return TL_OK;
  if (need > INT32_MAX / 2) return tl_fail(TL_PROGRAM, "a program with too many parts");
  int64_t room = 64;
  while (room < need) room *= 2;
  void *old, *grown;
  memcpy(&old, array, sizeof old);
  grown = realloc(old, (size_t)room * element);
  if (grown == NULL)
    return tl_fail(TL_MEMORY, "no room for a program of %lld parts", (long long)need);
  memcpy(array, &grown, sizeof grown);
  return TL_OK;
}

tl_status tl_program_new(int64_t arena_bytes, tl_program **out) {
  if (arena_bytes < 0) return tl_fail(TL_PROGRAM, "an arena of %lld bytes", (long long)arena_bytes);
  tl_program *program = calloc(1, sizeof *program);
  if (program == NULL) return tl_fail(TL_MEMORY, "no room for a program");
  program->arena_bytes = arena_bytes;
  for (int i = 0; i < TL_RESULTS; i++) program->results[i] = TL_NO_TENSOR;
  *out = program;
  return TL_OK;
}

void tl_program_close(tl_program *program) {
  if (program == NULL) return;
  for (int32_t i = 0; i < program->text_count; i++) free(program->texts[i]);
  free(program->texts);
  free(program->places);
  free(program->instructions);
  free(program->operands);
  free(program->ints);
  free(program->floats);
  free(program->waits);
  free(program->scratch);
  free(program);
}

tl_status tl_program_add_text(tl_program *program, const char *text, int32_t *out) {
  TL_TRY(reserve(&program->texts, program->text_count, 1, sizeof *program->texts));
  char *copy = strdup(text);
  if (copy == NULL) return tl_fail(TL_MEMORY, "no room for a text");
  program->texts[program->text_count] = copy;
  *out = program->text_count++;
  return TL_OK;
}

tl_status tl_program_add_group(tl_program *program, const char *name) {
  if (program->group_count == TL_GROUPS_MAX)
    return tl_fail(TL_PROGRAM, "group %s: there are %d groups already", name, TL_GROUPS_MAX);
  TL_TRY(tl_program_add_text(program, name, &program->group_names[program->group_count]));
  program->group_count++;
  return TL_OK;
}

tl_status tl_program_add_tensor(tl_program *program, int64_t offset, tl_dtype dtype, int32_t dims,
                                const int64_t *shape) {
  const int32_t index = program->place_count;
  if (dims < 1 || dims > TL_DIMS_MAX)
    return tl_fail(TL_PROGRAM, "tensor %d has %d dims, must have 1 to %d", index, dims,
                   TL_DIMS_MAX);
  tl_place place = {.offset = offset, .bytes = tl_dtype_bytes(dtype), .name = -1};
  place.view = (tl_view){.dtype = dtype, .dims = dims};
  for (int32_t i = 0; i < dims; i++) {
    if (shape[i] < 1 || shape[i] > INT64_MAX / 2 / place.bytes)
      return tl_fail(TL_PROGRAM, "tensor %d: size %lld of dim %d", index, (long long)shape[i], i);
    place.view.shape[i] = shape[i];
    place.bytes *= shape[i];
  }
  if (offset < 0 || offset % TL_ALIGNMENT != 0)
    return tl_fail(TL_PROGRAM, "tensor %d starts at byte %lld, must be a multiple of %d", index,
                   (long long)offset, TL_ALIGNMENT);
  if (place.bytes > program->arena_bytes || offset > program->arena_bytes - place.bytes)
    return tl_fail(TL_PROGRAM, "tensor %d takes bytes %lld to %lld of an arena of %lld", index,
                   (long long)offset, (long long)(offset + place.bytes),
                   (long long)program->arena_bytes);
  TL_TRY(reserve(&program->places, index, 1, sizeof *program->places));
  program->places[program->place_count++] = place;
  return TL_OK;
}

/* Copies `count` elements to the end of an array with room for them. */
static tl_range append(void *array, int32_t *total, const void *from, int32_t count, size_t size) {
  const tl_range range = {*total, count};
  if (count > 0) memcpy((char *)array + (size_t)*total * size, from, (size_t)count * size);
  *total += count;
  return range;
}

tl_status tl_program_add_instruction(tl_program *program, const tl_instruction_parts *p) {
  tl_program *q = program;
  if (p->lane < 0 || p->lane >= TL_LANES_MAX)
    return tl_fail(TL_PROGRAM, "instruction %d: lane %d, must be 0 to %d", q->instruction_count,
                   p->lane, TL_LANES_MAX - 1);
  const int64_t operands = (int64_t)p->input_count + p->output_count;
  TL_TRY(reserve(&q->instructions, q->instruction_count, 1, sizeof *q->instructions));
  TL_TRY(reserve(&q->operands, q->operand_count, operands, sizeof *q->operands));
  TL_TRY(reserve(&q->ints, q->int_count, p->int_count, sizeof *q->ints));
  TL_TRY(reserve(&q->floats, q->float_count, p->float_count, sizeof *q->floats));
  TL_TRY(reserve(&q->waits, q->wait_count, p->wait_count, sizeof *q->waits));
  tl_instruction i = {.op = p->op, .site = p->site, .phase = p->phase};
  i.micro = p->micro, i.lane = p->lane;
  i.in = append(q->operands, &q->operand_count, p->inputs, p->input_count, sizeof(int32_t));
  i.out = append(q->operands, &q->operand_count, p->outputs, p->output_count, sizeof(int32_t));
  i.ints = append(q->ints, &q->int_count, p->ints, p->int_count, sizeof(int64_t));
  i.floats = append(q->floats, &q->float_count, p->floats, p->float_count, sizeof(float));
  i.waits = append(q->waits, &q->wait_count, p->waits, p->wait_count, sizeof(int32_t));
  q->instructions[q->instruction_count++] = i;
  if (p->lane >= q->lane_count) q->lane_count = p->lane + 1;
  return TL_OK;
}

tl_status tl_section_find(const char *name, tl_section *out) {
  for (int i = 0; i < TL_SECTIONS; i++)
    if (strcmp(name, section_names[i]) == 0) {
      *out = (tl_section)i;
      return TL_OK;
    }
  return tl_fail(TL_ARGUMENT, "no section %s; there are init, step, eval, serve0 to serve9", name);
}

const char *tl_section_name(tl_section section) { return section_names[section]; }

const char *tl_result_name(tl_result result) { return result_names[result]; }

int64_t tl_program_int(const tl_program *program, int32_t instruction, const char *name,
                       int64_t otherwise) {
  const tl_instruction *i = &program->instructions[instruction];
  const tl_signature *s = tl_op_signature(i->op);
  for (int32_t k = 0; k < s->int_count && k < i->ints.count; k++)
    if (strcmp(s->ints[k], name) == 0) return program->ints[i->ints.first + k];
  return otherwise;
}

void tl_program_describe(const tl_program *program, int32_t instruction, char *out, size_t bytes) {
  const tl_instruction *i = &program->instructions[instruction];
  const int64_t group = tl_program_int(program, instruction, "group", -1);
  const int known = group >= 0 && group < program->group_count;
  snprintf(out, bytes, "instruction %d %s%s%s%s%s%s", instruction, tl_ops[i->op].name,
           known ? " over " : "", known ? program->texts[program->group_names[group]] : "",
           i->site < 0 ? "" : " (", i->site < 0 ? "" : program->texts[i->site],
           i->site < 0 ? "" : ")");
}

void tl_program_describe_operand(const tl_program *program, int32_t instruction, int32_t output,
                                 int32_t position, char *out, size_t bytes) {
  const tl_instruction *i = &program->instructions[instruction];
  const tl_operand *operand = tl_op_operand(i->op, output, program->ints + i->ints.first, position);
  const int32_t tensor = program->operands[(output ? i->out.first : i->in.first) + position];
  if (tensor == TL_NO_TENSOR) {
    snprintf(out, bytes, "%s", operand->name);
    return;
  }
  const int32_t name = program->places[tensor].name;
  snprintf(out, bytes, "%s (%s%stensor %d)", operand->name, name < 0 ? "" : program->texts[name],
           name < 0 ? "" : ", ", tensor);
}
