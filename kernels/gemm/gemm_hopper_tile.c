/* gemm_hopper_tile.c - which tile of gemm_hopper_pair.cu a product of gate and up gets. */
#include "gemm_hopper.h"
#include "gemm_hopper_args.h"

enum { ABOVE = 8, ROWS = 256 };

#define PAIR(rows, features) {rows, features, "swiglu_hopper_" #rows "_" #features},
static const tl_gemm_pair_tile tiles[] = {TL_GEMM_PAIRS(PAIR)};
#undef PAIR

static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t count_tiles(const tl_gemm_pair_tile *t, int64_t rows, int64_t columns) {
  return quotient_up(rows, t->rows) * quotient_up(columns, t->features);
}

const tl_gemm_pair_tile *tl_gemm_pair_choose(int64_t rows, int64_t columns,
                                             int64_t multiprocessors) {
  const tl_gemm_pair_tile *best = &tiles[0];
  if (rows <= ABOVE || rows > ROWS) return NULL;
  for (size_t i = 1; i < sizeof tiles / sizeof tiles[0]; i++) {
    const tl_gemm_pair_tile *t = &tiles[i];
    if (rows > best->rows && 4 * count_tiles(t, rows, columns) >= 3 * multiprocessors) best = t;
  }
  return count_tiles(best, rows, columns) <= multiprocessors ? best : NULL;
}
