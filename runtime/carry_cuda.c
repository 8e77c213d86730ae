/* carry_cuda.c - threads that take chunk after chunk of a copy. */
#include "carry_cuda.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cores.h"

enum { CHUNK = 2 << 20, THREADS_MAX = 16, MESSAGE_BYTES = 1024 };

typedef struct worker {
  tl_carrier *carrier;
  void *pinned, *stream;
  pthread_t thread;
  int32_t runs; /* 1: the thread was made */
  tl_status status;
  char message[MESSAGE_BYTES];
} worker;

struct tl_carrier {
  tl_cuda *cuda;
  int32_t count;
  worker list[THREADS_MAX];
  /* the copy that is under way */
  char *device, *host;
  int64_t bytes;
  int32_t outwards;
  atomic_llong next; /* first byte that nobody has taken */
};

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status wait_for(const worker *w) {
  const tl_cuda_api *api = tl_cuda_calls(w->carrier->cuda);
  return tl_cuda_check(api, api->stream_wait(w->stream), "copy");
}

static tl_status carry_chunk(const worker *w, int64_t at, size_t bytes) {
  const tl_carrier *c = w->carrier;
  const tl_cuda_api *api = tl_cuda_calls(c->cuda);
  if (!c->outwards) {
    memcpy(w->pinned, c->host + at, bytes);
    TL_TRY(tl_cuda_check(api, api->copy_in(address(c->device + at), w->pinned, bytes, w->stream),
                         "copy in"));
    return wait_for(w);
  }
  TL_TRY(tl_cuda_check(api, api->copy_out(w->pinned, address(c->device + at), bytes, w->stream),
                       "copy out"));
  TL_TRY(wait_for(w));
  memcpy(c->host + at, w->pinned, bytes);
  return TL_OK;
}

static tl_status carry_all(worker *w) {
  tl_carrier *c = w->carrier;
  TL_TRY(tl_cuda_enter(c->cuda));
  for (;;) {
    const int64_t at = atomic_fetch_add(&c->next, CHUNK);
    if (at >= c->bytes) return TL_OK;
    TL_TRY(carry_chunk(w, at, (size_t)(c->bytes - at < CHUNK ? c->bytes - at : CHUNK)));
  }
}

static void *run(void *context) {
  worker *w = context;
  w->status = carry_all(w);
  if (w->status != TL_OK) snprintf(w->message, sizeof w->message, "%s", tl_last_error());
  return NULL;
}

/* Where there is a chunk for it. */
static int32_t start_thread(const tl_carrier *c, worker *w, int32_t index) {
  return index * (int64_t)CHUNK < c->bytes && pthread_create(&w->thread, NULL, run, w) == 0;
}

/* Signals stay with the threads that know what to do with them. */
static void start_threads(tl_carrier *c) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int32_t i = 1; i < c->count; i++) c->list[i].runs = start_thread(c, &c->list[i], i);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* The calling thread is one of them; where no thread can be made, it does all. */
static tl_status carry(tl_carrier *c) {
  tl_status status = TL_OK;
  atomic_store(&c->next, 0);
  start_threads(c);
  run(&c->list[0]);
  for (int32_t i = 0; i < c->count; i++) {
    worker *w = &c->list[i];
    if (i > 0 && !w->runs) continue;
    if (i > 0) pthread_join(w->thread, NULL);
    if (w->status != TL_OK && status == TL_OK) status = tl_fail(w->status, "%s", w->message);
  }
  return status;
}

tl_status tl_carry_out(tl_carrier *c, const void *from, int64_t bytes, void *to) {
  c->device = (char *)(uintptr_t)from, c->host = to, c->bytes = bytes, c->outwards = 1;
  return carry(c);
}

tl_status tl_carry_in(tl_carrier *c, void *to, int64_t bytes, const void *from) {
  c->device = to, c->host = (char *)(uintptr_t)from, c->bytes = bytes, c->outwards = 0;
  return carry(c);
}

static tl_status open_worker(tl_carrier *c, worker *w) {
  const tl_cuda_api *api = tl_cuda_calls(c->cuda);
  w->carrier = c;
  TL_TRY(tl_cuda_check(api, api->host_alloc(&w->pinned, CHUNK, TL_CUDA_HOST_PORTABLE),
                       "pinned memory"));
  return tl_cuda_check(api, api->stream_create(&w->stream, TL_CUDA_STREAM_NON_BLOCKING),
                       "stream of a copy");
}

tl_status tl_carrier_open(tl_cuda *cuda, tl_carrier **out) {
  const int32_t cores = tl_cores_allowed();
  tl_carrier *c = calloc(1, sizeof *c);
  if (c == NULL) return tl_fail(TL_MEMORY, "no room for copies");
  c->cuda = cuda;
  c->count = cores < 1 ? 1 : cores < THREADS_MAX ? cores : THREADS_MAX;
  atomic_init(&c->next, 0);
  tl_status status = tl_cuda_enter(cuda);
  for (int32_t i = 0; i < c->count && status == TL_OK; i++) status = open_worker(c, &c->list[i]);
  if (status != TL_OK) {
    tl_carrier_close(c);
    return status;
  }
  *out = c;
  return TL_OK;
}

void tl_carrier_close(tl_carrier *c) {
  if (c == NULL) return;
  const tl_cuda_api *api = tl_cuda_calls(c->cuda);
  for (int32_t i = 0; i < c->count; i++) {
    if (c->list[i].stream != NULL) api->stream_destroy(c->list[i].stream);
    if (c->list[i].pinned != NULL) api->host_free(c->list[i].pinned);
  }
  free(c);
}
