/* gemm_plan.c - sizes of tiles: large, so that little is packed, but enough for the team. */
#include "gemm_plan.h"

enum {
  WHOLE_MAX = 768,         /* positions of all leaves together */
  BLOCK_BYTES = 256 << 10, /* of packed A: half of a second-level cache */
  TILE_ROWS_MAX = 896,
  TILE_COLUMNS_MAX = 512,
  TILE_ROWS_MIN = 96, /* flatter tiles pack B too often; then columns are split further */
  TASKS_PER_WORKER = 2,
  SMALL_OUTPUTS = 1 << 16 /* up to here one task a worker: every task packs a factor anew */
};

static int64_t column_tiles(const tl_gemm *g, int64_t tile_columns) {
  int64_t count = 0;
  for (int32_t i = 0; i < g->parts; i++)
    count += tl_gemm_quotient_up(tl_gemm_columns(g, i), tile_columns);
  return count;
}

static int64_t all_columns(const tl_gemm *g) { return column_tiles(g, 1); }

static int64_t common_divisor(int64_t a, int64_t b) {
  return b == 0 ? a : common_divisor(b, a % b);
}

/* Positions that a leaf takes in packed memory; counting stops above WHOLE_MAX. */
static int64_t leaf_positions(const tl_gemm *g, const tl_gemm_engine *e, int64_t leaf) {
  int64_t positions = 0;
  for (int64_t i = 0; i < g->runs && positions <= WHOLE_MAX; i++) {
    tl_gemm_run run;
    g->run(g, 0, leaf, i, &run);
    positions += run.count;
    if (g->run_is_padded) positions = tl_gemm_round_up(positions, e->step);
  }
  return tl_gemm_round_up(positions, e->step);
}

/* Whole needs leaves of one length, for f32 panels have no filling up of k. */
static void choose_way(tl_gemm_plan *p) {
  const tl_gemm *g = p->gemm;
  int64_t positions = g->leaves > WHOLE_MAX ? WHOLE_MAX + 1 : leaf_positions(g, p->engine, 0);
  p->whole = positions > 0 && positions <= TL_GEMM_DEPTH && positions * g->leaves <= WHOLE_MAX;
  for (int64_t leaf = 1; leaf < g->leaves && p->whole; leaf++)
    p->whole = leaf_positions(g, p->engine, leaf) == positions;
  p->depth = p->whole ? tl_gemm_round_up(positions, 16) : TL_GEMM_DEPTH;
  p->positions = positions;
  p->direct = p->whole && g->leaves == 1 && g->bias == NULL;
  for (int32_t i = 0; i < g->parts; i++) p->direct &= g->out[i].dtype == TL_F32;
  if (g->start == TL_GEMM_RESUME && !p->direct) p->whole = 0;
}

/* Sizes of packed memory; C gets what is left. Returns the rows of C that fit. */
static int64_t divide_memory(tl_gemm_plan *p) {
  const tl_gemm_engine *e = p->engine;
  const int64_t leaves = p->whole ? p->gemm->leaves : 1;
  p->row_bytes = p->depth / e->step * e->row_step_bytes + 64; /* a packer may write 64 bytes more */
  p->column_bytes = p->depth / e->step * e->column_step_bytes;
  p->block_panels = BLOCK_BYTES / (leaves * p->row_bytes);
  if (p->block_panels < 4) p->block_panels = 4;
  p->row_leaf_bytes = p->block_panels * p->row_bytes;
  p->column_leaf_bytes = tl_gemm_quotient_up(p->tile_columns, e->columns) * p->column_bytes;
  p->a_bytes = leaves * p->row_leaf_bytes;
  p->b_bytes = leaves * p->column_leaf_bytes;
  const int64_t room = TL_SCRATCH_BYTES - p->a_bytes - p->b_bytes;
  const int64_t row = p->stack * tl_gemm_c_stride(e, p->tile_columns) * (int64_t)sizeof(float);
  return room / row;
}

void tl_gemm_make_plan(const tl_gemm *gemm, tl_team *team, tl_gemm_plan *out) {
  tl_gemm_plan p = {.gemm = gemm,
                    .engine = tl_gemm_engine_for(gemm->dtype),
                    .team = team,
                    .tile_columns = TILE_COLUMNS_MAX,
                    .stack = 1};
  *out = p;
  if (gemm->rows == 0 || column_tiles(gemm, 1) == 0) return; /* no tasks: nothing to write */
  while (1ll << (p.stack - 1) < gemm->leaves) p.stack++;
  choose_way(&p);
  const int64_t workers = tl_team_workers(team);
  const int64_t small = gemm->rows * all_columns(gemm) <= SMALL_OUTPUTS;
  const int64_t wanted = workers == 1 || small ? workers : TASKS_PER_WORKER * workers;
  while (p.tile_columns > p.engine->columns && gemm->rows < TILE_ROWS_MIN * wanted &&
         column_tiles(gemm, p.tile_columns) < wanted)
    p.tile_columns = tl_gemm_round_up(p.tile_columns / 2, p.engine->columns);
  const int64_t rows_fit = divide_memory(&p);
  const int64_t rows_max = p.whole ? TILE_ROWS_MAX : tl_gemm_least(TILE_ROWS_MAX, rows_fit);
  const int64_t across = column_tiles(gemm, p.tile_columns);
  p.row_tiles = tl_gemm_quotient_up(gemm->rows, rows_max);
  if (p.row_tiles * across < wanted) p.row_tiles = tl_gemm_quotient_up(wanted, across);
  /* Equal shares. */
  p.row_tiles = tl_gemm_round_up(p.row_tiles, workers / common_divisor(across, workers));
  p.row_tiles = tl_gemm_least(p.row_tiles, gemm->rows);
  p.tasks = p.row_tiles * across;
  *out = p;
}

tl_gemm_tile tl_gemm_find_tile(const tl_gemm_plan *p, int64_t task) {
  const tl_gemm *g = p->gemm;
  const int64_t unit = p->engine->columns, down = task % p->row_tiles;
  int64_t across = task / p->row_tiles, tiles;
  tl_gemm_tile t = {0};
  for (;; t.part++, across -= tiles) {
    tiles = tl_gemm_quotient_up(tl_gemm_columns(g, t.part), p->tile_columns);
    if (across < tiles) break;
  }
  const int64_t columns = tl_gemm_columns(g, t.part), panels = tl_gemm_quotient_up(columns, unit);
  t.column = tl_gemm_border(panels, tiles, across) * unit;
  t.columns = tl_gemm_least(tl_gemm_border(panels, tiles, across + 1) * unit, columns) - t.column;
  t.row = tl_gemm_border(g->rows, p->row_tiles, down);
  t.rows = tl_gemm_border(g->rows, p->row_tiles, down + 1) - t.row;
  return t;
}
