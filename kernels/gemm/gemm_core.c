/* gemm_core.c - tasks, blocks of k, leaves: everything that is the same for all engines.
**
** A task computes one tile of one output, all leaves of it, in one of two ways:
**
**   whole   All k of all leaves fit into packed memory. Each small tile runs through all leaves
**           while it is in the first-level cache, and goes straight to the output.
**   blocks  k comes in blocks of TL_GEMM_DEPTH. C of the leaf waits in memory between blocks, and
**           leaves wait on a stack.
**
** Leaves are added like a binary counter: after leaf j, as many pairs on top of the stack are added
** as j has trailing ones. That is the tree ((l0 + l1) + (l2 + l3)) + ... .
*/
#include "gemm_core.h"

#include <assert.h>
#include <string.h>

#include "gemm_plan.h"

/* A place inside a leaf's runs. */
typedef struct place {
  int64_t run, offset;
} place;

/* A worker's scratch memory, carved for a task. */
typedef struct memory {
  char *a, *b;
  float *c;                  /* a stack of leaves */
  int64_t c_stride, c_count; /* of one leaf, in floats */
} memory;

/* ---- packing a block of k ---- */

/* The next stretch of k of a leaf that fits into a block, from *position of it on. Returns its
** length and moves *at and *position past it; 0 when the block is full or the leaf has ended. */
static int64_t next_stretch(const tl_gemm_plan *p, int32_t part, int64_t leaf, place *at,
                            int64_t *position, tl_gemm_run *out) {
  const tl_gemm *g = p->gemm;
  while (at->run < g->runs) {
    g->run(g, part, leaf, at->run, out);
    if (at->offset == out->count) {
      *at = (place){at->run + 1, 0};
      if (g->run_is_padded) *position = tl_gemm_round_up(*position, p->engine->step);
      continue;
    }
    const int64_t count = tl_gemm_least(out->count - at->offset, p->depth - *position);
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

/* From column `column` on; its panel has all that an engine packs at a time. */
static tl_gemm_source from_column(tl_gemm_source source, int64_t column, tl_dtype dtype) {
  if (source.panel_stride == 0) return moved(source, column, dtype);
  const int64_t items = column / TL_PANEL * source.panel_stride + column % TL_PANEL;
  source.data = (const char *)source.data + items * tl_dtype_bytes(dtype);
  return source;
}

/* Packs a block of B for `columns` columns from `column` of the tile on; returns its positions and
** moves *at past it. */
static int64_t pack_columns(const tl_gemm_plan *p, const tl_gemm_tile *t, int64_t leaf, place *at,
                            int64_t column, int64_t columns, char *panels) {
  const tl_gemm_engine *e = p->engine;
  const int64_t count = tl_gemm_quotient_up(columns, e->columns);
  if (e->clear_columns != NULL)
    for (int64_t i = 0; i < count; i++) e->clear_columns(panels + i * p->column_bytes, p->depth);
  tl_gemm_run run;
  int64_t position = 0;
  for (int64_t k; (k = next_stretch(p, t->part, leaf, at, &position, &run)) > 0;)
    for (int64_t i = 0; i < count; i++) {
      const int64_t first = i * e->columns;
      e->pack_columns(from_column(run.b, t->column + column + first, e->dtype),
                      (int32_t)tl_gemm_least(columns - first, e->columns), k, position - k,
                      panels + i * p->column_bytes);
    }
  return tl_gemm_round_up(position, e->step);
}

/* Packs a block of A for rows row .. row + rows - 1; returns its positions. */
static int64_t pack_rows(const tl_gemm_plan *p, const tl_gemm_tile *t, int64_t leaf, place at,
                         int64_t row, int64_t rows, char *panels) {
  const tl_gemm_engine *e = p->engine;
  const int64_t count = tl_gemm_quotient_up(rows, e->rows);
  if (e->clear_rows != NULL)
    for (int64_t i = 0; i < count; i++) e->clear_rows(panels + i * p->row_bytes, p->depth);
  tl_gemm_run run;
  int64_t position = 0;
  for (int64_t k; (k = next_stretch(p, t->part, leaf, &at, &position, &run)) > 0;)
    for (int64_t i = 0; i < count; i++) {
      const int64_t first = tl_gemm_border(rows, count, i);
      const int64_t end = tl_gemm_border(rows, count, i + 1);
      e->pack_rows(moved(run.a, row + first, e->dtype), (int32_t)(end - first), k, position - k,
                   panels + i * p->row_bytes);
    }
  return tl_gemm_round_up(position, e->step);
}

/* ---- a stack of leaves ---- */

/* After leaf `leaf` became entry `top`: adds what has a partner. Returns the new height. */
static int64_t fold(float *stack, int64_t top, int64_t count, int64_t leaf) {
  for (int64_t pairs = leaf; pairs & 1; pairs >>= 1, top--)
    tl_gemm_add(stack + (top - 1) * count, stack + top * count, count);
  return top + 1;
}

static void clear(float *c, int64_t stride, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) memset(c + r * stride, 0, sizeof *c * (size_t)columns);
}

/* ---- whole: all k at once ---- */

/* One small tile of the output: rows row .., columns column .. of `part`. */
static void compute_small(const tl_gemm_plan *p, const memory *m, const char *a, const char *b,
                          const tl_gemm_tile *t) {
  const tl_gemm *g = p->gemm;
  const tl_gemm_engine *e = p->engine;
  const int32_t rows = (int32_t)t->rows, columns = (int32_t)t->columns;
  if (p->direct) {
    const int64_t stride = tl_gemm_columns(g, t->part);
    float *c = (float *)g->out[t->part].data + t->row * stride + t->column;
    e->tile(a, b, p->positions, rows, columns, c, stride, g->start);
    return;
  }
  int64_t top = 0;
  for (int64_t leaf = 0; leaf < g->leaves; leaf++) {
    const int64_t odd = leaf & 1; /* has a partner on top of the stack, which it is added to */
    e->tile(a + leaf * p->row_leaf_bytes, b + leaf * p->column_leaf_bytes, p->positions, rows,
            columns, m->c + (top - odd) * m->c_count, e->columns, odd ? TL_GEMM_ADD : TL_GEMM_ZERO);
    top = fold(m->c, top - odd, m->c_count, leaf >> odd);
  }
  tl_gemm_store(g, t, m->c, e->columns);
}

static void compute_whole(const tl_gemm_plan *p, const tl_gemm_tile *t, const memory *m) {
  const tl_gemm_engine *e = p->engine;
  const int64_t leaves = p->gemm->leaves;
  for (int64_t leaf = 0; leaf < leaves; leaf++)
    pack_columns(p, t, leaf, &(place){0, 0}, 0, t->columns, m->b + leaf * p->column_leaf_bytes);
  const int64_t blocks = tl_gemm_quotient_up(t->rows, p->block_panels * e->rows);
  for (int64_t i = 0; i < blocks; i++) {
    const int64_t row = t->row + tl_gemm_border(t->rows, blocks, i);
    const int64_t rows = t->row + tl_gemm_border(t->rows, blocks, i + 1) - row;
    const int64_t panels = tl_gemm_quotient_up(rows, e->rows);
    for (int64_t leaf = 0; leaf < leaves; leaf++)
      pack_rows(p, t, leaf, (place){0, 0}, row, rows, m->a + leaf * p->row_leaf_bytes);
    for (int64_t column = 0; column < t->columns; column += e->columns)
      for (int64_t j = 0; j < panels; j++) {
        const int64_t first = tl_gemm_border(rows, panels, j);
        const tl_gemm_tile small = {t->part, row + first,
                                    tl_gemm_border(rows, panels, j + 1) - first, t->column + column,
                                    tl_gemm_least(t->columns - column, e->columns)};
        compute_small(p, m, m->a + j * p->row_bytes, m->b + column / e->columns * p->column_bytes,
                      &small);
      }
  }
}

/* ---- blocks ---- */

/* Asks for the outputs of the next small tile while the current one is computed. */
static void prefetch(const float *c, int64_t rows, int64_t stride) {
  for (int64_t r = 0; r < rows; r++) {
    __builtin_prefetch(c + r * stride, 1);
    __builtin_prefetch(c + r * stride + 16, 1);
  }
}

/* c (rows, columns up to a panel) from packed panels of A and one of B. */
static void multiply(const tl_gemm_plan *p, const char *a, const char *b, int64_t positions,
                     int64_t rows, int64_t columns, float *c, int64_t stride, tl_gemm_start start) {
  const tl_gemm_engine *e = p->engine;
  const int64_t panels = tl_gemm_quotient_up(rows, e->rows);
  for (int64_t i = 0; i < panels; i++) {
    const int64_t first = tl_gemm_border(rows, panels, i);
    const int64_t end = tl_gemm_border(rows, panels, i + 1);
    prefetch(c + end * stride, e->rows, stride);
    e->tile(a + i * p->row_bytes, b, positions, (int32_t)(end - first), (int32_t)columns,
            c + first * stride, stride, start);
  }
}

/* One block of k for a tile of few rows: a panel of B is used while it is in the nearest cache. */
static int64_t block_of_few_rows(const tl_gemm_plan *p, const tl_gemm_tile *t, const memory *m,
                                 int64_t leaf, place *at, float *c, tl_gemm_start start) {
  const place begin = *at;
  const int64_t positions = pack_rows(p, t, leaf, begin, t->row, t->rows, m->a);
  for (int64_t j = 0; j < t->columns && positions > 0; j += p->engine->columns) {
    const int64_t columns = tl_gemm_least(t->columns - j, p->engine->columns);
    *at = begin;
    pack_columns(p, t, leaf, at, j, columns, m->b);
    multiply(p, m->a, m->b, positions, t->rows, columns, c + j, m->c_stride, start);
  }
  return positions;
}

/* One block of k for a tile of many rows: B is packed once for all of them. */
static int64_t block_of_many_rows(const tl_gemm_plan *p, const tl_gemm_tile *t, const memory *m,
                                  int64_t leaf, place *at, float *c, tl_gemm_start start) {
  const tl_gemm_engine *e = p->engine;
  const place begin = *at;
  const int64_t positions = pack_columns(p, t, leaf, at, 0, t->columns, m->b);
  const int64_t blocks = tl_gemm_quotient_up(t->rows, p->block_panels * e->rows);
  for (int64_t i = 0; i < blocks && positions > 0; i++) {
    const int64_t first = tl_gemm_border(t->rows, blocks, i);
    const int64_t rows = tl_gemm_border(t->rows, blocks, i + 1) - first;
    pack_rows(p, t, leaf, begin, t->row + first, rows, m->a);
    for (int64_t j = 0; j < t->columns; j += e->columns)
      multiply(p, m->a, m->b + j / e->columns * p->column_bytes, positions, rows,
               tl_gemm_least(t->columns - j, e->columns), c + first * m->c_stride + j, m->c_stride,
               start);
  }
  return positions;
}

static void compute_blocks(const tl_gemm_plan *p, const tl_gemm_tile *t, const memory *m) {
  const tl_gemm *g = p->gemm;
  const int32_t few = t->rows <= p->block_panels * p->engine->rows;
  int64_t top = 0;
  for (int64_t leaf = 0; leaf < g->leaves; leaf++) {
    float *c = m->c + top * m->c_count;
    tl_gemm_start start = g->start == TL_GEMM_RESUME ? TL_GEMM_RESUME : TL_GEMM_ZERO;
    if (start == TL_GEMM_RESUME) tl_gemm_load(g, t, c, m->c_stride);
    for (place at = {0, 0};; start = TL_GEMM_RESUME)
      if ((few ? block_of_few_rows : block_of_many_rows)(p, t, m, leaf, &at, c, start) == 0) break;
    if (start == TL_GEMM_ZERO) clear(c, m->c_stride, t->rows, t->columns);
    top = fold(m->c, top, m->c_count, leaf);
  }
  tl_gemm_store(g, t, m->c, m->c_stride);
}

/* ---- tasks ---- */

static memory carve(const tl_gemm_plan *p, const tl_gemm_tile *t, char *scratch) {
  const tl_gemm_engine *e = p->engine;
  memory m;
  m.a = scratch;
  m.b = m.a + p->a_bytes;
  m.c = (float *)(m.b + p->b_bytes);
  m.c_stride = p->whole ? e->columns : tl_gemm_c_stride(e, t->columns);
  m.c_count = (p->whole ? e->rows : t->rows) * m.c_stride;
  assert((char *)(m.c + p->stack * m.c_count) <= scratch + TL_SCRATCH_BYTES);
  return m;
}

static void run_task(void *context, int64_t index, int32_t worker) {
  const tl_gemm_plan *p = context;
  const tl_gemm_tile t = tl_gemm_find_tile(p, index);
  const memory m = carve(p, &t, tl_team_scratch(p->team, worker));
  (p->whole ? compute_whole : compute_blocks)(p, &t, &m);
}

void tl_gemm_compute(const tl_gemm *gemm, tl_team *team) {
  tl_gemm_plan p;
  if (tl_gemm_few_rows(gemm, team) || tl_gemm_few_panels(gemm, team)) return;
  tl_gemm_make_plan(gemm, team, &p);
  tl_team_for(team, p.tasks, run_task, &p);
}

/* --- Few rows: columns alone are shared out --------------------------------------------------- */

enum { COLUMNS_TASK_BYTES = 64 << 10 };

typedef struct columns {
  const tl_gemm *gemm;
  tl_team *team;
  tl_gemm_panel_task compute;
  const void *context;
  int64_t panels, tasks;
} columns;

static int64_t panels_of(const tl_gemm *g, int32_t part) {
  return tl_panels_of(tl_view_row(&g->out[part]));
}

static void run_columns(void *context, int64_t index, int32_t worker) {
  const columns *c = context;
  float *stack = tl_team_scratch(c->team, worker);
  const int64_t first = index * c->panels / c->tasks, end = (index + 1) * c->panels / c->tasks;
  int64_t panel = first;
  int32_t part = 0;
  for (int64_t i = first; i < end; i++, panel++) {
    while (panel >= panels_of(c->gemm, part)) panel -= panels_of(c->gemm, part++);
    c->compute(c->context, part, panel, stack);
  }
}

void tl_gemm_for_columns(const tl_gemm *gemm, tl_team *team, int64_t depth,
                         tl_gemm_panel_task compute, const void *context) {
  columns c = {.gemm = gemm, .team = team, .compute = compute, .context = context};
  for (int32_t part = 0; part < gemm->parts; part++) c.panels += panels_of(gemm, part);
  const int64_t bytes = c.panels * TL_PANEL * depth * (int64_t)sizeof(float);
  const int64_t most = tl_team_workers(team) * 2;
  c.tasks = bytes / COLUMNS_TASK_BYTES < most ? bytes / COLUMNS_TASK_BYTES : most;
  if (c.tasks > c.panels) c.tasks = c.panels;
  if (c.tasks < 1) c.tasks = 1;
  tl_team_for(team, c.panels == 0 ? 0 : c.tasks, run_columns, &c);
}
