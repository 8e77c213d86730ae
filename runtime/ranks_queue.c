/* ranks_queue.c - runs that are queued, two at a time, so that the host's work for one is done
** while the other runs.
**
**   caller   queue 0   queue 1   await 0 . . . queue 0   await 1 . . .       . what is done with it
**   GPU             [in][run 0][out][in][run 1][out]   [in][run 0][out]
**
** Only one GPU of one process does that: what it is told lies in pinned memory of the place, and
** the stream keeps the order. All else runs at once, while `queue` is called.
**
** In and out are kernels (pinned.cu), which overlap with those beside them; what is large goes in
** by the copy engine. The caller looks at the words that come out until each has come: no event is
** recorded, which would keep the next run's kernels from overlapping with this one's.
*/
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/comm/pinned_args.h"
#include "ranks_inner.h"

enum { ALIGNED = 64 };

int32_t tl_ranks_queues(const tl_ranks *ranks) {
  const tl_gpu *gpu = ranks->list[0].executor.gpu;
  return ranks->count == 1 && ranks->job == NULL && ranks->poison < 0 && gpu != NULL &&
         tl_gpu_queues(gpu);
}

static tl_status check(const tl_ranks *ranks, int error, const char *what) {
  return tl_cuda_check(tl_cuda_calls(tl_gpu_cuda(ranks->list[0].executor.gpu)), error, what);
}

static const tl_cuda_api *api_of(const tl_ranks *ranks) {
  return tl_cuda_calls(tl_gpu_cuda(ranks->list[0].executor.gpu));
}

static int64_t words_of(const tl_queue_place *p) {
  int64_t words = 0;
  for (int32_t i = 0; i < p->out_count; i++) words += p->out_words[i];
  return words;
}

static void free_memory(const tl_ranks *ranks, void *memory) {
  if (memory == NULL) return;
  if (tl_ranks_queues(ranks)) api_of(ranks)->host_free(memory);
  if (!tl_ranks_queues(ranks)) free(memory);
}

/* Zeros, which are pinned where a GPU is; *memory is given back if it has fewer bytes. */
static tl_status make_room(const tl_ranks *ranks, int64_t bytes, void **memory, int64_t *has) {
  if (bytes <= *has) return TL_OK;
  free_memory(ranks, *memory);
  *memory = NULL, *has = 0;
  if (tl_ranks_queues(ranks)) {
    TL_TRY(check(ranks, api_of(ranks)->host_alloc(memory, (size_t)bytes, TL_CUDA_HOST_PORTABLE),
                 "pinned memory"));
  } else {
    *memory = malloc((size_t)bytes);
    if (*memory == NULL) return tl_fail(TL_MEMORY, "no room for what a queued run carries");
  }
  memset(*memory, 0, (size_t)bytes);
  *has = bytes;
  return TL_OK;
}

/* For words that the GPU tells: those of other turns are there, if any. */
static tl_status make_told(const tl_ranks *ranks, tl_queue_place *p) {
  const int64_t bytes = (words_of(p) + 1) * (int64_t)sizeof *p->told;
  void *told = p->told;
  const tl_status status = make_room(ranks, bytes, &told, &p->told_bytes);
  p->told = told;
  if (status == TL_OK && ++p->turn == 0) { /* all were seen before */
    memset(p->told, 0, (size_t)p->told_bytes);
    p->turn = 1;
  }
  return status;
}

static int64_t padded(const tl_view *view) {
  return (tl_view_bytes(view) + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* The address of a tensor on the GPU. */
static uint64_t address(const tl_ranks *ranks, int32_t tensor) {
  const tl_executor *e = &ranks->list[0].executor;
  return (uint64_t)(uintptr_t)(e->arena + e->program->places[tensor].offset);
}

/* Whether a kernel can bring it, words of 4 bytes; else the copy engine does. */
static int is_small(const tl_view *view, uint64_t on_gpu) {
  const int64_t bytes = tl_view_bytes(view);
  return bytes % 4 == 0 && bytes <= TL_PINNED_MOST && on_gpu % 4 == 0;
}

static int meets_any(const tl_pinned_args *k, uint64_t to, int64_t bytes) {
  for (int32_t i = 0; i < k->count; i++) {
    const uint64_t own = (uint64_t)(uintptr_t)k->pieces[i].to;
    if (own < to + (uint64_t)bytes && to < own + 4 * (uint64_t)k->pieces[i].words) return 1;
  }
  return 0;
}

static void add_piece(tl_pinned_args *k, const void *from, void *to, int64_t bytes) {
  k->pieces[k->count++] = (tl_pinned_piece){from, to, bytes / 4};
}

/* The pieces so far, by one kernel. */
static tl_status launch_pieces(tl_cuda *cuda, const char *kernel, tl_pinned_args *k) {
  int64_t words = 0;
  for (int32_t i = 0; i < k->count; i++)
    words = k->pieces[i].words > words ? k->pieces[i].words : words;
  const int64_t blocks = (words + TL_DEVICE_THREADS - 1) / TL_DEVICE_THREADS;
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)blocks,  (uint32_t)k->count, 1},
      .threads = {TL_DEVICE_THREADS, 1,                  1},
      .overlaps = tl_cuda_device(cuda)->major >= 9
  };
  if (k->count == 0) return TL_OK;
  k->count = 0;
  return tl_cuda_launch(cuda, kernel, &grid, k);
}

