/* attention_call.h - what the forward and backward kernels share: checked arguments, and tiles.
**
** Tiles are 32 rows of one segment, from the segment's start. A task is 32 rows of the packed
** array and one head, and takes the tiles that begin there, so no list of tiles is needed:
**
**   rows       | task 0          | task 1          | task 2          |
**   segments   [ 0        ][ 1                       ][ 2 ][ 3        ]
**   tiles      a     ......b             c             d    e             b, c of segment 1
*/
#ifndef TL_ATTENTION_CALL_H
#define TL_ATTENTION_CALL_H

#include "attention.h"
#include "attention_tile.h"

typedef struct tl_attention_sizes {
  int64_t rows, heads, kv_heads, width, value_width;
  int64_t segments, used_rows; /* rows of all segments together */
  const int32_t *cu;
  int64_t window; /* 0: none */
  int64_t kv_block, split;
  float scale, factor; /* c of attention.h */
  tl_dtype dtype;
  const tl_products *products;
  const tl_elementwise *elementwise;
} tl_attention_sizes;

/* A tile of `count` rows, `offset` rows into a segment of `length` rows that begins at `start`. */
typedef struct tl_attention_tile {
  int64_t start, length, offset, count, head;
  int32_t worker;
} tl_attention_tile;

typedef void (*tl_attention_visit)(void *context, const tl_attention_tile *tile);

/* Checks q, k, v, cu and the numbers window, kv_block, split, scale, which stand first. No operand
** is read: they may lie on a GPU. Leaves used_rows and the loops empty. */
tl_status tl_attention_describe(const tl_call *call, const tl_view *cu, tl_attention_sizes *out);

/* The same, and the entries of cu. */
tl_status tl_attention_check(const tl_call *call, const tl_view *cu, tl_attention_sizes *out);

/* The outputs of the forward pass; what the backward pass has beside q, k, v and cu. */
tl_status tl_attention_check_forward(const tl_call *call, const tl_attention_sizes *sizes);
tl_status tl_attention_check_backward(const tl_call *call, const tl_attention_sizes *sizes);

/* Calls `visit` for the tiles of each task: `heads` tasks for every 32 rows, longest rows first. */
void tl_attention_for(tl_team *team, const tl_attention_sizes *sizes, int64_t heads,
                      tl_attention_visit visit, void *context);

/* Row `row` of head `head` of a (rows, heads, width) view. */
tl_rows tl_attention_rows(const tl_view *view, int64_t row, int64_t head);

/* acc (width, 32) times `factor` to rows row .. of the view, rounded once. */
void tl_attention_store(const tl_tile_row *acc, const tl_attention_tile *tile, float factor,
                        const tl_view *out);

/* Rows first .. of the view become +0. */
void tl_attention_clear(const tl_view *view, int64_t first);

#endif
