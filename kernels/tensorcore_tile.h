/* tensorcore_tile.h - the vector versions of tl_tensorcore_tile, private to tensorcore*.c.
**
** For a step that is not `wide` (so exponents of factors are at most 63) and whose largest exponent
** lies in -100 .. 127, f32 arithmetic on lanes is exact where it matters:
**
**   product a * b            exact, or less than 2^-126 and then cut away
**   times 2^(25 - largest)   exact, or less than 1 and then cut away
**   convert toward zero      the aligned term; the sum of 16 of them is less than 2^31
**
** Every other lane is found by its exponent and takes tl_tensorcore_step, but for lanes where C is
** zero and every product below 2^-160: they are +0 both ways, and padding is full of them.
*/
#ifndef TL_TENSORCORE_TILE_H
#define TL_TENSORCORE_TILE_H

#include "tensorcore.h"

enum {
  /* Exponent fields (exponent + 127) of the largest exponents that lanes can do. */
  TL_TENSORCORE_FIELD_LOW = 127 - 100,
  TL_TENSORCORE_FIELD_HIGH = 127 + 127,
  /* A factor from here on makes a step `wide`. */
  TL_TENSORCORE_FIELD_WIDE = 127 + 64,
  /* The packed exponent of a product below 2^-160. */
  TL_TENSORCORE_NEGLIGIBLE = (127 - 160) * 128
};

/* Lanes `bad` (a bit each) of one row, columns from `column` on, by the specification: `c` holds
** what the step started from, `result` gets what it ends with. */
void tl_tensorcore_repair(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b, int32_t row,
                          int32_t column, uint32_t bad, const float *c, float *result);

/* Every element of one step by tl_tensorcore_step. */
void tl_tensorcore_step_tile(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                             int32_t rows, int32_t columns, float *c, int64_t stride);

void tl_tensorcore_tile_avx2(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                             int64_t steps, int32_t rows, int32_t columns, float *c, int64_t stride,
                             int32_t resume);
void tl_tensorcore_tile_avx512(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b,
                               int64_t steps, int32_t rows, int32_t columns, float *c,
                               int64_t stride, int32_t resume);

/* Packing, where one of the strides is 1. */
void tl_tensorcore_pack_rows_avx512(tl_tensorcore_source source, int32_t count, int64_t k_count,
                                    int64_t position, tl_tensorcore_rows *out);
void tl_tensorcore_pack_columns_avx512(tl_tensorcore_source source, int32_t count, int64_t k_count,
                                       int64_t position, tl_tensorcore_columns *out);

#endif