/* What goes in, in its order, from the place's room at `at`. */
static tl_status queue_in(tl_ranks *ranks, const tl_carried *in, int32_t count, char *at) {
  tl_cuda *cuda = tl_gpu_cuda(ranks->list[0].executor.gpu);
  tl_pinned_args k = {.count = 0};
  for (int32_t i = 0; i < count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, 0, in[i].tensor, &view));
    const int64_t bytes = tl_view_bytes(&view);
    const uint64_t to = address(ranks, in[i].tensor);
    memcpy(at, in[i].from, (size_t)bytes);
    if (k.count == TL_PINNED_PIECES || !is_small(&view, to) || meets_any(&k, to, bytes))
      TL_TRY(launch_pieces(cuda, "pinned_in", &k));
    if (is_small(&view, to)) {
      add_piece(&k, at, (void *)(uintptr_t)to, bytes);
    } else {
      TL_TRY(check(ranks, api_of(ranks)->copy_in(to, at, (size_t)bytes, tl_cuda_stream(cuda)),
                   "copy in"));
    }
    at += padded(&view);
  }
  return launch_pieces(cuda, "pinned_in", &k);
}

/* What comes out, to p->told. */
static tl_status queue_out(tl_ranks *ranks, tl_queue_place *p, const tl_carried *out) {
  tl_pinned_args k = {.turn = p->turn};
  tl_pinned_word *to = p->told;
  for (int32_t i = 0; i < p->out_count; i++) {
    add_piece(&k, (const void *)(uintptr_t)address(ranks, out[i].tensor), to, 4 * p->out_words[i]);
    to += p->out_words[i];
  }
  p->flies = 1;
  return launch_pieces(tl_gpu_cuda(ranks->list[0].executor.gpu), "pinned_out", &k);
}

/* The words as they come, to p->outs. A kernel that failed brings none: the stream knows. Nor does
** one that was lost; words of a stream that is through are there at the next look. */
static tl_status take_words(const tl_ranks *ranks, const tl_queue_place *p) {
  enum { LOOKS = 1 << 18 }; /* between two questions: some 0.1 ms */
  void *stream = tl_cuda_stream(tl_gpu_cuda(ranks->list[0].executor.gpu));
  const int64_t words = words_of(p);
  uint32_t looks = 0, through = 0;
  for (int64_t i = 0; i < words;) {
    const uint64_t pair =
        atomic_load_explicit((_Atomic uint64_t *)(void *)&p->told[i], memory_order_relaxed);
    tl_pinned_word now;
    memcpy(&now, &pair, sizeof now);
    if (now.turn == p->turn) {
      memcpy((char *)p->room + 4 * i++, &now.word, sizeof now.word);
      continue;
    }
    if (++looks % LOOKS != 0) continue;
    const int state = api_of(ranks)->stream_query(stream);
    if (state != 0 && state != TL_CUDA_NOT_READY)
      return tl_cuda_check(api_of(ranks), state, "waiting for the GPU");
    if (state == 0 && ++through > 1)
      return tl_fail(TL_DEVICE, "the GPU is through, but word %lld of %lld did not come out",
                     (long long)i, (long long)words);
  }
  return TL_OK;
}

/* All of it now, on the threads of the ranks. */
static tl_status run_now(tl_ranks *ranks, tl_queue_place *p, const tl_run *run,
                         const tl_carried *in, int32_t in_count, const tl_carried *out) {
  tl_results results;
  for (int32_t i = 0; i < in_count; i++)
    TL_TRY(tl_ranks_write(ranks, in[i].rank, in[i].tensor, in[i].from));
  TL_TRY(tl_ranks_run(ranks, run, &results));
  for (int32_t i = 0; i < p->out_count; i++)
    TL_TRY(tl_ranks_read(ranks, out[i].rank, out[i].tensor, p->outs[i]));
  return TL_OK;
}

