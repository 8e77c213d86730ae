/* attention_tile.h - the inner loops of attention: a tile of 32 rows against a stream of rows.
**
**                 lane 0   1   2  ...  31        a tile: 32 rows of a segment, a column ("lane")
**   stream row 0    .      .   .        .        for each. Forward and dq: lanes are queries,
**              1    .      .   .        .        keys stream by. dk and dv: lanes are keys, queries
**             ..                                 stream by. Both are the same four loops.
**
**   dot          out[row][lane] = chain over channels of a[row][channel] * tile[channel][lane]
**   accumulate   acc[channel][lane] resumes over rows   a[row][channel] * weight[row][lane]
**   softmax, weights: what stands between the two, element by element, down the lanes
**
** A lane never meets another one, so vector code keeps every sum a single chain, and all versions
** of a loop give the same bits. Which lanes see a row is a band: first + row <= lane < end + row.
*/
#ifndef TL_ATTENTION_TILE_H
#define TL_ATTENTION_TILE_H

#include <stdint.h>

enum {
  TL_TILE = 32,                      /* lanes */
  TL_TILE_BYTES = 256 * TL_TILE * 12 /* of a packed tile of any width, in any arithmetic */
};

typedef float tl_tile_row[TL_TILE];

typedef struct tl_band {
  int64_t first, end;
} tl_band;

/* The running softmax of 32 query rows (m, t, l0..l3), and `factor`, what O is multiplied by. */
typedef struct tl_softmax {
  tl_tile_row m, t, l[4], factor;
} tl_softmax;

/* Rows of one head inside a (rows, heads, channels) array: row r starts at data + r * stride. */
typedef struct tl_rows {
  const void *data;
  int64_t stride; /* in elements */
} tl_rows;

/* Loops that depend on the arithmetic. */
typedef struct tl_products {
  /* Lanes count .. 31 become zero. `tile` holds TL_TILE_BYTES. */
  void (*pack)(tl_rows rows, int64_t count, int64_t channels, void *tile);
  void (*dot)(tl_rows a, int64_t rows, int64_t channels, const void *tile, tl_tile_row *out);
  /* Row 0 stands at a multiple of 16 from its segment's start. Weights outside the band are not
  ** used. In bf16 they are rounded first.*/
  void (*accumulate)(tl_rows a, int64_t rows, int64_t channels, const tl_tile_row *weight,
                     tl_band band, tl_tile_row *acc);
} tl_products;

/* Loops in f32 whatever the arithmetic. */
typedef struct tl_elementwise {
  /* One block of keys: scores become weights p (+0 outside the band), `state` moves on. */
  void (*softmax)(tl_tile_row *score, int64_t rows, tl_band band, float c, tl_softmax *state);
  /* acc[channel][lane] *= factor[lane] */
  void (*scale)(tl_tile_row *acc, int64_t channels, const float *factor);
  /* Scores s become p = exp2(s * c - lse), and g becomes p * (g - delta). The numbers lse and
  ** delta belong to lanes, or to rows when by_row is set. */
  void (*weights)(tl_tile_row *score, tl_tile_row *g, int64_t rows, float c, const float *lse,
                  const float *delta, int by_row);
  /* sum[row * channels + channel] resumes over the lanes of the band that are below `count`,
  ** ascending: weight[row][lane] * x[lane * channels + channel]. Channels: a multiple of 16. */
  void (*collect)(const tl_tile_row *weight, int64_t rows, tl_band band, int64_t count,
                  const float *x, int64_t channels, float *sum);
  /* out[lane * stride + channel] = factor * acc[channel][lane] for lanes below `count` */
  void (*unpack)(const tl_tile_row *acc, int64_t count, int64_t channels, float factor, float *out,
                 int64_t stride);
  /* delta[row] = the row rule over do * o, rows of f32 */
  void (*delta)(tl_rows grad, tl_rows o, int64_t rows, int64_t channels, float *delta);
} tl_elementwise;

/* The versions of this processor's level (kernels/simd.h). */
const tl_products *tl_products_f32(void);
const tl_products *tl_products_bf16(void);
const tl_elementwise *tl_tile_elementwise(void);

#endif
