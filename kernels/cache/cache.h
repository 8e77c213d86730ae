/* cache.h - keys and values of earlier tokens in pages, and attention over them.
** This text is the specification.
**
**   request   positions 0 .. 15      16 .. 31       32 .. 40          page: B = 16 positions
**             page 7 of the pool     page 2         page 9            table[request] = 7, 2, 9, ..
**
**   keys    (P, G, w, B)    of a page and head: channels, in each the positions side by side
**   values  (P, B, G, x)    of a page: positions, each as attention's v has it
**
**   cache_write       k (T, G, w), v (T, G, x), requests (T) i32, positions (T) i32,
**                     table (N, M) i32 -> keys, values
**   attention_cached  q (T, H, w), keys, values, requests, positions, table -> o (T, H, x)
**   rope_rows         elementwise.h: rope at positions that are given
**
** P pages of B positions, N requests of at most M pages, T rows of any requests in any order, H
** query heads, G key/value heads, w and x up to 256. k, v, q and the pools have one dtype, f32 or
** bf16; o may be f32 or bf16. Row t is position p = positions[t] of request n = requests[t]; its
** place is entry p mod B of page table[n, p div B]. A row with n < 0 is no row: nothing is written
** for it, and its o is +0.
**
** cache_write copies bits. Other elements of the pools stay as they are.
**
** attention_cached gives row t the bits that row p of attention (attention.h) has in a segment
** whose keys and values are those of request n, positions 0 .. p: the same blocks of kv_block keys
** and parts of `split` keys from position 0, the same chains, the same merges, one rounding. Pages
** only say where a key lies: neither B, nor the order of pages, nor the rows and requests beside it
** are part of any sum. So a row that is decoded alone equals the row of a whole prompt, and keys
** that another request has written (a shared prefix) count like its own.
**
** Errors: shapes and dtypes that do not fit; numbers as in attention.h; requests from N on;
** positions below 0 or from M B on; a page below 0 or from P on where a row reads or writes it.
*/
#ifndef TL_CACHE_H
#define TL_CACHE_H

#include "../op.h"

typedef struct tl_cache_sizes {
  int64_t rows, kv_heads, width, value_width;
  int64_t pages, page; /* of the pools; positions of a page */
  int64_t requests, pages_max;
  const int32_t *request, *position, *table;
  tl_dtype dtype;
} tl_cache_sizes;

tl_status tl_host_cache_write(const tl_call *call);
tl_status tl_host_attention_cached(const tl_call *call);

/* Shapes and dtypes (cache_check.c); no operand is read, they may lie on a GPU. */
tl_status tl_cache_write_check(const tl_call *call, tl_cache_sizes *out);
tl_status tl_attention_cached_check(const tl_call *call, tl_cache_sizes *out);

/* The numbers in requests, positions and table: what the host alone looks at. `all`: of every page
** up to the row's own, not of that one only. */
tl_status tl_cache_check_rows(const char *op, const tl_cache_sizes *sizes, int all);

#endif
