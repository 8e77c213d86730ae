/* passes_cuda.c - keeps the passes of sections: where they begin, and their phases. */
#include "passes_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "../kernels/fused/pass.h"
#include "memory.h"

typedef struct known {
  int32_t first; /* instruction */
  tl_pass pass;
} known;

struct tl_passes {
  tl_cuda *cuda;
  void *room;   /* device memory */
  int64_t mail; /* bytes of a half */
  tl_pass_phase *phases;
  tl_tensor_map *maps;
  tl_fused_call *calls;
  known *list;
  int32_t most, used, count; /* phases that there is room for, that are used; passes */
};

static int32_t instructions_of(const tl_program *p) {
  int32_t count = 0;
  for (int s = TL_SECTION_SERVE_0; s < TL_SECTIONS; s++) count += p->sections[s].count;
  return count;
}

/* The most that values of few rows of one section may take. */
static int64_t mail_of(const tl_program *p) {
  int64_t most = 0;
  for (int s = TL_SECTION_SERVE_0; s < TL_SECTIONS; s++) {
    int64_t all = 0;
    for (int32_t i = 0; i < p->sections[s].count; i++) {
      const tl_instruction *made = &p->instructions[p->sections[s].first + i];
      for (int32_t k = 0; k < made->out.count; k++) {
        const int32_t place = p->operands[made->out.first + k];
        if (place >= 0) all += tl_pass_mail(made->op, &p->places[place].view);
      }
    }
    most = all > most ? all : most;
  }
  return most;
}

static int64_t bytes_of(int32_t phases) {
  return (int64_t)sizeof(tl_pass_meeting) + (int64_t)phases * (int64_t)sizeof(tl_pass_phase);
}

static size_t map_bytes(int32_t phases) {
  return (size_t)phases * TL_GEMM_FEW_PARTS * sizeof(tl_tensor_map);
}

/* Where maps and the mail begin in the room. */
static int64_t maps_at(int32_t most) { return (bytes_of(most) + 127) / 128 * 128; }
static int64_t mail_at(int32_t most) { return maps_at(most) + (int64_t)map_bytes(most); }
static int64_t room_of(int32_t most, int64_t mail) { return mail_at(most) + 2 * mail; }

int64_t tl_passes_bytes(const tl_program *program) {
  const int32_t most = instructions_of(program);
  return most > 0 ? room_of(most, mail_of(program)) : 0;
}

static tl_status open_room(tl_passes *x) {
  const tl_cuda_api *api = tl_cuda_calls(x->cuda);
  const size_t count = (size_t)x->most;
  const int64_t begin = mail_at(x->most), bytes = room_of(x->most, x->mail);
  x->phases = malloc(count * sizeof *x->phases);
  x->maps = aligned_alloc(_Alignof(tl_tensor_map), map_bytes(x->most));
  x->calls = malloc(count * sizeof *x->calls);
  x->list = malloc(count * sizeof *x->list);
  if (x->phases == NULL || x->maps == NULL || x->calls == NULL || x->list == NULL)
    return tl_fail(TL_MEMORY, "no room for the passes of a program");
  memset(x->maps, 0, map_bytes(x->most));
  TL_TRY(tl_cuda_alloc(x->cuda, bytes, &x->room));
  tl_memory_note(TL_MEMORY_SCRATCH, bytes);
  TL_TRY(tl_cuda_check(
      api,
      api->fill((uint64_t)(uintptr_t)x->room, 0, sizeof(tl_pass_meeting), tl_cuda_stream(x->cuda)),
      "fill"));
  TL_TRY(tl_cuda_check(api,
                       api->fill((uint64_t)(uintptr_t)x->room + (uint64_t)begin, 0xff,
                                 2 * (size_t)x->mail, tl_cuda_stream(x->cuda)),
                       "fill"));
  return tl_cuda_check(api, api->stream_wait(tl_cuda_stream(x->cuda)), "fill");
}

