/* hash.h - hashes of byte strings, and hashes of tensors that add up.
**
** hash(tensor) = sum over its elements of tl_hash_element(name, global index, bits), modulo 2^64.
** A sum has no order: each shard computes its share, shares are added, nothing is gathered.
**
**     columns   0 ........ cols_full - 1
**             +------------------------+
**   row_first |      +--------+        |    element (r, c) of the shard has the global
**             |      | shard  |        |    index (row_first + r) * cols_full
**             |      +--------+        |          + col_first + c
**             +------------------------+
**
** A tensor of any number of dims is taken as rows (dim 0) of columns (all other dims). The bits of
** an element are its memory, zero-extended to 64 bits: f32 and bf16 hash differently, and so do +0
** and -0.
*/
#ifndef TL_HASH_H
#define TL_HASH_H

#include "random.h"
#include "view.h"

/* XXH64 with seed 0 (Collet; the published algorithm, from libxxhash). */
uint64_t tl_hash_bytes(const void *data, int64_t bytes);

/* The same hash, `chunk` bytes at a time: visit(context, first, count) sees bytes first .. first +
** count - 1 just before they are hashed, so that memory that is mapped from a file is read once. */
typedef void (*tl_hash_visit)(void *context, int64_t first, int64_t count);
uint64_t tl_hash_chunks(const void *data, int64_t bytes, int64_t chunk, tl_hash_visit visit,
                        void *context);

/* mix64(mix64(name + (index + 1) * the golden ratio) xor bits): the n-th output of splitmix64
** started at the name's hash keys the element. */
static inline uint64_t tl_hash_element(uint64_t name, uint64_t index, uint64_t bits) {
  return tl_mix64(tl_mix64(name + (index + 1) * 0x9e3779b97f4a7c15u) ^ bits);
}

/* Where a shard lies in its logical tensor. */
typedef struct tl_hash_place {
  int64_t row_first, col_first, cols_full;
} tl_hash_place;

/* The share of one shard. `name` is tl_hash_bytes of the tensor's logical name. */
uint64_t tl_hash_shard(uint64_t name, const tl_view *shard, const tl_hash_place *place);

#endif
