/* verify.c - instruction by instruction: operands, places, waits. */
#include "verify.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../kernels/signature.h"

tl_status tl_program_fail(const tl_program *program, int32_t instruction, const char *format, ...) {
  char place[256], text[640];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  tl_program_describe(program, instruction, place, sizeof place);
  return tl_fail(TL_PROGRAM, "%s: %s", place, text);
}

static tl_status check_numbers(const tl_program *program, int32_t index) {
  const tl_instruction *i = &program->instructions[index];
  const tl_signature *s = tl_op_signature(i->op);
  const int32_t ints = s->int_count - s->ints_rest, floats = s->float_count - s->floats_rest;
  if (i->ints.count < ints || (!s->ints_rest && i->ints.count > ints))
    return tl_program_fail(program, index, "%d ints, takes %d: %s", i->ints.count, ints,
                           tl_ops[i->op].ints);
  if (i->floats.count < floats || (!s->floats_rest && i->floats.count > floats))
    return tl_program_fail(program, index, "%d floats, takes %d: %s", i->floats.count, floats,
                           tl_ops[i->op].floats);
  return TL_OK;
}

static tl_status check_operands(const tl_program *program, int32_t index, int32_t outputs) {
  const tl_instruction *i = &program->instructions[index];
  const tl_range list = outputs ? i->out : i->in;
  const int64_t *ints = program->ints + i->ints.first;
  const char *kind = outputs ? "outputs" : "inputs";
  int32_t count = 0;
  if (tl_op_operands(i->op, outputs, ints, &count) != TL_OK)
    return tl_program_fail(program, index, "parts is %lld",
                           (long long)tl_program_int(program, index, "parts", 0));
  if (list.count != count)
    return tl_program_fail(program, index, "%d %s, takes %d: %s", list.count, kind, count,
                           outputs ? tl_ops[i->op].outputs : tl_ops[i->op].inputs);
  for (int32_t k = 0; k < count; k++) {
    const int32_t tensor = program->operands[list.first + k];
    const tl_operand *operand = tl_op_operand(i->op, outputs, ints, k);
    if (tensor == TL_NO_TENSOR && operand->optional && !operand->many) continue;
    if (tensor == TL_NO_TENSOR)
      return tl_program_fail(program, index, "%s: entry %d of the %s is absent", operand->name, k,
                             kind);
    if (tensor < 0 || tensor >= program->place_count)
      return tl_program_fail(program, index, "%s: tensor %d; there are %d", operand->name, tensor,
                             program->place_count);
  }
  return TL_OK;
}

/* 1 where output `out` may be exactly input `in`. */
static int may_replace(const tl_program *program, const tl_instruction *i, int32_t in,
                       int32_t out) {
  const int64_t *ints = program->ints + i->ints.first;
  switch (i->op) {
    case TL_OP_unary:
    case TL_OP_scale:
    case TL_OP_dropout:
    case TL_OP_swiglu_grad:
    case TL_OP_cast: return 1;
    case TL_OP_binary:
    case TL_OP_cross_entropy_grad: return in == 0;
    default:
      return tl_ops[i->op].traits & TL_TRAIT_COMM && tl_op_operand(i->op, 1, ints, out)->in_place;
  }
}

