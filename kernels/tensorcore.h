/* tensorcore.h - what one step of a bf16 tensor core computes, bit for bit, on a CPU.
**
**   D = C + a0*b0 + a1*b1 + ... + a15*b15        a, b bf16    C, D f32    "sm_90" (Hopper)
**
**                   <-- 25 bits below the largest exponent -->|
**   C               .......1xxxxxxxxxxxxxxxxxxxxxxx           |
**   a0*b0           1xxxxxxxxxxxxxxx                          |
**   a1*b1                               1xxxxxxxxxxx[xxxx]    | bits beyond are cut toward zero
**                   ------------------------------------------
**   sum             exact; then cut toward zero to an f32
**
** 1. A product is exact. Its exponent is e(a) + e(b), not normalised: 1.5 * 1.5 keeps exponent 0. A
**    subnormal number has exponent -126.
** 2. Products with a zero factor and a zero C take no part at all: a step of zeros changes no bit
**    (but -0 becomes +0, see 4).
** 3. The largest exponent of the others, but never less than -133, sets the 25 bits.
** 4. A zero result is +0, also from C = -0.
** 5. A NaN, 0 * infinity, or infinities of both signs give the NaN 0x7fffffff; else an infinity
**    stands. A finite sum of 2^128 or more is an infinity.
**
** A dot product is a chain of such steps over ascending k, the last one filled up with zeros. Only
** the order of steps decides its bits: a chain may be stored as f32 and resumed at any step.
**
** Vector code works on packed operands, one struct for each step:
**
**   tl_tensorcore_rows      16 k of up to 8 rows of A      (of which a tile takes 6 at a time)
**   tl_tensorcore_columns   16 k of 32 columns of B
**
** Beside each value stands its exponent, in units of 128 in 16 bits, so that a saturating addition
** of two 16-bit lanes makes 128 * (e(a) + e(b) + 127), which is the upper half of the f32 with that
** exponent. Zeros have an exponent below all others. A step that holds an infinity, a NaN or a
** magnitude of 2^64 or more is marked `wide` and goes element by element.
*/
#ifndef TL_TENSORCORE_H
#define TL_TENSORCORE_H

#include <stdint.h>

#include "../runtime/dtype.h"

enum {
  TL_TENSORCORE_STEP = 16,    /* k in a step */
  TL_TENSORCORE_ROWS = 6,     /* most rows of a tile */
  TL_TENSORCORE_COLUMNS = 32, /* columns of a tile */
  TL_TENSORCORE_SLOTS = 8     /* rows that a packed step has room for */
};

typedef struct tl_tensorcore_rows {
  float value[TL_TENSORCORE_STEP][TL_TENSORCORE_SLOTS];       /* (k, row) */
  uint32_t exponent[TL_TENSORCORE_STEP][TL_TENSORCORE_SLOTS]; /* (k, row): 128 e, twice */
  uint32_t wide;
  uint32_t unused[15];
} __attribute__((aligned(64))) tl_tensorcore_rows;

typedef struct tl_tensorcore_columns {
  float value[TL_TENSORCORE_STEP][TL_TENSORCORE_COLUMNS]; /* (k, column) */
  /* (k, j): 128 (e + 127) of column j in the lower half, of column j + 16 in the upper one */
  uint32_t exponent[TL_TENSORCORE_STEP][TL_TENSORCORE_COLUMNS / 2];
  uint32_t wide;
  uint32_t unused[15];
} __attribute__((aligned(64))) tl_tensorcore_columns;

/* bf16 numbers where they lie: (i, k) is data[i * stride + k * k_stride], i a row or a column. */
typedef struct tl_tensorcore_source {
  const uint16_t *data;
  int64_t stride, k_stride;
} tl_tensorcore_source;

/* One step, element by element: the specification. a and b hold 16 bf16 values widened to f32. */
float tl_tensorcore_step(const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                         float c);

/* Makes `steps` steps all zero. Needed before packing: marks gather, and all of a step counts. */
void tl_tensorcore_clear_rows(tl_tensorcore_rows *out, int64_t steps);
void tl_tensorcore_clear_columns(tl_tensorcore_columns *out, int64_t steps);

/* Packs k = 0 .. k_count - 1 of rows (columns) 0 .. count - 1 at positions `position` .. of the
** steps in `out`; position p is k p % 16 of step p / 16. Rows are at most 8, columns at most 32. */
void tl_tensorcore_pack_rows(tl_tensorcore_source source, int32_t count, int64_t k_count,
                             int64_t position, tl_tensorcore_rows *out);
void tl_tensorcore_pack_columns(tl_tensorcore_source source, int32_t count, int64_t k_count,
                                int64_t position, tl_tensorcore_columns *out);

/* c (rows, columns), rows `stride` apart: the chain of `steps` steps, from +0, or from what c holds
** when `resume` is set. rows <= TL_TENSORCORE_ROWS. Takes the version of this processor's level
** (simd.h): integers for portable, 8 lanes for avx2, 16 for avx512, always the same bits. */
void tl_tensorcore_tile(const tl_tensorcore_rows *a, const tl_tensorcore_columns *b, int64_t steps,
                        int32_t rows, int32_t columns, float *c, int64_t stride, int32_t resume);

#endif
