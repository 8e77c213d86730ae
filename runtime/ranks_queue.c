/* ranks_queue.c - runs that are queued, two at a time, so that the host's work for one is done
** while the other runs.
**
**   caller   queue 0   queue 1   await 0 . . . queue 0   await 1 . . .       . what is done with it
**   GPU             [in][run 0][out][in][run 1][out]   [in][run 0][out]
**
** Only one GPU of one process does that: what it is told lies in pinned memory of the place, and
** the stream keeps the order. All else runs at once, while `queue` is called.
*/
#include <stdlib.h>
#include <string.h>

#include "ranks_inner.h"

enum { ALIGNED = 64 };

int32_t tl_ranks_queues(const tl_ranks *ranks) {
  const tl_gpu *gpu = ranks->list[0].executor.gpu;
  return ranks->count == 1 && ranks->job == NULL && ranks->poison < 0 && gpu != NULL &&
         tl_gpu_queues(gpu);
}

static tl_status check(tl_ranks *ranks, int error, const char *what) {
  return tl_cuda_check(tl_cuda_calls(tl_gpu_cuda(ranks->list[0].executor.gpu)), error, what);
}

static const tl_cuda_api *api_of(const tl_ranks *ranks) {
  return tl_cuda_calls(tl_gpu_cuda(ranks->list[0].executor.gpu));
}

static void free_room(tl_ranks *ranks, tl_queue_place *p) {
  if (p->room != NULL && tl_ranks_queues(ranks)) api_of(ranks)->host_free(p->room);
  if (p->room != NULL && !tl_ranks_queues(ranks)) free(p->room);
  p->room = NULL, p->bytes = 0;
}

static tl_status make_room(tl_ranks *ranks, tl_queue_place *p, int64_t bytes) {
  void *room = NULL;
  if (bytes <= p->bytes) return TL_OK;
  free_room(ranks, p);
  if (tl_ranks_queues(ranks)) {
    TL_TRY(check(ranks, api_of(ranks)->host_alloc(&room, (size_t)bytes, TL_CUDA_HOST_PORTABLE),
                 "pinned memory"));
  } else {
    room = malloc((size_t)bytes);
    if (room == NULL) return tl_fail(TL_MEMORY, "no room for what a queued run carries");
  }
  p->room = room, p->bytes = bytes;
  return TL_OK;
}

static int64_t padded(const tl_view *view) {
  return (tl_view_bytes(view) + ALIGNED - 1) / ALIGNED * ALIGNED;
}

static tl_status sum_bytes(const tl_ranks *ranks, const tl_carried *list, int32_t count,
                           int64_t *bytes) {
  for (int32_t i = 0; i < count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, list[i].rank, list[i].tensor, &view));
    *bytes += padded(&view);
  }
  return TL_OK;
}

/* The address of a tensor on the GPU. */
static uint64_t address(const tl_ranks *ranks, int32_t tensor) {
  const tl_executor *e = &ranks->list[0].executor;
  return (uint64_t)(uintptr_t)(e->arena + e->program->places[tensor].offset);
}

/* Copies of what goes in, from the place's room; *at is moved behind it. */
static tl_status queue_in(tl_ranks *ranks, const tl_carried *in, int32_t count, char **at) {
  void *stream = tl_cuda_stream(tl_gpu_cuda(ranks->list[0].executor.gpu));
  for (int32_t i = 0; i < count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, 0, in[i].tensor, &view));
    const size_t bytes = (size_t)tl_view_bytes(&view);
    memcpy(*at, in[i].from, bytes);
    TL_TRY(check(ranks, api_of(ranks)->copy_in(address(ranks, in[i].tensor), *at, bytes, stream),
                 "copy in"));
    *at += padded(&view);
  }
  return TL_OK;
}

static tl_status queue_out(tl_ranks *ranks, tl_queue_place *p, const tl_carried *out, int32_t count,
                           char *at) {
  void *stream = tl_cuda_stream(tl_gpu_cuda(ranks->list[0].executor.gpu));
  for (int32_t i = 0; i < count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, 0, out[i].tensor, &view));
    p->outs[i] = at;
    TL_TRY(check(ranks,
                 api_of(ranks)->copy_out(at, address(ranks, out[i].tensor),
                                         (size_t)tl_view_bytes(&view), stream),
                 "copy out"));
    at += padded(&view);
  }
  if (p->event == NULL)
    TL_TRY(check(ranks, api_of(ranks)->event_create(&p->event, TL_CUDA_EVENT_PLAIN), "event"));
  p->flies = 1;
  return check(ranks, api_of(ranks)->event_record(p->event, stream), "event");
}

