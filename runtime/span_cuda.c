/* span_cuda.c - reserves a range, maps memory of several GPUs into it, and copies to and fro. */
#include "span_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "cuda_driver.h"
#include "memory.h"

/* Of the driver's interface: CUmemAllocationProp, CUmemAccessDesc and their numbers. */
enum { PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, GRANULARITY_MINIMUM = 0, CAN_MAP = 102 };

typedef struct location {
  int kind, gpu;
} location;

typedef struct allocation {
  int kind, handles;
  location where;
  void *windows;
  unsigned char flags[8];
} allocation;

typedef struct access {
  location where;
  int how;
} access;

typedef struct part {
  int32_t gpu; /* ordinal */
  int device;
  void *context;
  unsigned long long memory; /* the driver's handle; 0: none */
  int mapped;
} part;

struct tl_span {
  const tl_cuda_api *api;
  uint64_t base;
  int64_t each; /* bytes of a part */
  int32_t count;
  part parts[TL_SPAN_GPUS_MAX];
};

#define TRY_CUDA(s, what, call) TL_TRY(tl_cuda_check((s)->api, (s)->api->call, what))

static allocation allocation_of(const part *p) {
  return (allocation){
      .kind = PINNED, .where = {ON_DEVICE, p->device}
  };
}

static tl_status check_arguments(const int32_t *gpus, int32_t count, int64_t bytes) {
  if (count < 1 || count > TL_SPAN_GPUS_MAX)
    return tl_fail(TL_ARGUMENT, "memory.span: %d GPUs; it takes 1 to %d", count, TL_SPAN_GPUS_MAX);
  if (bytes < 1 || bytes > INT64_C(1) << 46)
    return tl_fail(TL_ARGUMENT, "memory.span: %lld bytes of each GPU; it takes 1 to 2^46",
                   (long long)bytes);
  for (int32_t i = 0; i < count; i++)
    for (int32_t k = 0; k < i; k++)
      if (gpus[i] == gpus[k])
        return tl_fail(TL_ARGUMENT, "memory.span: GPU %d stands twice", gpus[i]);
  return TL_OK;
}

static tl_status open_part(tl_span *s, int32_t gpu, int32_t present) {
  int can = 0;
  part *p = &s->parts[s->count];
  if (gpu < 0 || gpu >= present)
    return tl_fail(TL_DEVICE, "memory.span: there is no GPU %d; this machine has %d, from 0", gpu,
                   present);
  *p = (part){.gpu = gpu};
  TRY_CUDA(s, "memory.span", device_get(&p->device, gpu));
  TRY_CUDA(s, "memory.span", device_attribute(&can, CAN_MAP, p->device));
  if (!can)
    return tl_fail(TL_DEVICE, "memory.span: GPU %d cannot map its memory; use one GPU, or copies",
                   gpu);
  TRY_CUDA(s, "memory.span: context", context_retain(&p->context, p->device));
  s->count++;
  return TL_OK;
}

static tl_status check_links(const tl_span *s) {
  for (int32_t i = 0; i < s->count; i++)
    for (int32_t k = 0; k < s->count; k++) {
      int can = 1;
      if (i != k)
        TRY_CUDA(s, "memory.span: link", link_can(&can, s->parts[i].device, s->parts[k].device));
      if (!can)
        return tl_fail(TL_DEVICE,
                       "memory.span: GPU %d does not reach the memory of GPU %d; ./tl doctor lists"
                       " links; GPUs without one exchange copies",
                       s->parts[i].gpu, s->parts[k].gpu);
    }
  return TL_OK;
}

/* What every part is a multiple of. */
static tl_status find_granularity(const tl_span *s, int64_t *out) {
  *out = 1;
  for (int32_t i = 0; i < s->count; i++) {
    const allocation wanted = allocation_of(&s->parts[i]);
    size_t each = 0;
    TRY_CUDA(s, "memory.span: granularity", map_granularity(&each, &wanted, GRANULARITY_MINIMUM));
    if ((int64_t)each > *out) *out = (int64_t)each; /* powers of two */
  }
  return TL_OK;
}

static tl_status map_part(tl_span *s, int32_t i) {
  part *p = &s->parts[i];
  const allocation wanted = allocation_of(p);
  TRY_CUDA(s, "memory.span: memory of a GPU", map_create(&p->memory, (size_t)s->each, &wanted, 0));
  TRY_CUDA(s, "memory.span: map",
           map_place(s->base + (uint64_t)(i * s->each), (size_t)s->each, 0, p->memory, 0));
  p->mapped = 1;
  return TL_OK;
}

