/* program_file.c - writes and reads programs as JSON, by jansson. */
#include "program_file.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/op.h"
#include "hash.h"
#include "world.h"

enum { VERSION = 2, SEAL_BYTES = 28 }; /* of ,"xxh64":"0123456789abcdef"} */

static json_t *int32_list(const int32_t *list, int32_t count) {
  json_t *array = json_array();
  for (int32_t i = 0; i < count; i++) json_array_append_new(array, json_integer(list[i]));
  return array;
}

static json_t *int64_list(const int64_t *list, int32_t count) {
  json_t *array = json_array();
  for (int32_t i = 0; i < count; i++) json_array_append_new(array, json_integer(list[i]));
  return array;
}

static json_t *float_list(const float *list, int32_t count) {
  json_t *array = json_array();
  for (int32_t i = 0; i < count; i++) {
    uint32_t bits;
    memcpy(&bits, &list[i], sizeof bits);
    json_array_append_new(array, json_integer(bits));
  }
  return array;
}

static json_t *tensor_json(const tl_place *place) {
  return json_pack("[I s o i i]", (json_int_t)place->offset, tl_dtype_name(place->view.dtype),
                   int64_list(place->view.shape, place->view.dims), place->name, place->persistent);
}

static json_t *instruction_json(const tl_program *p, const tl_instruction *i) {
  return json_pack("[s o o o o o i i i i]", tl_ops[i->op].name,
                   int32_list(p->operands + i->in.first, i->in.count),
                   int32_list(p->operands + i->out.first, i->out.count),
                   int64_list(p->ints + i->ints.first, i->ints.count),
                   float_list(p->floats + i->floats.first, i->floats.count),
                   int32_list(p->waits + i->waits.first, i->waits.count), i->site, i->phase,
                   i->micro, i->lane);
}

static json_t *program_json(const tl_program *p) {
  json_t *texts = json_array(), *groups = json_array(), *tensors = json_array();
  json_t *instructions = json_array(), *sections = json_object(), *results = json_object();
  for (int32_t i = 0; i < p->text_count; i++)
    json_array_append_new(texts, json_string(p->texts[i]));
  for (int32_t i = 0; i < p->group_count; i++)
    json_array_append_new(groups, json_string(p->texts[p->group_names[i]]));
  for (int32_t i = 0; i < p->place_count; i++)
    json_array_append_new(tensors, tensor_json(&p->places[i]));
  for (int32_t i = 0; i < p->instruction_count; i++)
    json_array_append_new(instructions, instruction_json(p, &p->instructions[i]));
  for (int i = 0; i < TL_SECTIONS; i++)
    if (p->sections[i].count > 0)
      json_object_set_new(sections, tl_section_name((tl_section)i),
                          json_pack("[i i]", p->sections[i].first, p->sections[i].count));
  for (int i = 0; i < TL_RESULTS; i++)
    if (p->results[i] != TL_NO_TENSOR)
      json_object_set_new(results, tl_result_name((tl_result)i), json_integer(p->results[i]));
  return json_pack("{s i s I s o s o s o s o s o s o}", "tidelock_program", VERSION, "arena_bytes",
                   (json_int_t)p->arena_bytes, "texts", texts, "groups", groups, "tensors", tensors,
                   "instructions", instructions, "sections", sections, "results", results);
}

/* The end of the file: the hash of all that stands before it. */
static void write_seal(const char *text, size_t bytes, char out[SEAL_BYTES + 1]) {
  snprintf(out, SEAL_BYTES + 1, ",\"xxh64\":\"%016" PRIx64 "\"}",
           tl_hash_bytes(text, (int64_t)bytes));
}

/* Text without its closing brace, then the seal. */
static tl_status write_sealed(const char *text, const char *path) {
  char seal[SEAL_BYTES + 1];
  const size_t bytes = strlen(text) - 1;
  FILE *file = fopen(path, "wb");
  if (file == NULL) return tl_fail(TL_IO, "%s: cannot write it: %s", path, strerror(errno));
  write_seal(text, bytes, seal);
  const int good = fwrite(text, 1, bytes, file) == bytes && fputs(seal, file) >= 0;
  if (fclose(file) != 0 || !good) return tl_fail(TL_IO, "%s: cannot write it", path);
  return TL_OK;
}