tl_status tl_passes_open(tl_cuda *cuda, const tl_program *program, tl_passes **out) {
  const int32_t most = instructions_of(program);
  *out = NULL;
  if (most == 0) return TL_OK;
  tl_passes *x = calloc(1, sizeof *x);
  if (x == NULL) return tl_fail(TL_MEMORY, "no room for the passes of a program");
  x->cuda = cuda, x->most = most, x->mail = mail_of(program);
  const tl_status status = open_room(x);
  if (status == TL_OK) {
    *out = x;
    return TL_OK;
  }
  tl_passes_close(x);
  return status;
}

void tl_passes_close(tl_passes *x) {
  if (x == NULL) return;
  if (x->room != NULL) tl_memory_note(TL_MEMORY_SCRATCH, -room_of(x->most, x->mail));
  tl_cuda_free(x->cuda, x->room);
  free(x->phases);
  free(x->maps);
  free(x->calls);
  free(x->list);
  free(x);
}

static tl_status bring_phases(tl_passes *x, tl_pass *pass) {
  const tl_cuda_api *api = tl_cuda_calls(x->cuda);
  char *to = (char *)x->room + bytes_of(x->used);
  const size_t bytes = (size_t)pass->args.count * sizeof(tl_pass_phase);
  pass->args.meeting = x->room;
  pass->args.phases = (const tl_pass_phase *)to;
  char *maps = (char *)x->room + maps_at(x->most) + map_bytes(x->used);
  pass->args.maps = (const tl_tensor_map *)maps;
  for (int i = 0; i < 2; i++) pass->args.mail[i] = (char *)x->room + mail_at(x->most) + i * x->mail;
  x->used += pass->args.count;
  TL_TRY(tl_cuda_check(
      api, api->copy_in((uint64_t)(uintptr_t)to, x->phases, bytes, tl_cuda_stream(x->cuda)),
      "phases of a pass"));
  if (pass->args.boxed)
    TL_TRY(tl_cuda_check(api,
                         api->copy_in((uint64_t)(uintptr_t)maps, x->maps,
                                      map_bytes(pass->args.count), tl_cuda_stream(x->cuda)),
                         "maps of a pass"));
  return tl_cuda_check(api, api->stream_wait(tl_cuda_stream(x->cuda)), "phases of a pass");
}

static int32_t is_known(const tl_passes *x, tl_range section) {
  for (int32_t i = 0; i < x->count; i++)
    if (x->list[i].first >= section.first && x->list[i].first < section.first + section.count)
      return 1;
  return 0;
}

tl_status tl_passes_find(tl_passes *x, tl_range section, tl_passes_call call, void *context) {
  const int32_t end = section.first + section.count;
  if (x == NULL || section.count > x->most || is_known(x, section)) return TL_OK;
  for (int32_t begin = 0, stop = 0; begin < section.count; begin = stop + 1) {
    for (stop = begin; stop < section.count; stop++)
      if (!call(context, section.first + stop, end, &x->calls[stop])) break;
    for (int32_t i = begin, step; i < stop; i += step) {
      tl_pass *pass = &x->list[x->count].pass;
      step = 1;
      if (!tl_pass_begins(x->calls[i].op)) continue;
      TL_TRY(tl_pass_find(x->calls + i, stop - i, x->mail, x->phases, x->maps, pass));
      if (pass->taken == 0) continue;
      x->list[x->count++].first = section.first + i;
      step = pass->taken;
      TL_TRY(bring_phases(x, pass));
    }
  }
  return TL_OK;
}

tl_status tl_passes_queue(tl_passes *x, int32_t index, int32_t end, tl_passes_call call,
                          void *context, int32_t *done) {
  tl_fused_call calls[TL_FUSED_MAX];
  int32_t count = *done = 0;
  for (int32_t i = 0; x != NULL && i < x->count; i++) {
    if (x->list[i].first != index) continue;
    *done = x->list[i].pass.taken;
    return tl_pass_launch(x->cuda, &x->list[i].pass);
  }
  for (; count < TL_FUSED_MAX && index + count < end; count++)
    if (!call(context, index + count, end, &calls[count])) break;
  return count < 2 || !tl_fused_begins(calls[0].op) ? TL_OK : tl_fused(calls, count, done);
}
