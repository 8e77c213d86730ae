/* verify_memory.c - who wrote each byte, and whether others waited for it.
**
**   tensors    [---- a ----]      [------- b -------]
**                    [------ c ------]
**   pieces     |  0  | 1  |   2   | 3 |     4       |      no tensor's border lies inside a piece
**
** For each piece: the instruction that wrote it last, the dtype it was written as, and per lane the
** last instruction that read it since. For each instruction a vector clock: per lane, the last
** instruction that has certainly ended before it starts.
**
** Sections are walked in orders that can really happen: after init, step or eval first, then again;
** each section of a serving program stands alone after init, and repeats.
*/
#include <stdlib.h>
#include <string.h>

#include "../kernels/signature.h"
#include "verify.h"

enum { UNWRITTEN = -1, EARLIER = -2 }; /* not at all; by an earlier section or from outside */

typedef struct piece {
  int32_t writer; /* an instruction, UNWRITTEN or EARLIER */
  tl_dtype dtype;
} piece;

typedef struct walk {
  tl_program *program;
  int64_t *borders; /* (piece_count + 1) bytes, ascending */
  tl_range *spans;  /* of pieces, by place */
  piece *pieces;
  piece *kept;      /* as they are after init */
  int32_t *readers; /* (piece_count, lanes): an instruction or -1 */
  int32_t *clocks;  /* (instructions, lanes): an instruction or -1 */
  int32_t *last;    /* (lanes): the lane's latest instruction or -1 */
  int32_t piece_count, lanes;
} walk;

