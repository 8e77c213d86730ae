/* uses.c - compares the bytes of operands inside a section. */
#include "uses.h"

static int places_meet(const tl_program *p, int32_t a, int32_t b) {
  if (a < 0 || b < 0) return 0;
  const tl_place *x = &p->places[a], *y = &p->places[b];
  return x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes;
}

uint64_t tl_uses_ahead(const tl_program *p, int32_t index) {
  const tl_instruction *own = &p->instructions[index];
  const int32_t inputs = own->in.count < 64 ? own->in.count : 64;
  uint64_t ahead = inputs == 64 ? UINT64_MAX : (UINT64_C(1) << inputs) - 1;
  int32_t first = index;
  if (own->op != TL_OP_linear && own->op != TL_OP_attention_cached) return 0;
  for (int s = 0; s < TL_SECTIONS; s++)
    if (index >= p->sections[s].first && index < p->sections[s].first + p->sections[s].count)
      first = p->sections[s].first;
  for (int32_t i = first; i < index; i++) {
    const tl_instruction *other = &p->instructions[i];
    for (int32_t k = 0; k < inputs; k++)
      for (int32_t j = 0; j < other->out.count; j++)
        if (places_meet(p, p->operands[own->in.first + k], p->operands[other->out.first + j]))
          ahead &= ~(UINT64_C(1) << k);
  }
  return ahead;
}

int32_t tl_uses_last(const tl_program *p, int32_t index, int32_t end) {
  const int32_t made = p->operands[p->instructions[index].out.first];
  for (int32_t i = index + 2; i < end; i++) {
    const tl_instruction *other = &p->instructions[i];
    for (int32_t k = 0; k < other->in.count; k++)
      if (places_meet(p, made, p->operands[other->in.first + k])) return 0;
    for (int32_t k = 0; k < other->out.count; k++) {
      const int32_t out = p->operands[other->out.first + k];
      if (out >= 0 && p->places[out].offset <= p->places[made].offset &&
          p->places[out].offset + p->places[out].bytes >=
              p->places[made].offset + p->places[made].bytes)
        return 1;
    }
  }
  return 1;
}