static tl_status check_queue(const tl_ranks *ranks, int32_t place, int32_t out_count) {
  if (place < 0 || place >= TL_QUEUE_PLACES || out_count > TL_QUEUE_OUTS_MAX)
    return tl_fail(TL_ARGUMENT, "queue: place %d, %d outs; there are %d places, each for %d", place,
                   out_count, TL_QUEUE_PLACES, TL_QUEUE_OUTS_MAX);
  if (ranks->queue[place].busy)
    return tl_fail(TL_ARGUMENT, "queue: the run at place %d was not awaited", place);
  return TL_OK;
}

/* Room for what comes out, and behind it, at *at, for what goes in. */
static tl_status open_place(const tl_ranks *ranks, tl_queue_place *p, const tl_carried *in,
                            int32_t in_count, const tl_carried *out, char **at) {
  int64_t bytes = 0;
  for (int32_t i = 0; i < p->out_count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, out[i].rank, out[i].tensor, &view));
    p->out_words[i] = tl_view_bytes(&view) / 4;
    if (tl_view_bytes(&view) % 4 != 0)
      return tl_fail(TL_ARGUMENT, "queue: tensor %d has %lld bytes; what comes out is words of 4",
                     out[i].tensor, (long long)tl_view_bytes(&view));
  }
  const int64_t first = (4 * words_of(p) + ALIGNED - 1) / ALIGNED * ALIGNED;
  for (int32_t i = 0; i < in_count; i++) {
    tl_view view;
    TL_TRY(tl_ranks_view(ranks, in[i].rank, in[i].tensor, &view));
    bytes += padded(&view);
  }
  TL_TRY(make_room(ranks, first + bytes + ALIGNED, &p->room, &p->bytes));
  *at = (char *)p->room + first;
  char *to = p->room;
  for (int32_t i = 0; i < p->out_count; i++) p->outs[i] = to, to += 4 * p->out_words[i];
  return TL_OK;
}

tl_status tl_ranks_queue(tl_ranks *ranks, int32_t place, const tl_run *run, const tl_carried *in,
                         int32_t in_count, const tl_carried *out, int32_t out_count) {
  TL_TRY(check_queue(ranks, place, out_count));
  tl_queue_place *p = &ranks->queue[place];
  int32_t queued = 0;
  char *at = NULL;
  if (tl_ranks_queues(ranks)) TL_TRY(tl_cuda_enter(tl_gpu_cuda(ranks->list[0].executor.gpu)));
  p->flies = 0, p->out_count = out_count;
  TL_TRY(open_place(ranks, p, in, in_count, out, &at));
  if (tl_ranks_queues(ranks)) {
    tl_executor *e = &ranks->list[0].executor;
    TL_TRY(make_told(ranks, p));
    TL_TRY(queue_in(ranks, in, in_count, at));
    TL_TRY(tl_gpu_queue(e->gpu, e, run, &queued));
    if (queued) TL_TRY(queue_out(ranks, p, out));
  }
  if (!queued) TL_TRY(run_now(ranks, p, run, in, in_count, out));
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
    /* where nothing comes out, nothing else tells that what went in has been read */
    void *stream = tl_cuda_stream(tl_gpu_cuda(ranks->list[0].executor.gpu));
    if (words_of(p) == 0)
      TL_TRY(check(ranks, api_of(ranks)->stream_wait(stream), "waiting for the GPU"));
    TL_TRY(take_words(ranks, p));
  }
  for (int32_t i = 0; i < p->out_count; i++) outs[i] = p->outs[i];
  return TL_OK;
}

void tl_ranks_end_queue(tl_ranks *ranks) {
  for (int32_t i = 0; i < TL_QUEUE_PLACES; i++) {
    tl_queue_place *p = &ranks->queue[i];
    const tl_gpu *gpu = ranks->list[0].executor.gpu;
    if (p->room == NULL && p->told == NULL) continue;
    if (tl_ranks_queues(ranks)) {
      if (tl_cuda_enter(tl_gpu_cuda(gpu)) != TL_OK) continue;
      api_of(ranks)->stream_wait(tl_cuda_stream(tl_gpu_cuda(gpu))); /* be it half queued */
    }
    free_memory(ranks, p->room);
    free_memory(ranks, p->told);
  }
}