static int compare_bytes(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

static int32_t find_border(const walk *w, int64_t byte) {
  const int64_t *found =
      bsearch(&byte, w->borders, (size_t)w->piece_count + 1, sizeof byte, compare_bytes);
  return (int32_t)(found - w->borders);
}

static void cut_pieces(walk *w) {
  const tl_program *p = w->program;
  int32_t count = 0;
  for (int32_t i = 0; i < p->place_count; i++) {
    w->borders[2 * i] = p->places[i].offset;
    w->borders[2 * i + 1] = p->places[i].offset + p->places[i].bytes;
  }
  qsort(w->borders, 2 * (size_t)p->place_count, sizeof *w->borders, compare_bytes);
  for (int32_t i = 0; i < 2 * p->place_count; i++)
    if (count == 0 || w->borders[i] != w->borders[count - 1]) w->borders[count++] = w->borders[i];
  w->piece_count = count - 1;
  for (int32_t i = 0; i < p->place_count; i++) {
    const int32_t first = find_border(w, p->places[i].offset);
    w->spans[i] =
        (tl_range){first, find_border(w, p->places[i].offset + p->places[i].bytes) - first};
  }
}

static int ended_before(const walk *w, int32_t earlier, int32_t index) {
  const int32_t lane = w->program->instructions[earlier].lane;
  return lane == w->program->instructions[index].lane ||
         w->clocks[(int64_t)index * w->lanes + lane] >= earlier;
}

/* The operand as text, for messages. */
typedef struct use {
  int32_t index, output, position;
} use;

static tl_status no_wait(const walk *w, use u, const char *does, int32_t other, const char *did) {
  char name[160], there[224];
  tl_program_describe_operand(w->program, u.index, u.output, u.position, name, sizeof name);
  tl_program_describe(w->program, other, there, sizeof there);
  return tl_program_fail(w->program, u.index,
                         "%s %s in lane %d without waiting for %s, which %s it in lane %d", does,
                         name, w->program->instructions[u.index].lane, there, did,
                         w->program->instructions[other].lane);
}

static int32_t tensor_of(const walk *w, use u) {
  const tl_instruction *i = &w->program->instructions[u.index];
  return w->program->operands[(u.output ? i->out.first : i->in.first) + u.position];
}

static tl_status read_piece(walk *w, use u, int32_t index, tl_dtype dtype) {
  const piece *p = &w->pieces[index];
  char name[160];
  const long long byte = w->borders[index];
  if (p->writer == UNWRITTEN || p->dtype != dtype)
    tl_program_describe_operand(w->program, u.index, u.output, u.position, name, sizeof name);
  if (p->writer == UNWRITTEN)
    return tl_program_fail(w->program, u.index, "reads %s before byte %lld of the arena is written",
                           name, byte);
  if (p->dtype != dtype)
    return tl_program_fail(w->program, u.index,
                           "reads %s as %s; byte %lld of the arena was written as %s", name,
                           tl_dtype_name(dtype), byte, tl_dtype_name(p->dtype));
  if (p->writer >= 0 && !ended_before(w, p->writer, u.index))
    return no_wait(w, u, "reads", p->writer, "writes");
  w->readers[(int64_t)index * w->lanes + w->program->instructions[u.index].lane] = u.index;
  return TL_OK;
}

static tl_status write_piece(walk *w, use u, int32_t index, tl_dtype dtype) {
  piece *p = &w->pieces[index];
  int32_t *readers = w->readers + (int64_t)index * w->lanes;
  if (p->writer >= 0 && !ended_before(w, p->writer, u.index))
    return no_wait(w, u, "writes", p->writer, "writes");
  for (int32_t lane = 0; lane < w->lanes; lane++) {
    if (readers[lane] >= 0 && !ended_before(w, readers[lane], u.index))
      return no_wait(w, u, "overwrites", readers[lane], "reads");
    readers[lane] = -1;
  }
  *p = (piece){u.index, dtype};
  return TL_OK;
}

static tl_status each_piece(walk *w, use u,
                            tl_status (*visit)(walk *w, use u, int32_t index, tl_dtype dtype)) {
  const int32_t tensor = tensor_of(w, u);
  if (tensor == TL_NO_TENSOR) return TL_OK;
  const tl_dtype dtype = w->program->places[tensor].view.dtype;
  for (int32_t k = 0; k < w->spans[tensor].count; k++)
    TL_TRY(visit(w, u, w->spans[tensor].first + k, dtype));
  return TL_OK;
}

/* Output `position` is read too: marked "!", unless the operator moves bytes or starts afresh. */
static int reads_output(const tl_program *p, int32_t index, int32_t position) {
  const tl_instruction *i = &p->instructions[index];
  if (tl_ops[i->op].traits & TL_TRAIT_COMM) return 0;
  return tl_op_operand(i->op, 1, p->ints + i->ints.first, position)->in_place &&
         tl_program_int(p, index, "mode", 1) != 0;
}

/* What has ended before `index`: its lane's previous instruction, those it waits for, and all that
** had ended before them. */
static void set_clock(walk *w, int32_t index) {
  const tl_instruction *i = &w->program->instructions[index];
  int32_t *clock = w->clocks + (int64_t)index * w->lanes;
  for (int32_t lane = 0; lane < w->lanes; lane++) clock[lane] = -1;
  for (int32_t k = -1; k < i->waits.count; k++) {
    const int32_t other = k < 0 ? w->last[i->lane] : w->program->waits[i->waits.first + k];
    if (other < 0) continue;
    const int32_t *from = w->clocks + (int64_t)other * w->lanes;
    for (int32_t lane = 0; lane < w->lanes; lane++)
      if (from[lane] > clock[lane]) clock[lane] = from[lane];
    const int32_t lane = w->program->instructions[other].lane;
    if (other > clock[lane]) clock[lane] = other;
  }
  w->last[i->lane] = index;
}

static tl_status walk_section(walk *w, tl_section section) {
  const tl_program *p = w->program;
  const tl_range range = p->sections[section];
  for (int32_t i = 0; i < w->piece_count; i++)
    if (w->pieces[i].writer >= 0) w->pieces[i].writer = EARLIER;
  memset(w->readers, 0xff, (size_t)w->piece_count * (size_t)w->lanes * sizeof *w->readers);
  memset(w->last, 0xff, (size_t)w->lanes * sizeof *w->last);
  for (int32_t index = range.first; index < range.first + range.count; index++) {
    const tl_instruction *i = &p->instructions[index];
    set_clock(w, index);
    for (int32_t k = 0; k < i->in.count; k++) TL_TRY(each_piece(w, (use){index, 0, k}, read_piece));
    for (int32_t k = 0; k < i->out.count; k++)
      if (reads_output(p, index, k)) TL_TRY(each_piece(w, (use){index, 1, k}, read_piece));
    for (int32_t k = 0; k < i->out.count; k++)
      TL_TRY(each_piece(w, (use){index, 1, k}, write_piece));
  }
  return TL_OK;
}

static void note_results(walk *w, tl_section section) {
  tl_program *p = w->program;
  for (int32_t r = 0; r < TL_RESULTS; r++) {
    const int32_t tensor = p->results[r];
    p->result_written[section][r] =
        tensor != TL_NO_TENSOR && w->pieces[w->spans[tensor].first].writer >= 0;
  }
}

static void start_pieces(walk *w) {
  const tl_program *p = w->program;
  for (int32_t i = 0; i < w->piece_count; i++) w->pieces[i] = (piece){UNWRITTEN, TL_U8};
  for (int32_t t = 0; t < p->place_count; t++)
    for (int32_t k = 0; p->places[t].persistent && k < w->spans[t].count; k++)
      w->pieces[w->spans[t].first + k] = (piece){EARLIER, p->places[t].view.dtype};
}

/* Bytes that init does not write and nobody fills from outside, with the gaps between tensors. */
static tl_status note_scratch(walk *w) {
  tl_program *p = w->program;
  tl_bytes *list = malloc(((size_t)w->piece_count + 2) * sizeof *list);
  if (list == NULL) return tl_fail(TL_MEMORY, "no room to verify a program");
  int32_t count = 0;
  int64_t kept_end = 0;
  for (int32_t i = 0; i <= w->piece_count; i++) {
    if (i < w->piece_count && w->kept[i].writer == UNWRITTEN) continue;
    const int64_t next = i < w->piece_count ? w->borders[i] : p->arena_bytes;
    if (next > kept_end) list[count++] = (tl_bytes){kept_end, next - kept_end};
    if (i < w->piece_count) kept_end = w->borders[i + 1];
  }
  free(p->scratch);
  p->scratch = list;
  p->scratch_count = count;
  return TL_OK;
}

/* Each of two sections first after init, again, and after the other. */
static tl_status walk_pair(walk *w, tl_section a, tl_section b) {
  const tl_section orders[2][4] = {
      {a, a, b, b},
      {b, a, b, a}
  };
  for (int32_t order = 0; order < 2; order++) {
    memcpy(w->pieces, w->kept, (size_t)w->piece_count * sizeof *w->pieces);
    for (int32_t k = 0; k < 4; k++) {
      TL_TRY(walk_section(w, orders[order][k]));
      note_results(w, orders[order][k]);
    }
  }
  return TL_OK;
}

static tl_status walk_all(walk *w) {
  start_pieces(w);
  TL_TRY(walk_section(w, TL_SECTION_INIT));
  note_results(w, TL_SECTION_INIT);
  memcpy(w->kept, w->pieces, (size_t)w->piece_count * sizeof *w->pieces);
  TL_TRY(note_scratch(w));
  TL_TRY(walk_pair(w, TL_SECTION_STEP, TL_SECTION_EVAL));
  for (int32_t s = TL_SECTION_SERVE_0; s + 1 < TL_SECTIONS; s += 2)
    TL_TRY(walk_pair(w, (tl_section)s, (tl_section)(s + 1)));
  return TL_OK;
}

tl_status tl_verify_memory(tl_program *program) {
  const size_t places = (size_t)program->place_count, pieces = 2 * places + 1;
  const size_t lanes = program->lane_count > 0 ? (size_t)program->lane_count : 1;
  walk w = {.program = program, .lanes = (int32_t)lanes};
  tl_status status = TL_OK;
  if (places == 0) return TL_OK;
  w.borders = malloc(pieces * sizeof *w.borders);
  w.spans = malloc(places * sizeof *w.spans);
  w.pieces = malloc(pieces * sizeof *w.pieces);
  w.kept = malloc(pieces * sizeof *w.kept);
  w.readers = malloc(pieces * lanes * sizeof *w.readers);
  w.clocks = malloc(((size_t)program->instruction_count * lanes + 1) * sizeof *w.clocks);
  w.last = malloc(lanes * sizeof *w.last);
  if (!w.borders || !w.spans || !w.pieces || !w.kept || !w.readers || !w.clocks || !w.last)
    TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room to verify a program"), done);
  cut_pieces(&w);
  status = walk_all(&w);
done:
  free(w.borders);
  free(w.spans);
  free(w.pieces);
  free(w.kept);
  free(w.readers);
  free(w.clocks);
  free(w.last);
  return status;
}
