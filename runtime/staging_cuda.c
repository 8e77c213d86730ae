/* staging_cuda.c - outputs of data instructions, side by side in pinned memory. */
#include "staging_cuda.h"

#include <stdlib.h>

#include "execute_inner.h"

struct tl_staging {
  tl_cuda *cuda;
  const tl_program *program;
  char *room;  /* pinned */
  int64_t *at; /* by instruction; -1: none */
  int64_t bytes;
};

enum { OUTPUTS_MAX = 3 };

#define TRY_CUDA(s, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((s)->cuda), tl_cuda_calls((s)->cuda)->call, what))

static int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

static int64_t outputs_bytes(const tl_program *p, const tl_instruction *i) {
  int64_t bytes = 0;
  for (int32_t k = 0; k < i->out.count; k++)
    bytes += padded(p->places[p->operands[i->out.first + k]].bytes);
  return bytes;
}

static tl_status open_staging(tl_staging *s) {
  const tl_program *p = s->program;
  void *pinned;
  s->at = malloc(((size_t)p->instruction_count + 1) * sizeof *s->at);
  if (s->at == NULL) return tl_fail(TL_MEMORY, "no room for a rank");
  for (int32_t i = 0; i < p->instruction_count; i++) {
    s->at[i] = -1;
    if (!(tl_ops[p->instructions[i].op].traits & TL_TRAIT_DATA)) continue;
    s->at[i] = s->bytes;
    s->bytes += outputs_bytes(p, &p->instructions[i]);
  }
  TRY_CUDA(s, "pinned memory", host_alloc(&pinned, (size_t)s->bytes + 64, TL_CUDA_HOST_PORTABLE));
  s->room = pinned;
  return TL_OK;
}

tl_status tl_staging_open(tl_cuda *cuda, const tl_program *program, tl_staging **out) {
  tl_staging *s = calloc(1, sizeof *s);
  if (s == NULL) return tl_fail(TL_MEMORY, "no room for a rank");
  s->cuda = cuda, s->program = program;
  const tl_status status = open_staging(s);
  if (status == TL_OK) {
    *out = s;
    return TL_OK;
  }
  tl_staging_close(s);
  return status;
}

void tl_staging_close(tl_staging *s) {
  if (s == NULL) return;
  if (s->room != NULL) tl_cuda_calls(s->cuda)->host_free(s->room);
  free(s->at);
  free(s);
}

int32_t tl_staging_needed(const tl_staging *s) { return s->bytes > 0; }

tl_status tl_staging_make(tl_staging *s, tl_executor *e, tl_range section, const tl_step *step) {
  for (int32_t index = section.first; index < section.first + section.count; index++) {
    const tl_instruction *i = &s->program->instructions[index];
    tl_view out[OUTPUTS_MAX];
    if (s->at[index] < 0) continue;
    char *at = s->room + s->at[index];
    for (int32_t k = 0; k < i->out.count; k++) {
      out[k] = e->views[i->out.first + k];
      out[k].data = at;
      at += padded(tl_view_bytes(&out[k]));
    }
    const tl_status status = tl_execute_data(e, i, step->step, out);
    if (status != TL_OK) return tl_execute_locate(e, index, step, status);
  }
  return TL_OK;
}

tl_status tl_staging_queue(tl_staging *s, const tl_executor *e, int32_t index) {
  const tl_instruction *i = &s->program->instructions[index];
  const char *at = s->room + s->at[index];
  for (int32_t k = 0; k < i->out.count; k++) {
    const tl_view *y = &e->views[i->out.first + k];
    TRY_CUDA(s, "copy of samples",
             copy_in((uint64_t)(uintptr_t)y->data, at, (size_t)tl_view_bytes(y),
                     tl_cuda_stream(s->cuda)));
    at += padded(tl_view_bytes(y));
  }
  return TL_OK;
}
