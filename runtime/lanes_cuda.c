/* lanes_cuda.c - events between two streams. */
#include "lanes_cuda.h"

#include <stdlib.h>

#include "exchange_cuda.h"

struct tl_lanes {
  tl_cuda *cuda;
  const tl_program *program;
  void *second;                /* NULL: all is on the first */
  int32_t apart[TL_LANES_MAX]; /* 1: the lane is on the second stream */
  void **events;               /* by instruction; NULL: nobody on the other stream waits for it */
  void *begun, *ended;
  int32_t on_way; /* the last message with rows of experts, until a kernel waits for it; or -1 */
};

#define TRY_CUDA(l, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((l)->cuda), tl_cuda_calls((l)->cuda)->call, what))

/* Communication is on one stream altogether, since its order is the same on all ranks. */
static int find_apart(tl_lanes *l) {
  const tl_program *p = l->program;
  int32_t talks[TL_LANES_MAX] = {0}, works[TL_LANES_MAX] = {0};
  int apart = 0;
  for (int32_t i = 0; i < p->instruction_count; i++) {
    const tl_instruction *at = &p->instructions[i];
    if (tl_ops[at->op].traits & TL_TRAIT_COMM) {
      talks[at->lane] = 1;
    } else {
      works[at->lane] = 1;
    }
  }
  for (int32_t lane = 0; lane < TL_LANES_MAX; lane++)
    if (talks[lane] && works[lane]) return 0;
  for (int32_t lane = 0; lane < TL_LANES_MAX; lane++) apart |= l->apart[lane] = talks[lane];
  return apart;
}

static int is_apart(const tl_lanes *l, int32_t instruction) {
  return l->second != NULL && l->apart[l->program->instructions[instruction].lane];
}

static tl_status make_events(tl_lanes *l) {
  const tl_program *p = l->program;
  TRY_CUDA(l, "event", event_create(&l->begun, TL_CUDA_EVENT_PLAIN));
  TRY_CUDA(l, "event", event_create(&l->ended, TL_CUDA_EVENT_PLAIN));
  for (int32_t i = 0; i < p->instruction_count; i++) {
    const tl_range waits = p->instructions[i].waits;
    for (int32_t k = 0; k < waits.count; k++) {
      const int32_t other = p->waits[waits.first + k];
      if (is_apart(l, i) == is_apart(l, other) || l->events[other] != NULL) continue;
      TRY_CUDA(l, "event", event_create(&l->events[other], TL_CUDA_EVENT_PLAIN));
    }
  }
  return TL_OK;
}

static tl_status open_lanes(tl_lanes *l) {
  int least, greatest;
  l->events = calloc((size_t)l->program->instruction_count + 1, sizeof *l->events);
  if (l->events == NULL) return tl_fail(TL_MEMORY, "no room for the events of a rank");
  if (!find_apart(l)) return TL_OK;
  TL_TRY(tl_cuda_enter(l->cuda));
  TRY_CUDA(l, "stream", stream_priorities(&least, &greatest));
  TRY_CUDA(l, "stream", stream_create_first(&l->second, TL_CUDA_STREAM_NON_BLOCKING, greatest));
  return make_events(l);
}

tl_status tl_lanes_open(tl_cuda *cuda, const tl_program *program, tl_lanes **out) {
  tl_lanes *l = calloc(1, sizeof *l);
  if (l == NULL) return tl_fail(TL_MEMORY, "no room for the lanes of a rank");
  l->cuda = cuda, l->program = program;
  const tl_status status = open_lanes(l);
  if (status == TL_OK) {
    *out = l;
    return TL_OK;
  }
  tl_lanes_close(l);
  return status;
}

void tl_lanes_close(tl_lanes *l) {
  if (l == NULL) return;
  const tl_cuda_api *api = tl_cuda_calls(l->cuda);
  for (int32_t i = 0; l->events != NULL && i < l->program->instruction_count; i++)
    if (l->events[i] != NULL) api->event_destroy(l->events[i]);
  if (l->begun != NULL) api->event_destroy(l->begun);
  if (l->ended != NULL) api->event_destroy(l->ended);
  if (l->second != NULL) api->stream_destroy(l->second);
  free(l->events);
  free(l);
}

int32_t tl_lanes_apart(const tl_lanes *l) { return l->second != NULL; }

void *tl_lanes_stream(const tl_lanes *l, int32_t instruction) {
  return is_apart(l, instruction) ? l->second : tl_cuda_stream(l->cuda);
}

tl_status tl_lanes_fork(tl_lanes *l) {
  l->on_way = -1;
  if (l->second == NULL) return TL_OK;
  TRY_CUDA(l, "event", event_record(l->begun, tl_cuda_stream(l->cuda)));
  TRY_CUDA(l, "wait", stream_after(l->second, l->begun, 0));
  return TL_OK;
}

tl_status tl_lanes_join(tl_lanes *l) {
  if (l->second == NULL) return TL_OK;
  TRY_CUDA(l, "event", event_record(l->ended, l->second));
  TRY_CUDA(l, "wait", stream_after(tl_cuda_stream(l->cuda), l->ended, 0));
  return TL_OK;
}

int32_t tl_lanes_meet(const tl_lanes *l, int32_t index) {
  const tl_range waits = l->program->instructions[index].waits;
  if (is_apart(l, index) || l->events[index] != NULL) return 1;
  for (int32_t k = 0; k < waits.count; k++)
    if (is_apart(l, l->program->waits[waits.first + k])) return 1;
  return 0;
}

/* Kernels that are queued while rows of experts may travel leave them their multiprocessors; the
** others have all. */
static void leave_room(tl_lanes *l, int32_t index) {
  const tl_instruction *i = &l->program->instructions[index];
  if (is_apart(l, index)) {
    if (i->op == TL_OP_exchange) l->on_way = index;
    return;
  }
  for (int32_t k = 0; k < i->waits.count; k++)
    if (l->program->waits[i->waits.first + k] >= l->on_way) l->on_way = -1;
  tl_cuda_set_spare(l->cuda, l->on_way >= 0 ? TL_EXCHANGE_MULTIPROCESSORS : 0);
}

tl_status tl_lanes_before(tl_lanes *l, int32_t index) {
  leave_room(l, index);
  const tl_range waits = l->program->instructions[index].waits;
  for (int32_t k = 0; k < waits.count; k++) {
    const int32_t other = l->program->waits[waits.first + k];
    if (is_apart(l, index) == is_apart(l, other)) continue;
    TRY_CUDA(l, "wait", stream_after(tl_lanes_stream(l, index), l->events[other], 0));
  }
  return TL_OK;
}

tl_status tl_lanes_after(tl_lanes *l, int32_t index) {
  if (l->events[index] == NULL) return TL_OK;
  TRY_CUDA(l, "event", event_record(l->events[index], tl_lanes_stream(l, index)));
  return TL_OK;
}
