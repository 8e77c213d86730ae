/* gemm_core.c - tasks, blocks of k, leaves: everything that is the same for all engines.
**
** A task computes one tile of one output, all leaves of it. Its worker's scratch memory holds
**
**   | panels of A | panels of B | C of pending leaves: a stack |
**
** Leaves are added like a binary counter: after leaf j, as many pairs on top of the stack are added
** as j has trailing ones. That is the tree ((l0 + l1) + (l2 + l3)) + ... .
*/
#include "gemm_core.h"

#include <assert.h>
#include <string.h>

enum {
  DEPTH = TL_GEMM_DEPTH,
  BLOCK_PANELS = 16,     /* panels of A that are packed at a time */
  TILE_ROWS_MAX = 448,
  TILE_COLUMNS_MAX = 512,
  TILE_ROWS_MIN = 96,    /* flatter tiles pack B too often; then columns are split further */
  TASKS_PER_WORKER = 2
};

/* How outputs are cut into tiles. */
typedef struct plan {
  const tl_gemm *gemm;
  const tl_gemm_engine *engine;
  tl_team *team;
  int64_t row_tiles, tile_columns; /* tiles along rows; widest tile */
  int32_t direct;                  /* chains run in the output itself */
} plan;

typedef struct tile {
  int32_t part;
  int64_t row, rows, column, columns;
} tile;

/* A place inside a leaf's runs. */
typedef struct place {
  int64_t run, offset;
} place;

typedef struct memory {
  char *a, *b;
  float *c;
  int64_t c_stride, c_count; /* of one leaf's tile */
} memory;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t unit) { return quotient_up(a, unit) * unit; }

/* ---- packing one block of k ---- */

/* The next stretch of k of a leaf that fits into a block, at *position of it. Returns its length and
** moves *place and *position past it; 0 when the block is full or the leaf has ended. */
static int64_t next_stretch(const plan *p, int32_t part, int64_t leaf, place *at, int64_t *position,
                            tl_gemm_run *out) {
  const tl_gemm *g = p->gemm;
  while (at->run < g->runs) {
    g->run(g, part, leaf, at->run, out);
    if (at->offset == out->count) {
      *at = (place){at->run + 1, 0};
      if (g->run_is_padded) *position = round_up(*position, p->engine->step);
      continue;
    }
    const int64_t count = least(out->count - at->offset, DEPTH - *position);
    const int64_t bytes = tl_dtype_bytes(g->dtype) * at->offset;
    out->a.data = (const char *)out->a.data + bytes * out->a.k_stride;
    out->b.data = (const char *)out->b.data + bytes * out->b.k_stride;
    at->offset += count;
    *position += count;
    return count;
  }
  return 0;
}

static tl_gemm_source moved(tl_gemm_source source, int64_t items, tl_dtype dtype) {
  source.data = (const char *)source.data + items * source.stride * tl_dtype_bytes(dtype);
  return source;
}

/* Panel i of `panels` has the rows border(i) .. border(i + 1) - 1: lengths differ by at most one. */
static int64_t border(int64_t rows, int64_t panels, int64_t i) { return rows * i / panels; }

/* Packs a block of B for the tile's columns; returns its positions and moves *at past it. */
static int64_t pack_columns(const plan *p, const tile *t, int64_t leaf, place *at, char *panels) {
  const tl_gemm_engine *e = p->engine;
  const int64_t count = quotient_up(t->columns, e->columns);
  if (e->clear_columns != NULL)
    for (int64_t i = 0; i < count; i++) e->clear_columns(panels + i * e->column_bytes, DEPTH);
  tl_gemm_run run;
  int64_t position = 0;
  for (int64_t k; (k = next_stretch(p, t->part, leaf, at, &position, &run)) > 0;)
    for (int64_t i = 0; i < count; i++) {
      const int64_t column = i * e->columns;
      e->pack_columns(moved(run.b, t->column + column, e->dtype),
                      (int32_t)least(t->columns - column, e->columns), k, position - k,
                      panels + i * e->column_bytes);
    }
  return round_up(position, e->step);
}