static tl_status map_all(tl_span *s, int64_t bytes) {
  access all[TL_SPAN_GPUS_MAX];
  int64_t granularity;
  TL_TRY(find_granularity(s, &granularity));
  s->each = (bytes + granularity - 1) / granularity * granularity;
  TRY_CUDA(s, "memory.span: range",
           map_reserve(&s->base, (size_t)(s->count * s->each), (size_t)granularity, 0, 0));
  for (int32_t i = 0; i < s->count; i++) {
    TL_TRY(map_part(s, i));
    all[i] = (access){
        .where = {ON_DEVICE, s->parts[i].device},
          .how = READ_WRITE
    };
  }
  TRY_CUDA(s, "memory.span: access",
           map_access(s->base, (size_t)(s->count * s->each), all, (size_t)s->count));
  return TL_OK;
}

static tl_status open_span(tl_span *s, const int32_t *gpus, int32_t count, int64_t bytes) {
  int present = 0;
  char why[256];
  if (tl_cuda_driver(&s->api) != TL_OK) {
    snprintf(why, sizeof why, "%s", tl_last_error());
    return tl_fail(TL_DEVICE, "memory.span: %s", why);
  }
  TRY_CUDA(s, "memory.span", device_count(&present));
  for (int32_t i = 0; i < count; i++) TL_TRY(open_part(s, gpus[i], present));
  TL_TRY(check_links(s));
  TRY_CUDA(s, "memory.span: context", context_set(s->parts[0].context));
  TL_TRY(map_all(s, bytes));
  tl_memory_note(TL_MEMORY_TENSOR, s->count * s->each);
  return TL_OK;
}

tl_status tl_span_open(const int32_t *gpus, int32_t count, int64_t bytes, tl_span **out) {
  TL_TRY(check_arguments(gpus, count, bytes));
  tl_span *s = calloc(1, sizeof *s);
  if (s == NULL) return tl_fail(TL_MEMORY, "no room for a span");
  const tl_status status = open_span(s, gpus, count, bytes);
  if (status == TL_OK) {
    *out = s;
    return TL_OK;
  }
  if (s->base != 0) tl_memory_note(TL_MEMORY_TENSOR, s->count * s->each); /* close takes it back */
  tl_span_close(s);
  return status;
}

void tl_span_close(tl_span *s) {
  if (s == NULL) return;
  for (int32_t i = 0; i < s->count; i++) {
    part *p = &s->parts[i];
    if (p->mapped) s->api->map_remove(s->base + (uint64_t)(i * s->each), (size_t)s->each);
    if (p->memory != 0) s->api->map_release(p->memory);
  }
  if (s->base != 0) {
    s->api->map_free(s->base, (size_t)(s->count * s->each));
    tl_memory_note(TL_MEMORY_TENSOR, -s->count * s->each);
  }
  for (int32_t i = 0; i < s->count; i++) s->api->context_release(s->parts[i].device);
  free(s);
}

int32_t tl_span_count(const tl_span *s) { return s->count; }
int32_t tl_span_gpu(const tl_span *s, int32_t i) { return s->parts[i].gpu; }
int64_t tl_span_part_bytes(const tl_span *s) { return s->each; }
void *tl_span_address(const tl_span *s, int64_t at) {
  return (void *)(uintptr_t)(s->base + (uint64_t)at);
}

/* Calls copy(place in the range, place in the host's memory, bytes) for each part in turn. */
typedef tl_status (*copy_part)(tl_span *s, int64_t at, char *host, int64_t bytes);

static tl_status for_parts(tl_span *s, int64_t at, int64_t bytes, char *host, copy_part copy) {
  const int64_t size = s->count * s->each;
  if (at < 0 || bytes < 0 || bytes > size || at > size - bytes)
    return tl_fail(TL_ARGUMENT, "memory.span: bytes %lld to %lld of a range of %lld", (long long)at,
                   (long long)(at + bytes), (long long)size);
  while (bytes > 0) {
    const part *p = &s->parts[at / s->each];
    const int64_t left = s->each - at % s->each, now = bytes < left ? bytes : left;
    TRY_CUDA(s, "memory.span: context", context_set(p->context));
    TL_TRY(copy(s, at, host, now));
    TRY_CUDA(s, "memory.span: copy", stream_wait(NULL));
    at += now, host += now, bytes -= now;
  }
  return TL_OK;
}

static tl_status copy_in(tl_span *s, int64_t at, char *host, int64_t bytes) {
  TRY_CUDA(s, "memory.span: copy", copy_in(s->base + (uint64_t)at, host, (size_t)bytes, NULL));
  return TL_OK;
}

static tl_status copy_out(tl_span *s, int64_t at, char *host, int64_t bytes) {
  TRY_CUDA(s, "memory.span: copy", copy_out(host, s->base + (uint64_t)at, (size_t)bytes, NULL));
  return TL_OK;
}

tl_status tl_span_write(tl_span *s, int64_t at, int64_t bytes, const void *from) {
  return for_parts(s, at, bytes, (char *)(uintptr_t)from, copy_in);
}

tl_status tl_span_read(tl_span *s, int64_t at, int64_t bytes, void *to) {
  return for_parts(s, at, bytes, to, copy_out);
}
