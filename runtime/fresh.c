/* fresh.c - finds what a section touches of each part of the scratch, allocates it, frees it. */
#include "fresh.h"

#include <stdlib.h>

#include "execute_cuda.h"
#include "memory.h"

static tl_status new_block(const tl_executor *e, int64_t bytes, void **out) {
  if (e->gpu == NULL) return tl_memory_alloc(TL_MEMORY_ARENA, bytes, out);
  TL_TRY(tl_cuda_enter(tl_gpu_cuda(e->gpu)));
  return tl_cuda_alloc(tl_gpu_cuda(e->gpu), bytes, out);
}

static void free_block(const tl_executor *e, void *block) {
  if (e->gpu == NULL)
    tl_memory_free(block);
  else
    tl_cuda_free(tl_gpu_cuda(e->gpu), block);
}

/* The part of the scratch that a tensor lies in; -1: none. */
static int32_t part_of(const tl_program *p, int32_t tensor) {
  if (tensor == TL_NO_TENSOR) return -1;
  const int64_t offset = p->places[tensor].offset;
  for (int32_t i = 0; i < p->scratch_count; i++)
    if (offset >= p->scratch[i].offset && offset < p->scratch[i].offset + p->scratch[i].bytes)
      return i;
  return -1;
}

typedef struct extent {
  int64_t first, end;
} extent;

static void widen(const tl_program *p, tl_range operands, extent *extents) {
  for (int32_t i = operands.first; i < operands.first + operands.count; i++) {
    const int32_t tensor = p->operands[i], part = part_of(p, tensor);
    if (part < 0) continue;
    const int64_t offset = p->places[tensor].offset;
    const int64_t end = offset + tl_view_bytes(&p->places[tensor].view);
    extent *x = &extents[part];
    if (x->end == 0 || offset < x->first) x->first = offset;
    if (end > x->end) x->end = end;
  }
}

static tl_status allocate(const tl_executor *e, tl_range section, extent *extents, tl_fresh *f) {
  const tl_program *p = e->program;
  for (int32_t i = section.first; i < section.first + section.count; i++) {
    widen(p, p->instructions[i].in, extents);
    widen(p, p->instructions[i].out, extents);
  }
  for (int32_t i = 0; i < p->scratch_count; i++) {
    f->first[i] = extents[i].first, f->end[i] = extents[i].end;
    if (extents[i].end > 0) TL_TRY(new_block(e, extents[i].end - extents[i].first, &f->blocks[i]));
  }
  return TL_OK;
}

static void release(const tl_executor *e, tl_fresh *f) {
  for (int32_t i = 0; f->blocks != NULL && i < e->program->scratch_count; i++)
    if (f->blocks[i] != NULL) free_block(e, f->blocks[i]);
  free(f->blocks);
  free(f->first);
  free(f->end);
  *f = (tl_fresh){0};
}

tl_status tl_fresh_begin(tl_executor *e, tl_section section, tl_fresh *out) {
  const tl_program *p = e->program;
  const size_t parts = (size_t)p->scratch_count + 1;
  extent *extents = calloc(parts, sizeof *extents);
  *out = (tl_fresh){.blocks = calloc(parts, sizeof *out->blocks),
                    .first = calloc(parts, sizeof *out->first),
                    .end = calloc(parts, sizeof *out->end)};
  tl_status status = TL_OK;
  if (extents == NULL || out->blocks == NULL || out->first == NULL || out->end == NULL)
    status = tl_fail(TL_MEMORY, "no room for the memory of a run");
  if (status == TL_OK) status = allocate(e, p->sections[section], extents, out);
  free(extents);
  if (status != TL_OK) {
    release(e, out);
    return status;
  }
  for (int32_t i = 0; i < p->operand_count; i++)
    if (p->operands[i] != TL_NO_TENSOR) e->views[i].data = tl_fresh_place(e, out, p->operands[i]);
  return TL_OK;
}

char *tl_fresh_place(const tl_executor *e, const tl_fresh *fresh, int32_t tensor) {
  const int64_t offset = e->program->places[tensor].offset;
  const int32_t part = fresh->blocks == NULL ? -1 : part_of(e->program, tensor);
  if (part < 0 || fresh->blocks[part] == NULL) return e->arena + offset;
  const int64_t end = offset + tl_view_bytes(&e->program->places[tensor].view);
  if (offset < fresh->first[part] || end > fresh->end[part]) return e->arena + offset;
  return (char *)fresh->blocks[part] + (offset - fresh->first[part]);
}

void tl_fresh_end(tl_executor *e, tl_fresh *fresh) {
  if (fresh->blocks == NULL) return;
  tl_executor_resolve(e);
  release(e, fresh);
}
