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

/* A shard that need not be one rectangle: sequence parallelism gives a rank its run of each sample.
**
**     local rows    0 .. piece_rows - 1 | piece_rows .. 2 piece_rows - 1 | ..
**     global rows   row_first + ..      | row_first + piece_stride + ..  | ..
**
** `rows` local rows of `pitch` elements in memory, of which `cols` count: what fills a shard up to
** a multiple is left out. `sampled`: of the 64 runs of 64 elements that 4,096 neighbours of the
** logical tensor make, one is taken; its number hangs on the name and on which 4,096 they are, so
** that every layout takes the same elements. */
typedef struct tl_hash_part {
  uint64_t name;
  int64_t rows, cols, pitch;
  int64_t row_first, piece_rows, piece_stride;
  int64_t col_first, cols_full;
  int32_t sampled;
} tl_hash_part;

/* The share of local rows first .. first + count - 1. The sum over all rows is the shard's share;
** where nothing is sampled, tl_hash_shard's. */
uint64_t tl_hash_rows(const tl_hash_part *part, const void *data, tl_dtype dtype, int64_t first,
                      int64_t count);

#endif