static int overlap(const tl_place *a, const tl_place *b) {
  return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

static tl_status check_pair(const tl_program *program, int32_t index, int32_t in, int32_t out) {
  const tl_instruction *i = &program->instructions[index];
  const int32_t x = program->operands[i->in.first + in], y = program->operands[i->out.first + out];
  char from[128], to[128];
  if (x == TL_NO_TENSOR || y == TL_NO_TENSOR) return TL_OK;
  const tl_place *a = &program->places[x], *b = &program->places[y];
  if (!overlap(a, b)) return TL_OK;
  const int same = a->offset == b->offset && a->bytes == b->bytes;
  if (same && may_replace(program, i, in, out)) return TL_OK;
  tl_program_describe_operand(program, index, 0, in, from, sizeof from);
  tl_program_describe_operand(program, index, 1, out, to, sizeof to);
  return tl_program_fail(program, index, "output %s %s input %s", to,
                         same ? "may not be the memory of" : "overlaps a part of", from);
}

static tl_status check_places(const tl_program *program, int32_t index) {
  const tl_instruction *i = &program->instructions[index];
  char first[128], second[128];
  for (int32_t out = 0; out < i->out.count; out++) {
    for (int32_t in = 0; in < i->in.count; in++) TL_TRY(check_pair(program, index, in, out));
    for (int32_t other = 0; other < out; other++) {
      const int32_t a = program->operands[i->out.first + other];
      const int32_t b = program->operands[i->out.first + out];
      if (a == TL_NO_TENSOR || b == TL_NO_TENSOR) continue;
      if (!overlap(&program->places[a], &program->places[b])) continue;
      tl_program_describe_operand(program, index, 1, other, first, sizeof first);
      tl_program_describe_operand(program, index, 1, out, second, sizeof second);
      return tl_program_fail(program, index, "outputs %s and %s overlap", first, second);
    }
  }
  return TL_OK;
}

static const tl_place *place_of(const tl_program *program, int32_t index, int32_t output,
                                int32_t position) {
  const tl_instruction *i = &program->instructions[index];
  return &program->places[program->operands[(output ? i->out.first : i->in.first) + position]];
}

static tl_status want_dtype(const tl_program *program, int32_t index, int32_t output,
                            int32_t position, tl_dtype dtype) {
  char name[128];
  const tl_dtype found = place_of(program, index, output, position)->view.dtype;
  if (found == dtype) return TL_OK;
  tl_program_describe_operand(program, index, output, position, name, sizeof name);
  return tl_program_fail(program, index, "%s is %s, must be %s", name, tl_dtype_name(found),
                         tl_dtype_name(dtype));
}

/* Rows keep their dtype and width; counts are i32. */
static tl_status check_exchange(const tl_program *program, int32_t index) {
  const tl_view *x = &place_of(program, index, 0, 0)->view;
  const int64_t hops = tl_program_int(program, index, "hops", -1);
  const int32_t stage = program->operands[program->instructions[index].out.first + 1];
  TL_TRY(want_dtype(program, index, 0, 1, TL_I32));
  for (int32_t k = 0; k < 2; k++) {
    if (k == 1 && stage == TL_NO_TENSOR) continue;
    const tl_view *y = &place_of(program, index, 1, k)->view;
    TL_TRY(want_dtype(program, index, 1, k, x->dtype));
    if (tl_view_row(y) != tl_view_row(x))
      return tl_program_fail(program, index, "output %d has rows of %lld, x of %lld", k,
                             (long long)tl_view_row(y), (long long)tl_view_row(x));
  }
  if (hops < 0 || hops > 2 || (hops > 0 && stage == TL_NO_TENSOR))
    return tl_program_fail(program, index, "hops %lld; 0 needs no stage, 1 and 2 do",
                           (long long)hops);
  return TL_OK;
}

static tl_status check_comm(const tl_program *program, int32_t index) {
  const tl_instruction *i = &program->instructions[index];
  const int64_t group = tl_program_int(program, index, "group", -1);
  if (group < 0 || group >= program->group_count)
    return tl_program_fail(program, index, "group %lld; there are %d", (long long)group,
                           program->group_count);
  if (tl_program_int(program, index, "outer", 1) < 1)
    return tl_program_fail(program, index, "outer is %lld, must be positive",
                           (long long)tl_program_int(program, index, "outer", 1));
  if (i->op == TL_OP_send || i->op == TL_OP_recv) return TL_OK;
  if (i->op == TL_OP_exchange) return check_exchange(program, index);
  const tl_dtype dtype = i->op == TL_OP_all_gather ? place_of(program, index, 0, 0)->view.dtype
                         : i->op == TL_OP_all_reduce_count ? TL_I64
                                                           : TL_F32;
  TL_TRY(want_dtype(program, index, 0, 0, dtype));
  return want_dtype(program, index, 1, 0, dtype);
}

static tl_status check_data(const tl_program *program, int32_t index) {
  const tl_instruction *i = &program->instructions[index];
  const int64_t samples = tl_program_int(program, index, "samples", 0);
  const int64_t length = tl_program_int(program, index, "length", 0);
  if (samples < 1 || length < 1 || samples > INT32_MAX / length)
    return tl_program_fail(program, index, "%lld samples of %lld tokens", (long long)samples,
                           (long long)length);
  if (i->op == TL_OP_count_targets) {
    const tl_place *count = place_of(program, index, 1, 0);
    if (tl_view_count(&count->view) != 1)
      return tl_program_fail(program, index, "count has %lld elements, must have 1",
                             (long long)tl_view_count(&count->view));
    return want_dtype(program, index, 1, 0, TL_I64);
  }
  for (int32_t k = 0; k < 3; k++) {
    const int64_t want = samples * length + (k == 2),
                  have = tl_view_count(&place_of(program, index, 1, k)->view);
    TL_TRY(want_dtype(program, index, 1, k, TL_I32));
    if (have != want)
      return tl_program_fail(program, index, "output %d has %lld elements, must have %lld", k,
                             (long long)have, (long long)want);
  }
  return TL_OK;
}

/* The section of an instruction; its waits may not leave it. */
static tl_status check_waits(const tl_program *program, int32_t index, tl_range section) {
  const tl_instruction *i = &program->instructions[index];
  for (int32_t k = 0; k < i->waits.count; k++) {
    const int32_t other = program->waits[i->waits.first + k];
    if (other < section.first || other >= index)
      return tl_program_fail(
          program, index, "waits for instruction %d, which does not stand before it in its section",
          other);
    if (program->instructions[other].lane == i->lane)
      return tl_program_fail(program, index, "waits for instruction %d of its own lane %d", other,
                             i->lane);
  }
  return TL_OK;
}

static tl_status check_instruction(const tl_program *program, int32_t index, tl_range section) {
  const tl_op op = program->instructions[index].op;
  TL_TRY(check_numbers(program, index));
  TL_TRY(check_operands(program, index, 0));
  TL_TRY(check_operands(program, index, 1));
  TL_TRY(check_places(program, index));
  TL_TRY(check_waits(program, index, section));
  if (tl_ops[op].traits & TL_TRAIT_COMM) return check_comm(program, index);
  if (tl_ops[op].traits & TL_TRAIT_DATA) return check_data(program, index);
  if (tl_ops[op].host == NULL)
    return tl_program_fail(program, index, "this build has no host kernel for it");
  return TL_OK;
}

static tl_status check_results(const tl_program *program) {
  static const tl_dtype dtypes[TL_RESULTS] = {
      [TL_RESULT_LOSS] = TL_F32,
      [TL_RESULT_GRAD_NORM] = TL_F32,
      [TL_RESULT_CONTROL] = TL_F32,
      [TL_RESULT_COUNT] = TL_I64,
  };
  for (int32_t r = 0; r < TL_RESULTS; r++) {
    const int32_t tensor = program->results[r];
    if (tensor == TL_NO_TENSOR) continue;
    const int64_t want = r == TL_RESULT_CONTROL ? 2 : 1;
    if (tensor < 0 || tensor >= program->place_count)
      return tl_fail(TL_PROGRAM, "result %s: tensor %d; there are %d", tl_result_name((tl_result)r),
                     tensor, program->place_count);
    const tl_view *view = &program->places[tensor].view;
    if (view->dtype != dtypes[r] || tl_view_count(view) != want)
      return tl_fail(TL_PROGRAM, "result %s: tensor %d is %lld x %s, must be %lld x %s",
                     tl_result_name((tl_result)r), tensor, (long long)tl_view_count(view),
                     tl_dtype_name(view->dtype), (long long)want, tl_dtype_name(dtypes[r]));
  }
  return TL_OK;
}

tl_status tl_program_verify(tl_program *program) {
  for (int32_t s = 0; s < TL_SECTIONS; s++) {
    const tl_range section = program->sections[s];
    const int64_t last = (int64_t)section.first + section.count;
    if (section.first < 0 || section.count < 0 || last > program->instruction_count)
      return tl_fail(TL_PROGRAM, "section %s: instructions %d to %lld; there are %d",
                     tl_section_name((tl_section)s), section.first, (long long)last - 1,
                     program->instruction_count);
    for (int32_t i = section.first; i < last; i++) TL_TRY(check_instruction(program, i, section));
  }
  TL_TRY(check_results(program));
  TL_TRY(tl_verify_memory(program));
  program->verified = 1;
  return TL_OK;
}
