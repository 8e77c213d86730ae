/* memory.c - aligned blocks with a header that remembers size and kind.
**
**   | header, 64 bytes | the caller's bytes ...
**   ^ what malloc gave  ^ what the caller sees, 64-byte aligned
*/
#include "memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Blocks of several huge pages ask for them: their first touch, page by page, is what a copy of
** gigabytes from a GPU would wait for. */
enum { HUGE_PAGE = 2 << 20, HUGE_BYTES = 4 * HUGE_PAGE };

typedef struct header {
  int64_t bytes;
  tl_memory kind;
} header;

_Static_assert(sizeof(header) <= TL_ALIGNMENT, "the header fits in front of the block");

static _Atomic int64_t current[TL_MEMORY_COUNT], peak[TL_MEMORY_COUNT];

const char *tl_memory_name(tl_memory kind) {
  static const char *const names[] = {
#define MEMORY(kind, text) text,
#include "memory.def"
#undef MEMORY
  };
  return names[kind];
}

void tl_memory_note(tl_memory kind, int64_t bytes) {
  const int64_t now = atomic_fetch_add(&current[kind], bytes) + bytes;
  int64_t seen = atomic_load(&peak[kind]);
  while (now > seen && !atomic_compare_exchange_weak(&peak[kind], &seen, now)) continue;
}

tl_status tl_memory_alloc(tl_memory kind, int64_t bytes, void **out) {
  if (bytes < 0 || bytes > INT64_MAX - 2 * HUGE_PAGE)
    return tl_fail(TL_MEMORY, "%s memory: %lld bytes cannot be allocated", tl_memory_name(kind),
                   (long long)bytes);
  const int64_t unit = bytes >= HUGE_BYTES ? HUGE_PAGE : TL_ALIGNMENT;
  const int64_t rounded = (bytes + TL_ALIGNMENT + unit - 1) / unit * unit;
  char *base = aligned_alloc((size_t)unit, (size_t)rounded);
  if (base == NULL)
    return tl_fail(TL_MEMORY, "%s memory: no room for %lld bytes more; %lld are in use",
                   tl_memory_name(kind), (long long)bytes, (long long)tl_memory_current(kind));
  if (unit == HUGE_PAGE) (void)madvise(base, (size_t)rounded, MADV_HUGEPAGE); /* a wish */
  *(header *)base = (header){.bytes = bytes, .kind = kind};
  tl_memory_note(kind, bytes);
  *out = base + TL_ALIGNMENT;
  return TL_OK;
}

void tl_memory_free(void *block) {
  if (block == NULL) return;
  char *base = (char *)block - TL_ALIGNMENT;
  const header *h = (const header *)base;
  tl_memory_note(h->kind, -h->bytes);
  free(base);
}

int64_t tl_memory_current(tl_memory kind) { return atomic_load(&current[kind]); }

int64_t tl_memory_peak(tl_memory kind) { return atomic_load(&peak[kind]); }

void tl_memory_reset_peaks(void) {
  for (int i = 0; i < TL_MEMORY_COUNT; i++) atomic_store(&peak[i], atomic_load(&current[i]));
}
