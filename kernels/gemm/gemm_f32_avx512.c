/* gemm_f32_avx512.c - f32 with 32 registers of 16 lanes: 14 x 32 outputs at a time.
**
** 28 registers accumulate, 2 hold a row of B, 1 holds an element of A: every output has exactly one
** accumulator, so the order of its sum is that of k.
*/
#include "gemm_core.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "../simd.h"
#include "../transpose.h"

enum { ROWS = 14, COLUMNS = 32, LANES = 16 };

/* `rows` and `vectors` are constants where this is used; `last` masks the last vector of a row. */
TL_TARGET_AVX512 TL_INLINE void tile_body(const float *a, const float *b, int64_t positions,
                                          float *c, int64_t stride, __mmask16 last,
                                          tl_gemm_start start, const int rows, const int vectors) {
  __m512 sum[ROWS][2];
#pragma GCC unroll 14
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) {
      const __mmask16 mask = v == vectors - 1 ? last : (__mmask16)0xffff;
      sum[r][v] = start == TL_GEMM_RESUME ? _mm512_maskz_loadu_ps(mask, c + r * stride + LANES * v)
                                          : _mm512_setzero_ps();
    }
  for (int64_t k = 0; k < positions; k++, a += rows, b += COLUMNS) {
    __m512 right[2];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) right[v] = _mm512_load_ps(b + LANES * v);
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++) {
      const __m512 left = _mm512_set1_ps(a[r]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; v++) sum[r][v] = _mm512_fmadd_ps(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; v++) {
      const __mmask16 mask = v == vectors - 1 ? last : (__mmask16)0xffff;
      float *out = c + r * stride + LANES * v;
      if (start == TL_GEMM_ADD)
        sum[r][v] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), sum[r][v]);
      _mm512_mask_storeu_ps(out, mask, sum[r][v]);
    }
}

#define TILE(rows, vectors)                                                                        \
  TL_TARGET_AVX512 static void tile_##rows##_##vectors(                                            \
      const float *a, const float *b, int64_t positions, float *c, int64_t stride, __mmask16 last, \
      tl_gemm_start start) {                                                                       \
    tile_body(a, b, positions, c, stride, last, start, rows, vectors);                             \
  }
#define TILES(rows) TILE(rows, 1) TILE(rows, 2)
/* clang-format off */
TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7)
TILES(8) TILES(9) TILES(10) TILES(11) TILES(12) TILES(13) TILES(14)

typedef void (*tile_version)(const float *, const float *, int64_t, float *, int64_t, __mmask16,
                             tl_gemm_start);
#define ENTRY(rows) {tile_##rows##_1, tile_##rows##_2},
static const tile_version versions[ROWS][2] = {
    ENTRY(1) ENTRY(2) ENTRY(3) ENTRY(4) ENTRY(5) ENTRY(6) ENTRY(7)
    ENTRY(8) ENTRY(9) ENTRY(10) ENTRY(11) ENTRY(12) ENTRY(13) ENTRY(14)};
/* clang-format on */

static void run_tile(const void *a, const void *b, int64_t positions, int32_t rows, int32_t columns,
                     float *c, int64_t stride, tl_gemm_start start) {
  const int32_t vectors = columns > LANES ? 2 : 1, rest = columns - LANES * (vectors - 1);
  versions[rows - 1][vectors - 1](a, b, positions, c, stride, (__mmask16)((1u << rest) - 1), start);
}

/* ---- packing: 16 rows of 16 k are read along k and turned in registers ---- */

/* k along memory: `count` rows (at most 16) at out[k * width]; the other lanes become zero, so 16
** floats are written for each k, ascending: a narrower panel overwrites what it does not want. */
TL_TARGET_AVX512 static void pack_turned(const float *data, int64_t stride, int32_t count,
                                         int64_t width, int64_t k_count, float *out) {
  for (int64_t k = 0; k < k_count; k += LANES) {
    const int64_t length = k_count - k < LANES ? k_count - k : LANES;
    const __mmask16 mask = (__mmask16)((1u << length) - 1);
    __m512 x[LANES];
    for (int32_t i = 0; i < count; i++) __builtin_prefetch(data + (count + i) * stride + k);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
      x[i] = i < count ? _mm512_maskz_loadu_ps(mask, data + i * stride + k) : _mm512_setzero_ps();
    tl_transpose_16(x);
    if (length == LANES) {
#pragma GCC unroll 16
      for (int i = 0; i < LANES; i++) _mm512_storeu_ps(out + (k + i) * width, x[i]);
    } else {
      for (int i = 0; i < length; i++) _mm512_storeu_ps(out + (k + i) * width, x[i]);
    }
  }
}

/* Rows along memory: one or two vectors for each k, whole ones again. */
TL_TARGET_AVX512 static void pack_straight(const float *data, int64_t k_stride, int32_t count,
                                           int64_t width, int64_t k_count, float *out) {
  const __mmask16 first = (__mmask16)(count >= LANES ? 0xffff : (1u << count) - 1);
  const __mmask16 second = (__mmask16)(count <= LANES ? 0 : (1ull << (count - LANES)) - 1);
  for (int64_t k = 0; k < k_count; k++, data += k_stride, out += width) {
    __builtin_prefetch(data + width);
    __builtin_prefetch(data + width + LANES);
    _mm512_storeu_ps(out, _mm512_maskz_loadu_ps(first, data));
    if (width == COLUMNS)
      _mm512_storeu_ps(out + LANES, _mm512_maskz_loadu_ps(second, data + LANES));
  }
}

/* A panel has 16 floats to spare at its end. */
static void pack_rows(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                      void *panel) {
  float *out = (float *)panel + position * count;
  if (source.k_stride == 1) {
    pack_turned(source.data, source.stride, count, count, k_count, out);
  } else {
    pack_straight(source.data, source.k_stride, count, count, k_count, out);
  }
}

static void pack_columns(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                         void *panel) {
  float *out = (float *)panel + position * COLUMNS;
  const float *data = source.data;
  if (source.k_stride != 1) {
    pack_straight(data, source.k_stride, count, COLUMNS, k_count, out);
    return;
  }
  const int32_t half = count < LANES ? count : LANES;
  pack_turned(data, source.stride, half, COLUMNS, k_count, out);
  pack_turned(data + LANES * source.stride, source.stride, count - half, COLUMNS, k_count,
              out + LANES);
}

const tl_gemm_engine tl_gemm_f32_avx512 = {.dtype = TL_F32,
                                           .rows = ROWS,
                                           .columns = COLUMNS,
                                           .step = 1,
                                           .row_step_bytes = ROWS * 4,
                                           .column_step_bytes = COLUMNS * 4,
                                           .pack_rows = pack_rows,
                                           .pack_columns = pack_columns,
                                           .tile = run_tile};
#endif
