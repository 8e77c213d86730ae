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

uint64_t tl_hash_shard(uint64_t name, const tl_view *shard, const tl_hash_place *place) {
  const int64_t cols = tl_view_row(shard), size = tl_dtype_bytes(shard->dtype);
  const char *element = shard->data;
  uint64_t sum = 0;
  for (int64_t r = 0; r < shard->shape[0]; r++) {
    const uint64_t index =
        (uint64_t)(place->row_first + r) * (uint64_t)place->cols_full + (uint64_t)place->col_first;
    for (int64_t c = 0; c < cols; c++, element += size) {
      uint64_t bits = 0;
      switch (size) { /* a constant size each, so that the copy is one load */
        case 2: memcpy(&bits, element, 2); break;
        case 4: memcpy(&bits, element, 4); break;
        case 8: memcpy(&bits, element, 8); break;
        default: bits = *(const unsigned char *)element;
      }
      sum += tl_hash_element(name, index + (uint64_t)c, bits);
    }
  }
  return sum;
}
