/* attention_tensorcore.c - the products of attention in steps of a bf16 tensor core.
**
**   dot          A = stream rows, 6 at a time     B = the tile        k = channels
**   accumulate   A = channels, 6 at a time        B = the weights     k = stream rows
*/
#include <string.h>

#include "../simd.h"
#include "../tensorcore.h"
#include "attention.h"
#include "attention_tile.h"

enum { STEP = TL_TENSORCORE_STEP, ROWS = TL_TENSORCORE_ROWS };

_Static_assert(TL_TILE == (int)TL_TENSORCORE_COLUMNS, "a tile is one packed step wide");
_Static_assert(TL_TILE_BYTES >= TL_ATTENTION_WIDTH_MAX / STEP * (int)sizeof(tl_tensorcore_columns),
               "a packed tile holds the widest head");

static int64_t steps_of(int64_t count) { return (count + STEP - 1) / STEP; }

static void pack(tl_rows rows, int64_t count, int64_t channels, void *tile) {
  const tl_tensorcore_source source = {rows.data, rows.stride, 1};
  tl_tensorcore_clear_columns(tile, steps_of(channels));
  tl_tensorcore_pack_columns(source, (int32_t)count, channels, 0, tile);
}

static void dot(tl_rows a, int64_t rows, int64_t channels, const void *tile, tl_tile_row *out) {
  tl_tensorcore_rows packed[TL_ATTENTION_WIDTH_MAX / STEP];
  const int64_t steps = steps_of(channels);
  for (int64_t row = 0; row < rows; row += ROWS) {
    const int32_t count = rows - row < ROWS ? (int32_t)(rows - row) : ROWS;
    const uint16_t *data = (const uint16_t *)a.data + row * a.stride;
    const tl_tensorcore_source source = {data, a.stride, 1};
    tl_tensorcore_clear_rows(packed, steps);
    tl_tensorcore_pack_rows(source, count, channels, 0, packed);
    tl_tensorcore_tile(packed, tile, steps, count, TL_TILE, out[row], TL_TILE, 0);
  }
}

/* 128 rows: what of the stream is packed at a time. */
enum { CHUNK = 8 };

/* bf16 of the weights, 0 outside the band. */
TL_INLINE void round_weights_body(const tl_tile_row *weight, int64_t rows, tl_band band,
                                  uint16_t (*out)[TL_TILE]) {
  for (int64_t row = 0; row < rows; row++) {
    const int64_t first = band.first + row, end = band.end + row;
    const int low = first < 0 ? 0 : first > TL_TILE ? TL_TILE : (int)first;
    const int high = end < 0 ? 0 : end > TL_TILE ? TL_TILE : (int)end;
    for (int lane = 0; lane < TL_TILE; lane++) {
      const uint16_t rounded = tl_bf16_from_f32(weight[row][lane]);
      out[row][lane] = (lane >= low) & (lane < high) ? rounded : 0;
    }
  }
}

TL_SIMD_VERSIONS(round_weights,
                 (const tl_tile_row *weight, int64_t rows, tl_band band, uint16_t (*out)[TL_TILE]),
                 (weight, rows, band, out))

static void accumulate_chunk(tl_rows a, int64_t rows, int64_t channels, const tl_tile_row *weight,
                             tl_band band, tl_tile_row *acc) {
  tl_tensorcore_columns columns[CHUNK];
  tl_tensorcore_rows packed[CHUNK];
  uint16_t rounded[CHUNK * STEP][TL_TILE];
  const tl_tensorcore_source source = {rounded[0], 1, TL_TILE};
  const int64_t steps = steps_of(rows);
  round_weights(weight, rows, band, rounded);
  tl_tensorcore_clear_columns(columns, steps);
  tl_tensorcore_pack_columns(source, TL_TILE, rows, 0, columns);
  for (int64_t channel = 0; channel < channels; channel += ROWS) {
    const int32_t count = channels - channel < ROWS ? (int32_t)(channels - channel) : ROWS;
    const uint16_t *data = (const uint16_t *)a.data + channel;
    const tl_tensorcore_source stream = {data, 1, a.stride};
    tl_tensorcore_clear_rows(packed, steps);
    tl_tensorcore_pack_rows(stream, count, rows, 0, packed);
    tl_tensorcore_tile(packed, columns, steps, count, TL_TILE, acc[channel], TL_TILE, 1);
  }
}

static void accumulate(tl_rows a, int64_t rows, int64_t channels, const tl_tile_row *weight,
                       tl_band band, tl_tile_row *acc) {
  for (int64_t row = 0; row < rows; row += CHUNK * STEP) {
    const int64_t count = rows - row < CHUNK * STEP ? rows - row : CHUNK * STEP;
    const tl_rows part = {(const uint16_t *)a.data + row * a.stride, a.stride};
    const tl_band shifted = {band.first + row, band.end + row};
    accumulate_chunk(part, count, channels, weight + row, shifted, acc);
  }
}

const tl_products *tl_products_bf16(void) {
  static const tl_products products = {.pack = pack, .dot = dot, .accumulate = accumulate};
  return &products;
}