/* All of it now, on the threads of the ranks. */
static tl_status run_now(tl_ranks *ranks, tl_queue_place *p, const tl_run *run,
                         const tl_carried *in, int32_t in_count, const tl_carried *out,
                         int32_t out_count) {
  char *at = p->room;
  tl_results results;
  for (int32_t i = 0; i < in_count; i++)
    TL_TRY(tl_ranks_write(ranks, in[i].rank, in[i].tensor, in[i].from));
  TL_TRY(tl_ranks_run(ranks, run, &results));
  for (int32_t i = 0; i < out_count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, out[i].rank, out[i].tensor, &view));
    TL_TRY(tl_ranks_read(ranks, out[i].rank, out[i].tensor, at));
    p->outs[i] = at;
    at += padded(&view);
  }
  return TL_OK;
}

tl_status tl_ranks_queue(tl_ranks *ranks, int32_t place, const tl_run *run, const tl_carried *in,
                         int32_t in_count, const tl_carried *out, int32_t out_count) {
  if (place < 0 || place >= TL_QUEUE_PLACES || out_count > TL_QUEUE_OUTS_MAX)
    return tl_fail(TL_ARGUMENT, "queue: place %d, %d outs; there are %d places, each for %d", place,
                   out_count, TL_QUEUE_PLACES, TL_QUEUE_OUTS_MAX);
  tl_queue_place *p = &ranks->queue[place];
  if (p->busy) return tl_fail(TL_ARGUMENT, "queue: the run at place %d was not awaited", place);
  int64_t bytes = ALIGNED;
  TL_TRY(sum_bytes(ranks, in, in_count, &bytes));
  TL_TRY(sum_bytes(ranks, out, out_count, &bytes));
  if (tl_ranks_queues(ranks)) TL_TRY(tl_cuda_enter(tl_gpu_cuda(ranks->list[0].executor.gpu)));
  TL_TRY(make_room(ranks, p, bytes));
  p->flies = 0, p->out_count = out_count;
  int32_t queued = 0;
  if (tl_ranks_queues(ranks)) {
    tl_executor *e = &ranks->list[0].executor;
    char *at = p->room;
    TL_TRY(queue_in(ranks, in, in_count, &at));
    TL_TRY(tl_gpu_queue(e->gpu, e, run, &queued));
    if (queued) TL_TRY(queue_out(ranks, p, out, out_count, at));
  }
  if (!queued) TL_TRY(run_now(ranks, p, run, in, in_count, out, out_count));
  p->busy = 1;
  return TL_OK;
}

tl_status tl_ranks_await(tl_ranks *ranks, int32_t place, const void **outs) {
  if (place < 0 || place >= TL_QUEUE_PLACES || !ranks->queue[place].busy)
    return tl_fail(TL_ARGUMENT, "await: nothing is queued at place %d", place);
  tl_queue_place *p = &ranks->queue[place];
  p->busy = 0;
  if (p->flies) {
    p->flies = 0;
    TL_TRY(tl_cuda_enter(tl_gpu_cuda(ranks->list[0].executor.gpu)));
    TL_TRY(check(ranks, api_of(ranks)->event_wait(p->event), "waiting for the GPU"));
  }
  for (int32_t i = 0; i < p->out_count; i++) outs[i] = p->outs[i];
  return TL_OK;
}

void tl_ranks_end_queue(tl_ranks *ranks) {
  for (int32_t i = 0; i < TL_QUEUE_PLACES; i++) {
    tl_queue_place *p = &ranks->queue[i];
    if (p->room == NULL) continue;
    if (tl_ranks_queues(ranks)) {
      if (tl_cuda_enter(tl_gpu_cuda(ranks->list[0].executor.gpu)) != TL_OK) continue;
      if (p->flies) api_of(ranks)->event_wait(p->event);
      if (p->event != NULL) api_of(ranks)->event_destroy(p->event);
    }
    free_room(ranks, p);
  }
}
