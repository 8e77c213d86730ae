/* gemm_f32_avx2.c - f32 with 16 registers of 8 lanes: 6 x 16 outputs at a time. */
#include "gemm_core.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "../simd.h"

enum { ROWS = 6, COLUMNS = 16, LANES = 8 };

/* `rows` is a constant where this is used; rows of c have room for 16 columns. */
TL_TARGET_AVX2 TL_INLINE void tile_body(const float *a, const float *b, int64_t positions, float *c,
                                        int64_t stride, tl_gemm_start start, const int rows) {
  __m256 sum[ROWS][2];
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      sum[r][v] = start == TL_GEMM_RESUME ? _mm256_loadu_ps(c + r * stride + LANES * v)
                                          : _mm256_setzero_ps();
  for (int64_t k = 0; k < positions; k++, a += rows, b += COLUMNS) {
    const __m256 right[2] = {_mm256_load_ps(b), _mm256_load_ps(b + LANES)};
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
      const __m256 left = _mm256_broadcast_ss(a + r);
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) sum[r][v] = _mm256_fmadd_ps(left, right[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      float *out = c + r * stride + LANES * v;
      if (start == TL_GEMM_ADD) sum[r][v] = _mm256_add_ps(_mm256_loadu_ps(out), sum[r][v]);
      _mm256_storeu_ps(out, sum[r][v]);
    }
}

#define TILE(rows)                                                                          \
  TL_TARGET_AVX2 static void tile_##rows(const float *a, const float *b, int64_t positions, \
                                         float *c, int64_t stride, tl_gemm_start start) {   \
    tile_body(a, b, positions, c, stride, start, rows);                                     \
  }
/* clang-format off */
TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)

typedef void (*tile_version)(const float *, const float *, int64_t, float *, int64_t,
                             tl_gemm_start);
static const tile_version versions[ROWS] = {tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};
/* clang-format on */

static void run_tile(const void *a, const void *b, int64_t positions, int32_t rows, int32_t columns,
                     float *c, int64_t stride, tl_gemm_start start) {
  if (columns == COLUMNS) {
    versions[rows - 1](a, b, positions, c, stride, start);
    return;
  }
  float edge[ROWS * COLUMNS] = {0}; /* columns past the end are computed and left here */
  const size_t bytes = sizeof *c * (size_t)columns;
  if (start != TL_GEMM_ZERO)
    for (int32_t r = 0; r < rows; r++) memcpy(edge + r * COLUMNS, c + r * stride, bytes);
  versions[rows - 1](a, b, positions, edge, COLUMNS, start);
  for (int32_t r = 0; r < rows; r++) memcpy(c + r * stride, edge + r * COLUMNS, bytes);
}

static void pack_rows(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                      void *panel) {
  tl_gemm_pack_f32(source, count, count, k_count, (float *)panel + position * count);
}

static void pack_columns(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                         void *panel) {
  tl_gemm_pack_f32(source, count, COLUMNS, k_count, (float *)panel + position * COLUMNS);
}

const tl_gemm_engine tl_gemm_f32_avx2 = {.dtype = TL_F32,
                                         .rows = ROWS,
                                         .columns = COLUMNS,
                                         .step = 1,
                                         .row_step_bytes = ROWS * 4,
                                         .column_step_bytes = COLUMNS * 4,
                                         .pack_rows = pack_rows,
                                         .pack_columns = pack_columns,
                                         .tile = run_tile};
#endif
