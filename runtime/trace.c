/* trace.c - arrays made once; hashing and copying around each instruction. */
#include "trace.h"

#include <stdlib.h>
#include <string.h>

#include "hash_team.h"
#include "memory.h"

typedef struct span {
  int32_t first, count;
} span;

struct tl_trace {
  const tl_program *program;
  tl_trace_record *records; /* by instruction */
  span *outputs_of;         /* by instruction, in `outputs` */
  span *before, *after;     /* by instruction, in `captures` */
  tl_trace_output *outputs;
  uint64_t *hashes; /* by output */
  tl_trace_capture *captures;
  char *block, *room;
  int32_t output_count;
  int64_t block_bytes;
};

/* A part lies in its output, in whole pieces or one. */
static tl_status check_output(const tl_program *p, const tl_trace_output *o) {
  const tl_hash_part *part = &o->part;
  const int good = o->instruction >= 0 && o->instruction < p->instruction_count &&
                   o->position >= 0 && o->position < p->instructions[o->instruction].out.count;
  if (!good)
    return tl_fail(TL_ARGUMENT, "trace: instruction %d has no output %d", o->instruction,
                   o->position);
  const int32_t tensor = p->operands[p->instructions[o->instruction].out.first + o->position];
  const int64_t count = tensor == TL_NO_TENSOR ? 0 : tl_view_count(&p->places[tensor].view);
  if (part->rows < 0 || part->cols < 1 || part->pitch < part->cols || part->piece_rows < 1 ||
      part->rows * part->pitch > count)
    return tl_fail(TL_ARGUMENT, "trace: instruction %d: %lld rows of %lld in an output of %lld",
                   o->instruction, (long long)part->rows, (long long)part->pitch, (long long)count);
  return TL_OK;
}

/* Finds the capture's operand in the program: TL_NO_TENSOR where there is none. */
static int32_t operand_of(const tl_program *p, const tl_trace_capture *c) {
  if (c->instruction < 0 || c->instruction >= p->instruction_count) return TL_NO_TENSOR;
  const tl_instruction *i = &p->instructions[c->instruction];
  const tl_range list = c->output ? i->out : i->in;
  if (c->operand < 0 || c->operand >= list.count) return TL_NO_TENSOR;
  const int32_t at = list.first + c->operand;
  return p->operands[at] == TL_NO_TENSOR ? TL_NO_TENSOR : at;
}

static tl_status check_capture(const tl_program *p, const tl_trace_options *o,
                               const tl_trace_capture *c) {
  const int32_t at = operand_of(p, c);
  const int64_t bytes = at == TL_NO_TENSOR ? 0 : tl_view_bytes(&p->places[p->operands[at]].view);
  if (at != TL_NO_TENSOR && c->offset >= 0 && c->offset <= o->capture_bytes - bytes) return TL_OK;
  return tl_fail(TL_ARGUMENT, "trace: a capture of %s %d of instruction %d at %lld of %lld",
                 c->output ? "output" : "input", c->operand, c->instruction, (long long)c->offset,
                 (long long)o->capture_bytes);
}

static int64_t largest_operand(const tl_program *p) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < p->place_count; i++)
    if (p->places[i].bytes > bytes) bytes = p->places[i].bytes;
  return bytes;
}

static tl_status allocate(tl_trace *t, const tl_trace_options *o) {
  const size_t count = (size_t)t->program->instruction_count + 1;
  void *block = NULL, *room = NULL;
  t->records = calloc(count, sizeof *t->records);
  t->outputs_of = calloc(count, sizeof(span));
  t->before = calloc(count, sizeof(span));
  t->after = calloc(count, sizeof(span));
  t->outputs = calloc((size_t)o->output_count + 1, sizeof *t->outputs);
  t->hashes = calloc((size_t)o->output_count + 1, sizeof *t->hashes);
  t->captures = calloc((size_t)o->capture_count + 1, sizeof *t->captures);
  if (t->records == NULL || t->outputs_of == NULL || t->before == NULL || t->after == NULL ||
      t->outputs == NULL || t->hashes == NULL || t->captures == NULL)
    return tl_fail(TL_MEMORY, "no room to trace %d instructions", t->program->instruction_count);
  TL_TRY(tl_memory_alloc(TL_MEMORY_TRACE, o->capture_bytes + 64, &block));
  t->block = block;
  if (o->elsewhere) return TL_OK; /* nothing is hashed or copied here */
  TL_TRY(tl_memory_alloc(TL_MEMORY_TRACE, largest_operand(t->program) + 64, &room));
  t->room = room;
  return TL_OK;
}

static void add_to(span *s, int32_t index) {
  if (s->count == 0) s->first = index;
  s->count++;
}

