/* cache_host.c - writing keys and values to their pages. */
#include <string.h>

#include "../rows.h"
#include "cache.h"

typedef struct write {
  tl_cache_sizes sizes;
  const char *k, *v;
  char *keys, *values;
} write;

/* Channels of a key lie a page's positions apart. */
static void write_key(const write *w, const char *from, char *to, int64_t bytes) {
  const int64_t step = w->sizes.page * bytes;
  for (int64_t i = 0; i < w->sizes.width; i++)
    memcpy(to + i * step, from + i * bytes, (size_t)bytes);
}

static void write_row(const void *context, int64_t row) {
  const write *w = context;
  const tl_cache_sizes *z = &w->sizes;
  if (z->request[row] < 0) return;
  const int64_t bytes = tl_dtype_bytes(z->dtype), entry = z->position[row] % z->page;
  const int64_t page = z->table[z->request[row] * z->pages_max + z->position[row] / z->page];
  for (int64_t head = 0; head < z->kv_heads; head++) {
    const int64_t from = (row * z->kv_heads + head) * z->width;
    const int64_t to = (page * z->kv_heads + head) * z->width * z->page + entry;
    write_key(w, w->k + from * bytes, w->keys + to * bytes, bytes);
  }
  const int64_t width = z->kv_heads * z->value_width * bytes;
  memcpy(w->values + (page * z->page + entry) * width, w->v + row * width, (size_t)width);
}

tl_status tl_host_cache_write(const tl_call *call) {
  write w = {.k = call->in[0].data, .v = call->in[1].data};
  w.keys = call->out[0].data, w.values = call->out[1].data;
  TL_TRY(tl_cache_write_check(call, &w.sizes));
  TL_TRY(tl_cache_check_rows("cache_write", &w.sizes, 0));
  tl_each_row(call->team, w.sizes.rows, w.sizes.kv_heads * w.sizes.width, write_row, &w);
  return TL_OK;
}
