/* grouped_hopper_cuda.c - chooses a variant of grouped_hopper.cuh, makes its maps and launches it.
*/
#include "grouped_hopper.h"

#include "../../runtime/cuda.h"
#include "../gemm/gemm_core.h"
#include "grouped_hopper_args.h"

enum { DEPTH = 64, STEP = 16, ROWS = 128, ALIGNED = 16, PARTS = TL_GEMM_HOPPER_PARTS };

typedef enum kind { LINEAR, GRAD_INPUT, GRAD_WEIGHT, KINDS } kind;

typedef struct variant {
  int32_t columns, blocks, cost;
  uint32_t shared; /* without the list of tiles */
  const char *kernel[KINDS];
} variant;

/* The numbers of grouped_hopper.def. */
/* clang-format off */
#define GROUPED(name, columns, blocks, slots, room, cost)                                    \
  {columns, blocks, cost, (slots) * ((ROWS + (columns)) * DEPTH * 2 + 16 + 4) + 2 * (room),  \
   {"grouped_linear_hopper_" #name, "grouped_grad_input_hopper_" #name,                      \
    "grouped_grad_weight_hopper_" #name}},
#define LEAVES(name, leaves, kept, columns, blocks, slots, room)                             \
  {columns, blocks, 0, (slots) * ((ROWS + (columns)) * DEPTH * 2 + 16 + 4) + 2 * (room),     \
   {NULL, NULL, "grouped_grad_weight_hopper_" #name}},
#define TURNS(name, columns, blocks, slots, room) LEAVES(name, 1, 0, columns, blocks, slots, room)
/* clang-format on */
static const variant variants[] = {
#include "grouped_hopper.def"
};
enum { WIDE, SLIM, ALONE, DRAIN, IN_TURN, FOLD, FOLD_LEAVES = 8 };

/* A matrix in memory: (rows, columns), or a stack of them for each expert. */
typedef struct matrix {
  const void *data;
  tl_dtype dtype;
  int64_t rows, columns, stack; /* stack: numbers from expert to expert; 0: one matrix */
} matrix;

/* What a launch is made of: a[i] and b[i] belong to run i, b[i] and out[i] to output i. */
typedef struct plan {
  kind kind;
  int32_t runs, outputs;
  matrix a[PARTS], b[PARTS], out[PARTS];
  int64_t experts, mean; /* mean: rows of an expert, if all are routed evenly */
  int64_t leaves;
} plan;

static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static matrix of_view(const tl_view *view) {
  return (matrix){view->data, view->dtype, view->shape[0], tl_view_row(view), 0};
}

static matrix of_stack(const tl_view *view, int64_t rows, int64_t columns) {
  return (matrix){view->data, view->dtype, rows, columns, tl_view_row(view)};
}

static int matrix_fits(const matrix *m) {
  const int64_t bytes = tl_dtype_bytes(m->dtype);
  return (uintptr_t)m->data % ALIGNED == 0 && m->columns * bytes % ALIGNED == 0 &&
         m->stack * bytes % ALIGNED == 0 && m->columns > 0 && m->rows > 0 &&
         m->columns < INT32_MAX && m->rows < INT32_MAX;
}

static int fits(const plan *p, const tl_cuda_facts *facts) {
  if (facts->major != 9 || facts->minor != 0 || p->a[0].dtype != TL_BF16) return 0;
  if (p->leaves > FOLD_LEAVES) return 0;
  for (int32_t i = 0; i < p->runs; i++) {
    if (!matrix_fits(&p->a[i])) return 0;
    if (i + 1 < p->runs && p->a[i].columns % STEP != 0) return 0;
  }
  for (int32_t i = 0; i < (p->kind == LINEAR ? p->outputs : p->runs); i++)
    if (!matrix_fits(&p->b[i])) return 0;
  for (int32_t i = 0; i < p->outputs; i++)
    if (!matrix_fits(&p->out[i]) || p->out[i].dtype != p->out[0].dtype) return 0;
  return 1;
}

static int64_t count_columns(const plan *p, const variant *v) {
  int64_t tiles = 0;
  for (int32_t i = 0; i < p->outputs; i++) tiles += quotient_up(p->out[i].columns, v->columns);
  return tiles;
}

/* Experts of few rows want what brings their weights soonest, or, of gradients, a buffer for a
** whole output, which leaves while the next one is computed; gradients of some hundred rows sums
** that reach the buffer meanwhile, too; the others what leaves the least columns empty. */
static const variant *choose(const plan *p) {
  const variant *wide = &variants[WIDE], *slim = &variants[SLIM];
  if (p->leaves > 1) return &variants[FOLD];
  if (p->kind != GRAD_WEIGHT && p->mean <= ROWS) return &variants[ALONE];
  if (p->kind == GRAD_WEIGHT && p->mean <= 1024)
    return &variants[p->mean <= ROWS ? DRAIN : IN_TURN];
  return count_columns(p, slim) * slim->cost < count_columns(p, wide) * wide->cost ? slim : wide;
}

/* ---- maps: innermost dim first; the expert stands between (grouped_hopper_args.h) ---- */

static tl_status map_along(tl_cuda *cuda, const matrix *m, int64_t experts, int32_t rows,
                           tl_tensor_map *out) {
  const tl_tensor_box box = {
      .data = m->data,
      .dtype = TL_BF16,
      .dims = 3,
      .size = {m->columns, m->stack == 0 ? 1 : experts,           m->rows   },
      .stride = {1,          m->stack == 0 ? m->columns : m->stack, m->columns},
      .box = {DEPTH,      1,                                     rows      },
  };
  return tl_tensor_map_make(cuda, "map of rows of experts", &box, out);
}

static tl_status map_across(tl_cuda *cuda, const matrix *m, int64_t experts, tl_tensor_map *out) {
  const tl_tensor_box box = {
      .data = m->data,
      .dtype = TL_BF16,
      .dims = 3,
      .size = {m->columns, m->rows,    m->stack == 0 ? 1 : experts          },
      .stride = {1,          m->columns, m->stack == 0 ? m->columns : m->stack},
      .box = {64,         DEPTH,      1                                    },
  };
  return tl_tensor_map_make(cuda, "map of columns of experts", &box, out);
}

static tl_status map_output(tl_cuda *cuda, const matrix *m, int64_t experts, tl_tensor_map *out) {
  const tl_tensor_box box = {
      .data = m->data,
      .dtype = m->dtype,
      .dims = 3,
      .size = {m->columns,                    m->stack == 0 ? 1 : experts,           m->rows   },
      .stride = {1,                             m->stack == 0 ? m->columns : m->stack, m->columns},
      .box = {m->dtype == TL_BF16 ? 64 : 32, 1,                                     64        },
  };
  return tl_tensor_map_make(cuda, "map of an output of experts", &box, out);
}

static tl_status make_maps(const plan *p, const variant *v, tl_cuda *cuda, tl_gemm_hopper_args *g) {
  for (int32_t i = 0; i < p->runs; i++) {
    g->slots[i] = (int32_t)quotient_up(p->a[i].columns, DEPTH);
    if (p->kind == GRAD_WEIGHT)
      TL_TRY(map_across(cuda, &p->a[i], p->experts, &g->a[i]));
    else
      TL_TRY(map_along(cuda, &p->a[i], p->experts, ROWS / 2, &g->a[i]));
  }
  for (int32_t i = 0; i < (p->kind == LINEAR ? p->outputs : p->runs); i++) {
    if (p->kind == LINEAR)
      TL_TRY(map_along(cuda, &p->b[i], p->experts, v->columns / v->blocks, &g->b[i]));
    else
      TL_TRY(map_across(cuda, &p->b[i], p->experts, &g->b[i]));
  }
  for (int32_t i = 0; i < p->outputs; i++)
    TL_TRY(map_output(cuda, &p->out[i], p->experts, &g->out[i]));
  return TL_OK;
}

/* ---- launching ---- */

static void fill_outputs(const plan *p, const variant *v, tl_gemm_hopper_args *g) {
  g->runs = p->runs, g->outputs = p->outputs;
  g->out_is_bf16 = p->out[0].dtype == TL_BF16;
  for (int32_t i = 0; i < p->outputs; i++) {
    g->first_tile[i] = g->column_tiles;
    g->columns[i] = (int32_t)p->out[i].columns;
    g->data[i] = (void *)(uintptr_t)p->out[i].data;
    g->column_tiles += (int32_t)quotient_up(p->out[i].columns, v->columns);
  }
}

/* As many clusters as run at once, or fewer where the worst routing has fewer tiles. */
static tl_status launch(const plan *p, tl_cuda *cuda, tl_grouped_hopper_args *args, int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(cuda);
  *done = 0;
  if (!fits(p, facts)) return TL_OK;
  const variant *v = choose(p);
  tl_gemm_hopper_args *g = &args->product;
  const int64_t height = ROWS * v->blocks, rows = p->out[0].rows;
  const int64_t each = quotient_up(rows, height);
  const int64_t row_tiles = p->kind == GRAD_WEIGHT ? each * p->experts : each + p->experts;
  const int64_t tiles = row_tiles * count_columns(p, v),
                most = (facts->multiprocessors - tl_cuda_spare(cuda)) / v->blocks;
  const int64_t listed = p->kind == GRAD_WEIGHT ? p->experts * p->leaves : p->experts + 1;
  uint32_t shared = v->shared + (uint32_t)listed * 4;
  args->is_listed = shared <= (uint32_t)facts->shared_max;
  if (!args->is_listed && p->leaves > 1) shared = v->shared;
  if (tiles >= INT32_MAX / 2 || shared > (uint32_t)facts->shared_max) return TL_OK;
  TL_TRY(make_maps(p, v, cuda, g));
  fill_outputs(p, v, g);
  g->rows = (int32_t)rows, g->row_tiles = (int32_t)each;
  args->experts = (int32_t)p->experts;
  const tl_cuda_grid grid = {.blocks = {(uint32_t)((tiles < most ? tiles : most) * v->blocks)},
                             .threads = {384},
                             .shared = shared};
  TL_TRY(tl_cuda_launch(cuda, v->kernel[p->kind], &grid, args));
  *done = 1;
  return TL_OK;
}

tl_status tl_grouped_hopper_linear(const tl_call *call, int32_t *done) {
  const tl_view *x = &call->in[0], *offsets = &call->in[1];
  const int64_t parts = call->ints[0];
  plan p = {.kind = LINEAR, .runs = 1, .outputs = (int32_t)parts, .a = {of_view(x)}};
  *done = 0;
  if (parts > PARTS) return TL_OK;
  for (int64_t i = 0; i < parts; i++) {
    p.out[i] = of_view(&call->out[i]);
    p.b[i] = of_stack(&call->in[2 + i], p.out[i].columns, p.a[0].columns);
  }
  p.experts = tl_view_count(offsets) - 1, p.mean = x->shape[0] / p.experts;
  tl_grouped_hopper_args args = {.offsets = offsets->data};
  return launch(&p, call->cuda, &args, done);
}

tl_status tl_grouped_hopper_grad_input(const tl_call *call, int32_t *done) {
  const int64_t parts = call->ints[0];
  const tl_view *offsets = &call->in[parts], *dx = &call->out[0];
  plan p = {.kind = GRAD_INPUT, .runs = (int32_t)parts, .outputs = 1, .out = {of_view(dx)}};
  *done = 0;
  if (parts > PARTS) return TL_OK;
  for (int64_t i = 0; i < parts; i++) {
    p.a[i] = of_view(&call->in[i]);
    p.b[i] = of_stack(&call->in[parts + 1 + i], p.a[i].columns, p.out[0].columns);
  }
  p.experts = tl_view_count(offsets) - 1, p.mean = dx->shape[0] / p.experts;
  tl_grouped_hopper_args args = {.offsets = offsets->data};
  return launch(&p, call->cuda, &args, done);
}

tl_status tl_grouped_hopper_grad_weight(const tl_call *call, int32_t *done) {
  const tl_view *dy = &call->in[0], *x = &call->in[1], *segments = &call->in[2];
  const tl_view *out = &call->out[0];
  plan p = {.kind = GRAD_WEIGHT, .runs = 1, .outputs = 1, .a = {of_view(dy)}, .b = {of_view(x)}};
  p.out[0] = of_stack(out, p.a[0].columns, p.b[0].columns);
  p.experts = segments->shape[0], p.mean = dy->shape[0] / p.experts, p.leaves = call->ints[3];
  tl_grouped_hopper_args args = {.offsets = segments->data,
                                 .each = (int32_t)tl_view_row(segments),
                                 .first = (int32_t)call->ints[0],
                                 .pieces = (int32_t)(call->ints[1] / p.leaves),
                                 .leaves = (int32_t)p.leaves,
                                 .stack = p.out[0].stack};
  args.product.start = (int32_t)call->ints[2];
  return launch(&p, call->cuda, &args, done);
}