static tl_status fill_in(tl_trace *t, const tl_trace_options *o) {
  for (int32_t i = 0; i < o->output_count; i++) {
    TL_TRY(check_output(t->program, &o->outputs[i]));
    t->outputs[i] = o->outputs[i];
    t->outputs[i].part.row_first += o->outputs[i].rows_per_sample * o->sample_base;
    add_to(&t->outputs_of[o->outputs[i].instruction], i);
  }
  for (int32_t i = 0; i < o->capture_count; i++) {
    const tl_trace_capture *c = &o->captures[i];
    TL_TRY(check_capture(t->program, o, c));
    t->captures[i] = *c;
    t->captures[i].operand = operand_of(t->program, c);
    add_to(c->after ? &t->after[c->instruction] : &t->before[c->instruction], i);
  }
  t->output_count = o->output_count, t->block_bytes = o->capture_bytes;
  return TL_OK;
}

tl_status tl_trace_open(const tl_program *program, const tl_trace_options *o, tl_trace **out) {
  tl_status status = TL_OK;
  tl_trace *t = calloc(1, sizeof *t);
  if (t == NULL) return tl_fail(TL_MEMORY, "no room for a trace");
  t->program = program;
  TL_TRY_GOTO(status, allocate(t, o), done);
  TL_TRY_GOTO(status, fill_in(t, o), done);
  *out = t, t = NULL;
done:
  tl_trace_close(t);
  return status;
}

void tl_trace_close(tl_trace *t) {
  if (t == NULL) return;
  tl_memory_free(t->block);
  tl_memory_free(t->room);
  free(t->records);
  free(t->outputs_of);
  free(t->before);
  free(t->after);
  free(t->outputs);
  free(t->hashes);
  free(t->captures);
  free(t);
}

static tl_status data_of(tl_trace *t, const tl_trace_source *s, const tl_view *view,
                         const void **out) {
  *out = view->data;
  return s->read == NULL ? TL_OK : s->read(s->context, view, t->room, out);
}

static tl_status capture(tl_trace *t, const tl_trace_source *s, span list) {
  for (int32_t i = list.first; i < list.first + list.count; i++) {
    const tl_trace_capture *c = &t->captures[i];
    const tl_view *view = &s->views[c->operand];
    const void *data;
    TL_TRY(data_of(t, s, view, &data));
    memcpy(t->block + c->offset, data, (size_t)tl_view_bytes(view));
  }
  return TL_OK;
}

tl_status tl_trace_before(tl_trace *t, const tl_trace_source *s, int32_t instruction) {
  return capture(t, s, t->before[instruction]);
}

tl_status tl_trace_after(tl_trace *t, const tl_trace_source *s, int32_t instruction) {
  const span list = t->outputs_of[instruction];
  for (int32_t i = list.first; i < list.first + list.count; i++) {
    const tl_trace_output *o = &t->outputs[i];
    const tl_view *view = &s->views[t->program->instructions[instruction].out.first + o->position];
    const void *data;
    TL_TRY(data_of(t, s, view, &data));
    t->hashes[i] = tl_hash_by_team(s->team, &o->part, data, view->dtype);
  }
  return capture(t, s, t->after[instruction]);
}

void tl_trace_note(tl_trace *t, int32_t instruction, const tl_trace_record *call) {
  tl_trace_record *r = &t->records[instruction];
  const int64_t calls = r->calls + 1, total_ns = r->total_ns + call->end_ns - call->start_ns;
  *r = *call;
  r->calls = calls, r->total_ns = total_ns;
}

const tl_trace_output *tl_trace_outputs_of(const tl_trace *t, int32_t instruction, int32_t *first,
                                           int32_t *count) {
  *first = t->outputs_of[instruction].first, *count = t->outputs_of[instruction].count;
  return t->outputs + *first;
}

void tl_trace_set_hash(tl_trace *t, int32_t output, uint64_t hash) { t->hashes[output] = hash; }

void tl_trace_load(tl_trace *t, const tl_trace_record *records, const uint64_t *hashes,
                   const void *captured, int64_t later_ns) {
  const int32_t count = t->program->instruction_count;
  memcpy(t->records, records, (size_t)count * sizeof *records);
  for (int32_t i = 0; i < count; i++) {
    if (records[i].calls == 0) continue;
    t->records[i].start_ns += later_ns;
    t->records[i].end_ns += later_ns;
  }
  memcpy(t->hashes, hashes, (size_t)t->output_count * sizeof *hashes);
  memcpy(t->block, captured, (size_t)t->block_bytes);
}

const tl_trace_record *tl_trace_records(const tl_trace *t) { return t->records; }

const uint64_t *tl_trace_hashes(const tl_trace *t, int32_t *count) {
  *count = t->output_count;
  return t->hashes;
}

const char *tl_trace_captured(const tl_trace *t, int64_t *bytes) {
  *bytes = t->block_bytes;
  return t->block;
}
