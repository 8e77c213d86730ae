/* gemm_plan.h - how one product is cut into tasks and where things are kept; private to gemm/.
**
**             tile_columns
**           +-----------+-----------+        a tile of an output = a task, tasks count down first
** row_tiles | task 0    | task 3    |
**           +-----------+-----------+        tiles end on whole panels of the engine
**           | task 1    | task 4    |
**           +-----------+-----------+
**
** None of this changes a bit.
*/
#ifndef TL_GEMM_PLAN_H
#define TL_GEMM_PLAN_H

#include "gemm_core.h"

typedef struct tl_gemm_plan {
  const tl_gemm *gemm;
  const tl_gemm_engine *engine;
  tl_team *team;
  int64_t tasks, row_tiles, tile_columns;
  int32_t whole;                   /* all k of all leaves is packed at once */
  int32_t direct;                  /* whole, and a chain may run in the output itself */
  int64_t depth;                   /* positions of k in a packed panel */
  int64_t positions;               /* whole: of each leaf */
  int64_t block_panels;            /* panels of A that are packed at a time */
  int64_t stack;                   /* leaves that wait for a partner, and the current one */
  int64_t row_bytes, column_bytes; /* of a packed panel */
  int64_t row_leaf_bytes, column_leaf_bytes; /* whole: of the panels of a leaf */
  int64_t a_bytes, b_bytes;                  /* of packed memory */
} tl_gemm_plan;

static inline int64_t tl_gemm_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tl_gemm_quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t tl_gemm_round_up(int64_t a, int64_t unit) {
  return tl_gemm_quotient_up(a, unit) * unit;
}
/* Piece i of `pieces` is border(i) .. border(i + 1) - 1: lengths differ by at most one. */
static inline int64_t tl_gemm_border(int64_t count, int64_t pieces, int64_t i) {
  return count * i / pieces;
}
static inline int64_t tl_gemm_columns(const tl_gemm *gemm, int32_t part) {
  return tl_view_row(&gemm->out[part]);
}
/* Floats from row to row of a tile of C in memory: not a power of two, or rows share cache sets. */
static inline int64_t tl_gemm_c_stride(const tl_gemm_engine *engine, int64_t columns) {
  return tl_gemm_round_up(columns, engine->columns) + 16;
}

void tl_gemm_make_plan(const tl_gemm *gemm, tl_team *team, tl_gemm_plan *out);
tl_gemm_tile tl_gemm_find_tile(const tl_gemm_plan *plan, int64_t task);

#endif