tl_status tl_program_save(const tl_program *program, const char *about, const char *path) {
  json_error_t error;
  json_t *facts = json_loads(about, 0, &error);
  if (facts == NULL) return tl_fail(TL_ARGUMENT, "about: %s", error.text);
  json_t *all = program_json(program);
  char *text = NULL;
  if (all != NULL && json_object_set_new(all, "about", facts) == 0)
    text = json_dumps(all, JSON_COMPACT);
  json_decref(all);
  if (text == NULL) return tl_fail(TL_MEMORY, "%s: no room for its text", path);
  const tl_status status = write_sealed(text, path);
  free(text);
  return status;
}

/* Numbers of an array, to be freed by the caller; NULL where it is none, or holds other things. */
static int64_t *integers(const json_t *array, int32_t *count) {
  const size_t have = json_array_size(array);
  int64_t *list = json_is_array(array) && have < INT32_MAX ? calloc(have + 1, sizeof *list) : NULL;
  for (size_t i = 0; list != NULL && i < have; i++) {
    const json_t *item = json_array_get(array, i);
    if (!json_is_integer(item)) {
      free(list);
      return NULL;
    }
    list[i] = json_integer_value(item);
  }
  *count = (int32_t)have;
  return list;
}

static float float_of(int64_t bits) {
  const uint32_t word = (uint32_t)bits;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

static tl_status read_tensor(tl_program *program, json_t *row) {
  json_int_t offset;
  const char *dtype_name;
  json_t *sizes;
  int name, persistent, dims = 0;
  tl_dtype dtype;
  if (json_unpack(row, "[I s o i i!]", &offset, &dtype_name, &sizes, &name, &persistent) != 0)
    return tl_fail(TL_PROGRAM, "tensor %d is no row of five", program->place_count);
  TL_TRY(tl_dtype_parse(dtype_name, &dtype));
  int64_t *shape = integers(sizes, &dims);
  if (shape == NULL || name >= program->text_count)
    return free(shape), tl_fail(TL_PROGRAM, "tensor %d: its shape or name", program->place_count);
  const tl_status status = tl_program_add_tensor(program, offset, dtype, dims, shape);
  free(shape);
  if (status != TL_OK) return status;
  program->places[program->place_count - 1].name = name < 0 ? -1 : name;
  program->places[program->place_count - 1].persistent = persistent != 0;
  return TL_OK;
}

static tl_status find_op(const char *name, tl_op *out) {
  for (int i = 0; i < TL_OP_COUNT; i++)
    if (strcmp(tl_ops[i].name, name) == 0) return *out = (tl_op)i, TL_OK;
  return tl_fail(TL_PROGRAM, "this build has no operator %s", name);
}

/* The five lists of an instruction, narrowed where the program's are 32 bits. */
typedef struct lists {
  int64_t *list[5];
  int32_t count[5], *small[5];
  float *floats;
} lists;

static void free_lists(lists *l) {
  for (int i = 0; i < 5; i++) free(l->list[i]), free(l->small[i]);
  free(l->floats);
}

static tl_status read_lists(json_t *const of[5], lists *l) {
  for (int i = 0; i < 5; i++) {
    l->list[i] = integers(of[i], &l->count[i]);
    if (l->list[i] == NULL) return tl_fail(TL_PROGRAM, "a list that is no list of integers");
    l->small[i] = calloc((size_t)l->count[i] + 1, sizeof **l->small);
    if (l->small[i] == NULL) return tl_fail(TL_MEMORY, "no room for an instruction");
    for (int32_t k = 0; k < l->count[i]; k++) l->small[i][k] = (int32_t)l->list[i][k];
  }
  l->floats = calloc((size_t)l->count[3] + 1, sizeof *l->floats);
  if (l->floats == NULL) return tl_fail(TL_MEMORY, "no room for an instruction");
  for (int32_t k = 0; k < l->count[3]; k++) l->floats[k] = float_of(l->list[3][k]);
  return TL_OK;
}

static tl_status read_instruction(tl_program *program, json_t *row) {
  const char *name;
  json_t *of[5];
  tl_instruction_parts p = {0};
  lists l = {0};
  if (json_unpack(row, "[s o o o o o i i i i!]", &name, &of[0], &of[1], &of[2], &of[3], &of[4],
                  &p.site, &p.phase, &p.micro, &p.lane) != 0)
    return tl_fail(TL_PROGRAM, "instruction %d is no row of ten", program->instruction_count);
  TL_TRY(find_op(name, &p.op));
  if (p.site >= program->text_count || p.phase >= program->text_count)
    return tl_fail(TL_PROGRAM, "instruction %d: no such text", program->instruction_count);
  tl_status status = read_lists(of, &l);
  if (status == TL_OK) {
    p.inputs = l.small[0], p.input_count = l.count[0];
    p.outputs = l.small[1], p.output_count = l.count[1];
    p.ints = l.list[2], p.int_count = l.count[2];
    p.floats = l.floats, p.float_count = l.count[3];
    p.waits = l.small[4], p.wait_count = l.count[4];
    status = tl_program_add_instruction(program, &p);
  }
  free_lists(&l);
  return status;
}

static tl_status read_marks(tl_program *program, json_t *all) {
  const char *name;
  json_t *item;
  json_object_foreach(json_object_get(all, "sections"), name, item) {
    tl_section section;
    TL_TRY(tl_section_find(name, &section));
    tl_range *range = &program->sections[section];
    if (json_unpack(item, "[i i!]", &range->first, &range->count) != 0 || range->first < 0 ||
        range->count < 0 || range->count > program->instruction_count - range->first)
      return tl_fail(TL_PROGRAM, "section %s is no part of the program", name);
  }
  json_object_foreach(json_object_get(all, "results"), name, item) {
    int known = 0;
    for (int i = 0; i < TL_RESULTS; i++) {
      if (strcmp(tl_result_name((tl_result)i), name) != 0) continue;
      program->results[i] = (int32_t)json_integer_value(item);
      known = program->results[i] >= 0 && program->results[i] < program->place_count;
    }
    if (!known) return tl_fail(TL_PROGRAM, "result %s", name);
  }
  return TL_OK;
}

static tl_status each(json_t *all, const char *name, tl_program *program,
                      tl_status (*read)(tl_program *program, json_t *row)) {
  size_t index;
  json_t *row;
  json_array_foreach(json_object_get(all, name), index, row) TL_TRY(read(program, row));
  return TL_OK;
}

static tl_status read_text(tl_program *program, json_t *row) {
  int32_t text;
  if (!json_is_string(row)) return tl_fail(TL_PROGRAM, "a text that is none");
  return tl_program_add_text(program, json_string_value(row), &text);
}

static tl_status read_group(tl_program *program, json_t *row) {
  if (!json_is_string(row)) return tl_fail(TL_PROGRAM, "a group without a name");
  return tl_program_add_group(program, json_string_value(row));
}

static tl_status read_program(json_t *all, tl_program **out) {
  json_int_t arena;
  if (json_unpack(all, "{s I}", "arena_bytes", &arena) != 0)
    return tl_fail(TL_PROGRAM, "arena_bytes is missing");
  TL_TRY(tl_program_new(arena, out));
  TL_TRY(each(all, "texts", *out, read_text));
  TL_TRY(each(all, "groups", *out, read_group));
  TL_TRY(each(all, "tensors", *out, read_tensor));
  TL_TRY(each(all, "instructions", *out, read_instruction));
  TL_TRY(read_marks(*out, all));
  return tl_program_verify(*out);
}

static tl_status read_about(json_t *about, tl_plan *out) {
  json_int_t seed, samples, vocab;
  json_t *scalars;
  int width = 0;
  if (json_unpack(about, "{s I s I s I s i s i s o}", "seed", &seed, "samples", &samples, "vocab",
                  &vocab, "length", &out->length, "scalar_count", &width, "scalars", &scalars) != 0)
    return tl_fail(TL_PROGRAM, "about: a field is missing");
  int32_t count = 0;
  int64_t *bits = integers(scalars, &count);
  if (bits == NULL || width < 1 || count % width != 0)
    return free(bits), tl_fail(TL_PROGRAM, "about: scalars");
  out->scalars = calloc((size_t)count + 1, sizeof *out->scalars);
  for (int32_t i = 0; out->scalars != NULL && i < count; i++) out->scalars[i] = float_of(bits[i]);
  free(bits);
  if (out->scalars == NULL) return tl_fail(TL_MEMORY, "no room for scalars");
  out->seed = (uint64_t)seed, out->samples = samples, out->vocab = vocab;
  out->steps = count / width, out->scalar_count = width;
  return TL_OK;
}

/* The whole file, to be freed by the caller. */
static tl_status read_file(const char *path, char **out, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return tl_fail(TL_IO, "unable to open %s: %s", path, strerror(errno));
  char *text = NULL;
  size_t have = 0, room = 0;
  for (;;) {
    if (have == room) {
      char *more = realloc(text, room = room * 2 + (1 << 16));
      if (more == NULL) return free(text), fclose(file), tl_fail(TL_MEMORY, "%s: no room", path);
      text = more;
    }
    const size_t got = fread(text + have, 1, room - have, file);
    if (got == 0) break;
    have += got;
  }
  const int failed = ferror(file);
  fclose(file);
  if (failed) return free(text), tl_fail(TL_IO, "%s: cannot read it", path);
  *out = text, *bytes = have;
  return TL_OK;
}

static tl_status check_seal(const char *text, size_t bytes) {
  char seal[SEAL_BYTES + 1];
  if (bytes < SEAL_BYTES) return tl_fail(TL_PROGRAM, "it has no checksum");
  const char *end = text + bytes - SEAL_BYTES;
  if (memcmp(end, ",\"xxh64\":\"", 10) != 0) return tl_fail(TL_PROGRAM, "it has no checksum");
  write_seal(text, bytes - SEAL_BYTES, seal);
  if (memcmp(end, seal, SEAL_BYTES) != 0)
    return tl_fail(TL_PROGRAM, "damaged: its bytes have the checksum %.16s, and %.16s was written",
                   seal + 10, end + 10);
  return TL_OK;
}

static tl_status read_plan(const char *text, size_t bytes, json_t *all, tl_plan *out) {
  int version;
  if (json_unpack(all, "{s i}", "tidelock_program", &version) != 0)
    return tl_fail(TL_PROGRAM, "this is no program");
  if (version != VERSION)
    return tl_fail(TL_PROGRAM, "a program of version %d; this build reads %d", version, VERSION);
  TL_TRY(check_seal(text, bytes));
  TL_TRY(read_program(all, &out->program));
  return read_about(json_object_get(all, "about"), out);
}

tl_status tl_plan_load(const char *path, tl_plan *out) {
  json_error_t error;
  char text[TL_ERROR_BYTES], *file = NULL;
  size_t bytes = 0;
  *out = (tl_plan){0};
  TL_TRY(read_file(path, &file, &bytes));
  json_t *all = json_loadb(file, bytes, JSON_REJECT_DUPLICATES, &error);
  tl_status status = all != NULL ? read_plan(file, bytes, all, out)
                                 : tl_fail(TL_IO, "line %d: %s", error.line, error.text);
  json_decref(all);
  free(file);
  if (status == TL_OK) {
    static const int32_t alone[] = {0};
    out->rank.program = out->program;
    for (int32_t g = 0; g < out->program->group_count; g++)
      out->rank.groups[g] = (tl_rank_group){.ranks = alone, .size = 1, .position = 0};
    return TL_OK;
  }
  snprintf(text, sizeof text, "%s", tl_last_error());
  tl_plan_unload(out);
  return tl_fail(status, "%s: %s", path, text);
}

void tl_plan_unload(tl_plan *plan) {
  tl_program_close(plan->program);
  free(plan->scalars);
  *plan = (tl_plan){0};
}
