/* panels.c - from rows to panels. */
#include "panels.h"

#include "rows.h"

tl_status tl_panels_fill(const tl_view *matrix, tl_view *panels) {
  const int64_t rows = matrix->shape[0], width = tl_view_row(matrix), count = tl_panels_of(rows);
  TL_TRY(tl_expect("panels", "matrix", matrix, TL_KIND_F32, rows * width));
  TL_TRY(tl_expect("panels", "panels", panels, TL_KIND_F32, count * width * TL_PANEL));
  const float *from = matrix->data;
  float *to = panels->data;
  for (int64_t p = 0; p < count; p++)
    for (int64_t k = 0; k < width; k++)
      for (int64_t j = 0; j < TL_PANEL; j++, to++) {
        const int64_t n = p * TL_PANEL + j;
        *to = n < rows ? from[n * width + k] : 0.0f;
      }
  return TL_OK;
}
