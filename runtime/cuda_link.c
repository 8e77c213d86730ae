/* cuda_link.c - measures links, finds libraries. */
#include "cuda_link.h"

#include <dlfcn.h>
#include <string.h>

enum { COPY_BYTES = 64 << 20, OWN_COPY_BYTES = 1 << 30, COPIES = 8, ALREADY_OPEN = 704 };

tl_status tl_cuda_driver_version(int32_t *out) {
  const tl_cuda_api *api;
  int version;
  TL_TRY(tl_cuda_driver(&api));
  TL_TRY(tl_cuda_check(api, api->version(&version), "cuDriverGetVersion"));
  *out = version;
  return TL_OK;
}

typedef struct side {
  int device;
  void *context;
  uint64_t memory;
} side;

static tl_status open_side(const tl_cuda_api *api, int32_t ordinal, size_t bytes, side *s) {
  TL_TRY(tl_cuda_check(api, api->device_get(&s->device, ordinal), "cuDeviceGet"));
  TL_TRY(tl_cuda_check(api, api->context_retain(&s->context, s->device), "context"));
  TL_TRY(tl_cuda_check(api, api->context_set(s->context), "context"));
  return tl_cuda_check(api, api->memory_alloc(&s->memory, bytes), "memory for a copy");
}

static void close_side(const tl_cuda_api *api, side *s) {
  if (s->context == NULL) return;
  api->context_set(s->context);
  if (s->memory != 0) api->memory_free(s->memory);
  api->context_release(s->device);
}

/* The best of some copies, queued between two events. The context of `from` is current. */
static tl_status measure(const tl_cuda_api *api, const side *from, const side *to, size_t bytes,
                         double *out) {
  void *stream = NULL, *begin = NULL, *end = NULL;
  tl_status status = TL_OK;
  float best = 0;
#define CUDA(what, call) TL_TRY_GOTO(status, tl_cuda_check(api, api->call, what), done)
  CUDA("stream", stream_create(&stream, TL_CUDA_STREAM_NON_BLOCKING));
  CUDA("event", event_create(&begin, 0));
  CUDA("event", event_create(&end, 0));
  for (int i = 0; i < COPIES; i++) {
    float ms;
    CUDA("event", event_record(begin, stream));
    CUDA("copy", link_copy(to->memory, to->context, from->memory, from->context, bytes, stream));
    CUDA("event", event_record(end, stream));
    CUDA("waiting for the GPU", event_wait(end));
    CUDA("time of a copy", event_ms(&ms, begin, end));
    if (i == 0 || ms < best) best = ms;
  }
  *out = (double)bytes / ((double)best / 1000);
#undef CUDA
done:
  if (begin != NULL) api->event_destroy(begin);
  if (end != NULL) api->event_destroy(end);
  if (stream != NULL) api->stream_destroy(stream);
  return status;
}

static tl_status look(const tl_cuda_api *api, side *from, side *to, tl_cuda_link *out) {
  int value;
  TL_TRY(tl_cuda_check(api, api->link_can(&value, from->device, to->device), "peers"));
  out->direct = value;
  TL_TRY(tl_cuda_check(api, api->link_rank(&value, TL_CUDA_LINK_RANK, from->device, to->device),
                       "link"));
  out->rank = value;
  TL_TRY(tl_cuda_check(api, api->context_set(from->context), "context"));
  if (out->direct) {
    const int error = api->link_open(to->context, 0);
    if (error != ALREADY_OPEN) TL_TRY(tl_cuda_check(api, error, "access to the other GPU"));
  }
  return measure(api, from, to, COPY_BYTES, &out->bytes_per_second);
}

tl_status tl_cuda_link_between(int32_t from, int32_t to, tl_cuda_link *out) {
  const tl_cuda_api *api;
  side a = {0}, b = {0};
  tl_status status = TL_OK;
  TL_TRY(tl_cuda_driver(&api));
  *out = (tl_cuda_link){0};
  TL_TRY_GOTO(status, open_side(api, from, COPY_BYTES, &a), done);
  TL_TRY_GOTO(status, open_side(api, to, COPY_BYTES, &b), done);
  TL_TRY_GOTO(status, look(api, &a, &b, out), done);
done:
  close_side(api, &a);
  close_side(api, &b);
  return status;
}

tl_status tl_cuda_copy_speed(int32_t ordinal, double *out) {
  const tl_cuda_api *api;
  side a = {0}, b = {0};
  tl_status status = TL_OK;
  TL_TRY(tl_cuda_driver(&api));
  TL_TRY_GOTO(status, open_side(api, ordinal, OWN_COPY_BYTES, &a), done);
  TL_TRY_GOTO(status, open_side(api, ordinal, OWN_COPY_BYTES, &b), done);
  TL_TRY_GOTO(status, measure(api, &a, &b, OWN_COPY_BYTES, out), done);
  *out *= 2;
done:
  close_side(api, &a);
  close_side(api, &b);
  return status;
}

/* --- libraries -------------------------------------------------------------------------------- */

static void *open_library(const char *const *files, const char **file) {
  for (int i = 0; files[i] != NULL; i++) {
    void *library = dlopen(files[i], RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) continue;
    *file = files[i];
    return library;
  }
  return NULL;
}

void tl_cuda_library_find(int32_t index, tl_cuda_library *out) {
  static const char *const lt[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                   NULL};
  static const char *const nccl[] = {"libnccl.so.2", "libnccl.so", NULL};
  *out = index == 0
             ? (tl_cuda_library){.name = "cuBLASLt", .use = "a second way to multiply matrices"}
             : (tl_cuda_library){.name = "NCCL", .use = "bytes between GPUs"};
  void *library = open_library(index == 0 ? lt : nccl, &out->file);
  if (library == NULL) return;
  if (index == 0) {
    size_t (*version)(void);
    void *found = dlsym(library, "cublasLtGetVersion");
    memcpy(&version, &found, sizeof found);
    if (found != NULL) out->version = (int64_t)version();
  } else {
    int (*version)(int *), number = 0;
    void *found = dlsym(library, "ncclGetVersion");
    memcpy(&version, &found, sizeof found);
    if (found != NULL && version(&number) == 0) out->version = number;
  }
  dlclose(library);
}
