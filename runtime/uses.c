/* uses.c - compares the bytes of operands inside a section. */
#include "uses.h"

static int places_meet(const tl_program *p, int32_t a, int32_t b) {
  if (a < 0 || b < 0) return 0;
  const tl_place *x = &p->places[a], *y = &p->places[b];
  return x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

/* Whether `other` is a cache_write of the rows and places that attention_cached `own` has. */
static int writes_same_rows(const tl_program *p, const tl_instruction *own,
                            const tl_instruction *other) {
  if (own->op != TL_OP_attention_cached || other->op != TL_OP_cache_write) return 0;
  for (int32_t i = 0; i < 3; i++) /* request, position, table */
    if (p->operands[own->in.first + 3 + i] != p->operands[other->in.first + 2 + i]) return 0;
  return 1;
}

uint64_t tl_uses_ahead(const tl_program *p, int32_t index) {
  const tl_instruction *own = &p->instructions[index];
  const int32_t inputs = own->in.count < 64 ? own->in.count : 64;
  uint64_t ahead = inputs == 64 ? UINT64_MAX : (UINT64_C(1) << inputs) - 1;
  int32_t first = -1;
  if (own->op != TL_OP_linear && own->op != TL_OP_attention_cached &&
      own->op != TL_OP_cache_write && own->op != TL_OP_rms_norm && own->op != TL_OP_rope_rows)
    return 0;
  for (int s = TL_SECTION_SERVE_0; s < TL_SECTIONS; s++)
    if (index >= p->sections[s].first && index < p->sections[s].first + p->sections[s].count)
      first = p->sections[s].first;
  if (first < 0) return 0;
  for (int32_t i = first; i < index; i++) {
    const tl_instruction *other = &p->instructions[i];
    if (writes_same_rows(p, own, other)) continue;
    for (int32_t k = 0; k < inputs; k++)
      for (int32_t j = 0; j < other->out.count; j++)
        if (places_meet(p, p->operands[own->in.first + k], p->operands[other->out.first + j]))
          ahead &= ~(UINT64_C(1) << k);
  }
  return ahead;
}

/* Whether `whole` covers `part`. */
static int place_covers(const tl_program *p, int32_t whole, int32_t part) {
  if (whole < 0) return 0;
  const tl_place *x = &p->places[whole], *y = &p->places[part];
  return x->offset <= y->offset && x->offset + x->bytes >= y->offset + y->bytes;
}

/* Whether an instruction between `index` and `end` writes all of a place. */
static int is_rewritten(const tl_program *p, int32_t index, int32_t end, int32_t place) {
  for (int32_t i = index + 1; i < end; i++)
    for (int32_t k = 0; k < p->instructions[i].out.count; k++)
      if (place_covers(p, p->operands[p->instructions[i].out.first + k], place)) return 1;
  return 0;
}

/* Whether an instruction from `from` up to `end` reads output `output` of `index`. A place that is
** written whole may be read again, be it this one or one that has some of its bytes. */
static int is_read(const tl_program *p, int32_t index, int32_t output, int32_t from, int32_t end) {
  const int32_t made = p->operands[p->instructions[index].out.first + output];
  for (int32_t i = from; i < end && made >= 0; i++) {
    const tl_instruction *other = &p->instructions[i];
    for (int32_t k = 0; k < other->in.count; k++)
      if (places_meet(p, made, p->operands[other->in.first + k]) &&
          !is_rewritten(p, index, i, p->operands[other->in.first + k]))
        return 1;
    for (int32_t k = 0; k < other->out.count; k++)
      if (place_covers(p, p->operands[other->out.first + k], made)) return 0;
  }
  return 0;
}

/* How many instructions behind `index` may read its outputs where they become one kernel; 0: it is
** none of those. */
static int32_t readers_of(const tl_program *p, int32_t index, int32_t end) {
  const tl_op op = p->instructions[index].op;
  const tl_op next = index + 1 < end ? p->instructions[index + 1].op : TL_OP_COUNT;
  if (op == TL_OP_linear)
    return next == TL_OP_rope_rows ? 3 : next == TL_OP_swiglu || next == TL_OP_binary;
  if (op == TL_OP_row_max) return 2;
  return op == TL_OP_rope_rows || op == TL_OP_swiglu || op == TL_OP_row_sum_exp;
}

void tl_uses_note(const tl_program *p, int32_t index, int32_t end, tl_fused_call *out) {
  const int32_t readers = readers_of(p, index, end);
  if (readers > 0) {
    out->only_next_reads = 1;
    for (int32_t i = 0; i < p->instructions[index].out.count; i++)
      if (is_read(p, index, i, index + 1 + readers, end)) out->only_next_reads = 0;
  }
  if (out->op == TL_OP_rms_norm) out->rstd_is_unread = !is_read(p, index, 1, index + 1, end);
}
