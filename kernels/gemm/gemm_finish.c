/* gemm_finish.c - what follows a chain: tree additions, bias, rounding. */
#include <string.h>

#include "../simd.h"
#include "gemm_core.h"

/* Loops of a constant length become vector code; the rest of a row goes one by one. */
enum { LANES = 16 };

/* One row of an output. */
typedef struct row {
  const float *c;
  const float *bias_f32;     /* or NULL */
  const uint16_t *bias_bf16; /* or NULL */
  float *out_f32;            /* or NULL */
  uint16_t *out_bf16;        /* or NULL */
} row;

TL_INLINE void add_body(float *restrict sum, const float *restrict other, int64_t count) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int j = 0; j < LANES; j++) sum[i + j] += other[i + j];
  for (; i < count; i++) sum[i] += other[i];
}
TL_SIMD_VERSIONS(add, (float *restrict sum, const float *restrict other, int64_t count),
                 (sum, other, count))

/* `count` numbers of a row; inlined with a constant count for whole vectors. */
TL_INLINE void store_piece(const row *r, int64_t first, const int count) {
  float value[LANES];
  for (int j = 0; j < count; j++) value[j] = r->c[first + j];
  if (r->bias_f32 != NULL)
    for (int j = 0; j < count; j++) value[j] += r->bias_f32[first + j];
  if (r->bias_bf16 != NULL)
    for (int j = 0; j < count; j++) value[j] += tl_f32_from_bf16(r->bias_bf16[first + j]);
  if (r->out_f32 != NULL)
    for (int j = 0; j < count; j++) r->out_f32[first + j] = value[j];
  if (r->out_bf16 != NULL)
    for (int j = 0; j < count; j++) r->out_bf16[first + j] = tl_bf16_from_f32(value[j]);
}

TL_INLINE void store_body(row r, int64_t stride, int64_t rows, int64_t columns,
                          int64_t out_stride) {
  for (int64_t i = 0; i < rows; i++) {
    int64_t j = 0;
    for (; j + LANES <= columns; j += LANES) store_piece(&r, j, LANES);
    for (; j < columns; j++) store_piece(&r, j, 1);
    r.c += stride;
    if (r.out_f32 != NULL) r.out_f32 += out_stride;
    if (r.out_bf16 != NULL) r.out_bf16 += out_stride;
  }
}
TL_SIMD_VERSIONS(store, (row r, int64_t stride, int64_t rows, int64_t columns, int64_t out_stride),
                 (r, stride, rows, columns, out_stride))

void tl_gemm_add(float *sum, const float *other, int64_t count) { add(sum, other, count); }

void tl_gemm_store(const tl_gemm *gemm, const tl_gemm_tile *tile, const float *c, int64_t stride) {
  const tl_view *out = &gemm->out[tile->part];
  const int64_t width = tl_view_row(out), place = tile->row * width + tile->column;
  row r = {.c = c};
  if (gemm->start == TL_GEMM_ADD) {
    for (int64_t i = 0; i < tile->rows; i++)
      add((float *)out->data + place + i * width, c + i * stride, tile->columns);
    return;
  }
  if (gemm->bias != NULL) {
    const tl_view *bias = &gemm->bias[tile->part];
    if (bias->dtype == TL_F32)
      r.bias_f32 = (const float *)bias->data + tile->column;
    else
      r.bias_bf16 = (const uint16_t *)bias->data + tile->column;
  }
  if (out->dtype == TL_F32)
    r.out_f32 = (float *)out->data + place;
  else
    r.out_bf16 = (uint16_t *)out->data + place;
  store(r, stride, tile->rows, tile->columns, width);
}

void tl_gemm_load(const tl_gemm *gemm, const tl_gemm_tile *tile, float *c, int64_t stride) {
  const tl_view *out = &gemm->out[tile->part];
  const int64_t width = tl_view_row(out);
  const float *data = (const float *)out->data + tile->row * width + tile->column;
  for (int64_t i = 0; i < tile->rows; i++)
    memcpy(c + i * stride, data + i * width, sizeof *c * (size_t)tile->columns);
}