/* Packs a block of A for rows row .. row + rows - 1. */
static void pack_rows(const plan *p, const tile *t, int64_t leaf, place at, int64_t row,
                      int64_t rows, char *panels) {
  const tl_gemm_engine *e = p->engine;
  const int64_t count = quotient_up(rows, e->rows);
  if (e->clear_rows != NULL)
    for (int64_t i = 0; i < count; i++) e->clear_rows(panels + i * e->row_bytes, DEPTH);
  tl_gemm_run run;
  int64_t position = 0;
  for (int64_t k; (k = next_stretch(p, t->part, leaf, &at, &position, &run)) > 0;)
    for (int64_t i = 0; i < count; i++) {
      const int64_t first = border(rows, count, i), end = border(rows, count, i + 1);
      e->pack_rows(moved(run.a, row + first, e->dtype), (int32_t)(end - first), k, position - k,
                   panels + i * e->row_bytes);
    }
}

/* ---- one tile ---- */

/* c (rows of the block, columns of the tile) from packed panels. */
static void multiply(const plan *p, const tile *t, const memory *m, int64_t rows, int64_t positions,
                     float *c, int64_t stride, int32_t resume) {
  const tl_gemm_engine *e = p->engine;
  const int64_t count = quotient_up(rows, e->rows);
  for (int64_t j = 0; j * e->columns < t->columns; j++) {
    const int32_t columns = (int32_t)least(t->columns - j * e->columns, e->columns);
    for (int64_t i = 0; i < count; i++) {
      const int64_t first = border(rows, count, i), end = border(rows, count, i + 1);
      e->tile(m->a + i * e->row_bytes, m->b + j * e->column_bytes, positions,
              (int32_t)(end - first), columns, c + first * stride + j * e->columns, stride, resume);
    }
  }
}

/* The chain of one leaf. */
static void compute_leaf(const plan *p, const tile *t, const memory *m, int64_t leaf, float *c,
                         int64_t stride, int32_t resume) {
  const int64_t block_rows = (int64_t)BLOCK_PANELS * p->engine->rows;
  const int64_t blocks = quotient_up(t->rows, block_rows);
  place at = {0, 0};
  for (;;) {
    const place start = at;
    const int64_t positions = pack_columns(p, t, leaf, &at, m->b);
    if (positions == 0) break;
    for (int64_t i = 0; i < blocks; i++) {
      const int64_t first = border(t->rows, blocks, i), end = border(t->rows, blocks, i + 1);
      pack_rows(p, t, leaf, start, t->row + first, end - first, m->a);
      multiply(p, t, m, end - first, positions, c + first * stride, stride, resume);
    }
    resume = 1;
  }
  if (resume) return;
  for (int64_t r = 0; r < t->rows; r++)
    memset(c + r * stride, 0, sizeof *c * (size_t)t->columns);
}

/* Leaves into a stack of tiles; the sum ends at the bottom, m->c. */
static void compute_tree(const plan *p, const tile *t, const memory *m) {
  int64_t top = 0;
  for (int64_t leaf = 0; leaf < p->gemm->leaves; leaf++) {
    compute_leaf(p, t, m, leaf, m->c + top * m->c_count, m->c_stride, 0);
    for (int64_t pairs = leaf; pairs & 1; pairs >>= 1) {
      top--;
      for (int64_t r = 0; r < t->rows; r++) {
        float *sum = m->c + top * m->c_count + r * m->c_stride;
        tl_gemm_add(sum, sum + m->c_count, t->columns);
      }
    }
    top++;
  }
}

/* ---- tiles and tasks ---- */

static int64_t columns_of(const tl_gemm *g, int32_t part) { return tl_view_row(&g->out[part]); }

/* Tile `index` of all parts, row tiles fastest; its borders fall on whole panels. */
static tile find_tile(const plan *p, int64_t index) {
  const tl_gemm *g = p->gemm;
  tile t = {0, 0, 0, 0, 0};
  int64_t across = index / p->row_tiles;
  const int64_t down = index % p->row_tiles;
  for (; across >= quotient_up(columns_of(g, t.part), p->tile_columns); t.part++)
    across -= quotient_up(columns_of(g, t.part), p->tile_columns);
  const int64_t columns = columns_of(g, t.part), unit = p->engine->columns;
  const int64_t tiles = quotient_up(columns, p->tile_columns);
  t.column = border(quotient_up(columns, unit), tiles, across) * unit;
  t.columns = least(border(quotient_up(columns, unit), tiles, across + 1) * unit, columns) - t.column;
  t.row = border(g->rows, p->row_tiles, down);
  t.rows = border(g->rows, p->row_tiles, down + 1) - t.row;
  return t;
}

