/* hash.c - XXH64 and the sum over elements. */
#include "hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t tl_hash_bytes(const void *data, int64_t bytes) { return XXH64(data, (size_t)bytes, 0); }

uint64_t tl_hash_chunks(const void *data, int64_t bytes, int64_t chunk, tl_hash_visit visit,
                        void *context) {
  XXH64_state_t state;
  XXH64_reset(&state, 0);
  for (int64_t first = 0; first < bytes; first += chunk) {
    const int64_t count = bytes - first < chunk ? bytes - first : chunk;
    visit(context, first, count);
    XXH64_update(&state, (const char *)data + first, (size_t)count);
  }
  return XXH64_digest(&state);
}

/* `count` neighbours from global index `index`. */
static uint64_t hash_run(uint64_t name, const char *element, int64_t size, uint64_t index,
                         int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count; i++, element += size) {
    uint64_t bits = 0;
    switch (size) { /* a constant size each, so that the copy is one load */
      case 2: memcpy(&bits, element, 2); break;
      case 4: memcpy(&bits, element, 4); break;
      case 8: memcpy(&bits, element, 8); break;
      default: bits = *(const unsigned char *)element;
    }
    sum += tl_hash_element(name, index + (uint64_t)i, bits);
  }
  return sum;
}

uint64_t tl_hash_shard(uint64_t name, const tl_view *shard, const tl_hash_place *place) {
  const int64_t cols = tl_view_row(shard), size = tl_dtype_bytes(shard->dtype);
  const char *row = shard->data;
  uint64_t sum = 0;
  for (int64_t r = 0; r < shard->shape[0]; r++, row += cols * size) {
    const uint64_t index =
        (uint64_t)(place->row_first + r) * (uint64_t)place->cols_full + (uint64_t)place->col_first;
    sum += hash_run(name, row, size, index, cols);
  }
  return sum;
}

enum { LINE = 64, LINES = 64 }; /* elements of a run; runs of which one is taken */

static uint64_t hash_sampled(uint64_t name, const char *element, int64_t size, int64_t index,
                             int64_t count) {
  const int64_t span = LINE * LINES;
  uint64_t sum = 0;
  for (int64_t at = index / span; at * span < index + count; at++) {
    const uint64_t word = tl_mix64(name ^ (uint64_t)(at + 1) * 0x9e3779b97f4a7c15u);
    int64_t from = at * span + (int64_t)(word % LINES) * LINE, to = from + LINE;
    if (from < index) from = index;
    if (to > index + count) to = index + count;
    if (from < to)
      sum += hash_run(name, element + (from - index) * size, size, (uint64_t)from, to - from);
  }
  return sum;
}

uint64_t tl_hash_rows(const tl_hash_part *p, const void *data, tl_dtype dtype, int64_t first,
                      int64_t count) {
  const int64_t size = tl_dtype_bytes(dtype);
  const int whole = p->cols == p->cols_full && p->pitch == p->cols; /* rows are neighbours */
  const int64_t end = first + count < p->rows ? first + count : p->rows;
  uint64_t sum = 0;
  for (int64_t r = first; r < end;) {
    const int64_t in_piece = r % p->piece_rows;
    const int64_t global = p->row_first + r / p->piece_rows * p->piece_stride + in_piece;
    const int64_t left = p->piece_rows - in_piece < end - r ? p->piece_rows - in_piece : end - r;
    const int64_t rows = whole ? left : 1;
    const char *at = (const char *)data + r * p->pitch * size;
    const int64_t index = global * p->cols_full + p->col_first;
    sum += p->sampled ? hash_sampled(p->name, at, size, index, rows * p->cols)
                      : hash_run(p->name, at, size, (uint64_t)index, rows * p->cols);
    r += rows;
  }
  return sum;
}
