/* gemm_engines.c - the choice of an engine, and the two that are plain C. */
#include <math.h>
#include <string.h>

#include "../simd.h"
#include "../tensorcore.h"
#include "gemm_core.h"

/* ---- f32, any processor: 4 x 8 outputs ---- */

enum { ROWS = 4, COLUMNS = 8 };

void tl_gemm_pack_f32(tl_gemm_source source, int32_t count, int32_t width, int64_t k_count,
                      float *out) {
  const float *data = source.data;
  for (int64_t k = 0; k < k_count; k++, out += width) {
    for (int32_t i = 0; i < count; i++) out[i] = data[i * source.stride + k * source.k_stride];
    for (int32_t i = count; i < width; i++) out[i] = 0.0f;
  }
}

static void pack_rows_f32(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                          void *panel) {
  tl_gemm_pack_f32(source, count, count, k_count, (float *)panel + position * count);
}

static void pack_columns_f32(tl_gemm_source source, int32_t count, int64_t k_count,
                             int64_t position, void *panel) {
  tl_gemm_pack_f32(source, count, COLUMNS, k_count, (float *)panel + position * COLUMNS);
}

static void tile_f32(const void *a, const void *b, int64_t positions, int32_t rows, int32_t columns,
                     float *c, int64_t stride, tl_gemm_start start) {
  const float *left = a, *right = b;
  float sum[ROWS][COLUMNS] = {{0}};
  const size_t bytes = sizeof *c * (size_t)columns;
  if (start == TL_GEMM_RESUME)
    for (int32_t r = 0; r < rows; r++) memcpy(sum[r], c + r * stride, bytes);
  for (int64_t k = 0; k < positions; k++, left += rows, right += COLUMNS)
    for (int32_t r = 0; r < rows; r++)
      for (int j = 0; j < COLUMNS; j++) sum[r][j] = fmaf(left[r], right[j], sum[r][j]);
  for (int32_t r = 0; r < rows; r++)
    for (int32_t j = 0; j < columns; j++) {
      float *out = &c[r * stride + j];
      *out = start == TL_GEMM_ADD ? *out + sum[r][j] : sum[r][j];
    }
}

const tl_gemm_engine tl_gemm_f32_portable = {.dtype = TL_F32,
                                             .rows = ROWS,
                                             .columns = COLUMNS,
                                             .step = 1,
                                             .row_step_bytes = ROWS * 4,
                                             .column_step_bytes = COLUMNS * 4,
                                             .pack_rows = pack_rows_f32,
                                             .pack_columns = pack_columns_f32,
                                             .tile = tile_f32};

/* ---- bf16: tensorcore.h has the versions ---- */

static void clear_rows_bf16(void *panel, int64_t positions) {
  tl_tensorcore_clear_rows(panel, positions / TL_TENSORCORE_STEP);
}

static void clear_columns_bf16(void *panel, int64_t positions) {
  tl_tensorcore_clear_columns(panel, positions / TL_TENSORCORE_STEP);
}

static void pack_rows_bf16(tl_gemm_source source, int32_t count, int64_t k_count, int64_t position,
                           void *panel) {
  const tl_tensorcore_source s = {source.data, source.stride, source.k_stride};
  tl_tensorcore_pack_rows(s, count, k_count, position, panel);
}

static void pack_columns_bf16(tl_gemm_source source, int32_t count, int64_t k_count,
                              int64_t position, void *panel) {
  const tl_tensorcore_source s = {source.data, source.stride, source.k_stride};
  tl_tensorcore_pack_columns(s, count, k_count, position, panel);
}

static void tile_bf16(const void *a, const void *b, int64_t positions, int32_t rows,
                      int32_t columns, float *c, int64_t stride, tl_gemm_start start) {
  const int64_t steps = positions / TL_TENSORCORE_STEP;
  if (start != TL_GEMM_ADD) {
    tl_tensorcore_tile(a, b, steps, rows, columns, c, stride, start == TL_GEMM_RESUME);
    return;
  }
  float sum[TL_TENSORCORE_ROWS * TL_TENSORCORE_COLUMNS];
  tl_tensorcore_tile(a, b, steps, rows, columns, sum, TL_TENSORCORE_COLUMNS, 0);
  for (int32_t r = 0; r < rows; r++)
    tl_gemm_add(c + r * stride, sum + r * TL_TENSORCORE_COLUMNS, columns);
}

const tl_gemm_engine tl_gemm_bf16 = {.dtype = TL_BF16,
                                     .rows = TL_TENSORCORE_ROWS,
                                     .columns = TL_TENSORCORE_COLUMNS,
                                     .step = TL_TENSORCORE_STEP,
                                     .row_step_bytes = sizeof(tl_tensorcore_rows),
                                     .column_step_bytes = sizeof(tl_tensorcore_columns),
                                     .clear_rows = clear_rows_bf16,
                                     .clear_columns = clear_columns_bf16,
                                     .pack_rows = pack_rows_bf16,
                                     .pack_columns = pack_columns_bf16,
                                     .tile = tile_bf16};

const tl_gemm_engine *tl_gemm_engine_for(tl_dtype dtype) {
  if (dtype == TL_BF16) return &tl_gemm_bf16;
#if defined(__x86_64__)
  if (tl_simd_level() == TL_SIMD_AVX512) return &tl_gemm_f32_avx512;
  if (tl_simd_level() == TL_SIMD_AVX2) return &tl_gemm_f32_avx2;
#endif
  return &tl_gemm_f32_portable;
}