static memory carve(const plan *p, const tile *t, char *scratch) {
  const tl_gemm_engine *e = p->engine;
  memory m;
  m.a = scratch;
  m.b = m.a + BLOCK_PANELS * e->row_bytes;
  m.c = (float *)(m.b + quotient_up(t->columns, e->columns) * e->column_bytes);
  m.c_stride = round_up(t->columns, e->columns);
  m.c_count = t->rows * m.c_stride;
  return m;
}

static void run_task(void *context, int64_t index, int32_t worker) {
  const plan *p = context;
  const tl_gemm *g = p->gemm;
  const tile t = find_tile(p, index);
  const tl_view *out = &g->out[t.part];
  const int64_t stride = columns_of(g, t.part);
  const memory m = carve(p, &t, tl_team_scratch(p->team, worker));
  if (p->direct) {
    float *c = (float *)out->data + t.row * stride + t.column;
    compute_leaf(p, &t, &m, 0, c, stride, g->start == TL_GEMM_RESUME);
    return;
  }
  compute_tree(p, &t, &m);
  const tl_view *bias = g->bias == NULL ? NULL : &g->bias[t.part];
  for (int64_t r = 0; r < t.rows; r++) {
    const float *c = m.c + r * m.c_stride;
    if (g->start == TL_GEMM_ADD) {
      tl_gemm_add((float *)out->data + (t.row + r) * stride + t.column, c, t.columns);
    } else {
      tl_gemm_store(c, bias, out, t.row + r, t.column, t.columns);
    }
  }
}

static int64_t column_tiles(const tl_gemm *g, int64_t tile_columns) {
  int64_t count = 0;
  for (int32_t i = 0; i < g->parts; i++) count += quotient_up(columns_of(g, i), tile_columns);
  return count;
}

static int64_t common_divisor(int64_t a, int64_t b) { return b == 0 ? a : common_divisor(b, a % b); }

static int is_direct(const tl_gemm *g) {
  for (int32_t i = 0; i < g->parts; i++)
    if (g->out[i].dtype != TL_F32) return 0;
  return g->leaves == 1 && g->bias == NULL && g->start != TL_GEMM_ADD;
}

/* Tiles as large as scratch memory allows, yet enough of them for the team, and as many as makes
** each worker's share equal. */
static plan make_plan(const tl_gemm *g, tl_team *team) {
  plan p = {g, tl_gemm_engine_for(g->dtype), team, 1, TILE_COLUMNS_MAX, is_direct(g)};
  const tl_gemm_engine *e = p.engine;
  const int64_t workers = tl_team_workers(team);
  const int64_t tasks = workers == 1 ? 1 : TASKS_PER_WORKER * workers;
  while (p.tile_columns > e->columns && g->rows < TILE_ROWS_MIN * tasks &&
         column_tiles(g, p.tile_columns) < tasks)
    p.tile_columns = round_up(p.tile_columns / 2, e->columns);
  const int64_t across = column_tiles(g, p.tile_columns);
  int64_t stack = 1; /* tiles that wait for a partner, and the current one */
  while (1ll << (stack - 1) < g->leaves) stack++;
  const int64_t room = TL_SCRATCH_BYTES - BLOCK_PANELS * e->row_bytes -
                       quotient_up(p.tile_columns, e->columns) * e->column_bytes;
  const int64_t c_row = stack * round_up(p.tile_columns, e->columns) * (int64_t)sizeof(float);
  int64_t rows_max = TILE_ROWS_MAX;
  if (!p.direct) rows_max = least(rows_max, room / c_row);
  assert(rows_max >= 1);
  p.row_tiles = quotient_up(g->rows, rows_max);
  if (p.row_tiles * across < tasks) p.row_tiles = quotient_up(tasks, across);
  p.row_tiles = round_up(p.row_tiles, workers / common_divisor(across, workers));
  if (p.row_tiles > g->rows) p.row_tiles = g->rows;
  return p;
}

void tl_gemm_compute(const tl_gemm *gemm, tl_team *team) {
  if (gemm->rows == 0 || column_tiles(gemm, 1) == 0) return; /* nothing to write */
  plan p = make_plan(gemm, team);
  tl_team_for(team, p.row_tiles * column_tiles(gemm, p.tile_columns), run_task, &p);
}
