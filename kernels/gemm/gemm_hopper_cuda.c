/* gemm_hopper_cuda.c - chooses a variant of gemm_hopper.cuh, makes its maps and launches it. */
#include "gemm_hopper.h"
#include "gemm_hopper_args.h"
#include "gemm_provider.h"

#include <string.h>

enum { DEPTH = 64, STEP = 16, ALIGNED = 16, CLUSTER = 2 };

enum { /* of gemm_hopper_few.cu: bytes of shared memory */
       ROOM_ALONE = 232448,
       ROOM_TOGETHER = 115712, /* half of a multiprocessor's, less the driver's 1024 */
       SPARE = 8192,
       RING_MAX = 24
};

/* Rows of x for gemm_hopper_split.cu, _leaf.cu. */
enum { SPLIT_ABOVE = 32, SPLIT_ROWS = 256, LEAF_ABOVE = 8 };

typedef struct variant {
  int32_t leaves_least, leaves_most;
  int32_t rows, columns; /* of the outputs of a block */
  int32_t blocks;        /* of a cluster */
  int32_t cost;          /* of a tile */
  int32_t together;      /* blocks on a multiprocessor */
  uint32_t threads;
  uint32_t shared;                      /* of a block; 0: a ring as large as there is room */
  const char *kernel[TL_GEMM_PRODUCTS]; /* or NULL */
} variant;

/* The numbers of gemm_hopper.def. */
/* clang-format off */
#define RING(slots, slot_bytes) ((slots) * ((slot_bytes) + 16))
#define KERNEL_0(name) NULL
#define KERNEL_1(name) name
#define LARGE(leaves, columns, slots, kept, room, cost, dx, dw)          \
  {leaves, leaves, 128, columns, CLUSTER, cost, 1, 384,                  \
   RING(slots, (128 + (columns)) * DEPTH * 2) + 2 * (room),              \
   {"linear_hopper_" #columns "_" #leaves,                               \
    KERNEL_##dx("linear_grad_input_hopper_" #columns "_" #leaves),       \
    KERNEL_##dw("linear_grad_weight_hopper_" #columns "_" #leaves)}},
#define FEW(rows, columns, levels, together, cost)                             \
  {1, 1 << (levels), rows, columns, 1, cost, together,                         \
   ((rows) < 64 ? 1 : (rows) / 64) * 128 + 64, 0,                              \
   {"linear_hopper_few_" #rows "_" #columns, NULL, NULL}},
#define SPLIT(...)
static const variant variants[] = {
#include "gemm_hopper.def"
};
#undef LARGE
#undef FEW
#undef SPLIT
#define LARGE(...)
#define FEW(...)
#define SPLIT(rows, columns, leaves)                                           \
  {leaves, leaves, rows, columns, 1, 0, 1, (rows) / 64 * 128 + 64, 0,          \
   {"linear_hopper_split_" #rows "_" #columns "_" #leaves, NULL, NULL}},
static const variant splits[] = {
#include "gemm_hopper.def"
};
#define LEAF(rows, columns, window)                                            \
  {2, 8, rows, columns, 1, 0, 1, (rows) / 64 * 128 + 64, 0,                    \
   {"linear_hopper_leaf_" #rows "_" #columns, NULL, NULL}},
static const variant leaf_tiles[] = {TL_GEMM_LEAVES(LEAF)};
/* clang-format on */

static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int is_aligned(const void *data, int64_t stride, tl_dtype dtype) {
  return (uintptr_t)data % ALIGNED == 0 && stride * tl_dtype_bytes(dtype) % ALIGNED == 0;
}

/* ---- what fits ---- */

/* A run of k of all leaves, as it lies in memory. */
static void whole_run(const tl_gemm *gemm, int32_t part, int64_t index, tl_gemm_run *run) {
  tl_gemm whole = *gemm;
  whole.leaves = 1;
  whole.run(&whole, part, 0, index, run);
}

static int64_t stride_of(const tl_gemm_source *s) {
  return s->k_stride == 1 ? s->stride : s->k_stride;
}

static int run_fits(const tl_gemm *gemm, const tl_gemm_run *run, int along) {
  if (run->count <= 0 || run->count >= INT32_MAX) return 0;
  if (!is_aligned(run->a.data, stride_of(&run->a), TL_BF16)) return 0;
  if (!is_aligned(run->b.data, stride_of(&run->b), TL_BF16)) return 0;
  return !along || (run->count % gemm->leaves == 0 && run->count / gemm->leaves % 8 == 0);
}

static int output_fits(const tl_gemm *gemm, int32_t part) {
  const tl_view *out = &gemm->out[part];
  const int64_t columns = tl_view_row(out);
  return columns > 0 && columns < INT32_MAX && is_aligned(out->data, columns, out->dtype);
}

static int fits(tl_gemm_product product, const tl_gemm *gemm, int64_t piece_stride,
                const tl_cuda_facts *facts) {
  const int64_t kinds = product == TL_GEMM_GRAD_WEIGHT ? 1 : gemm->runs;
  if (facts->major != 9 || facts->minor != 0 || gemm->dtype != TL_BF16) return 0;
  if (gemm->leaves > 8 || gemm->rows <= 0 || gemm->rows >= INT32_MAX) return 0;
  if (gemm->runs < 1 || kinds > TL_GEMM_HOPPER_PARTS || gemm->parts > TL_GEMM_HOPPER_PARTS)
    return 0;
  if (gemm->runs * gemm->leaves >= INT32_MAX / DEPTH || piece_stride >= INT32_MAX) return 0;
  for (int32_t part = 0; part < gemm->parts; part++) {
    if (!output_fits(gemm, part)) return 0;
    if (gemm->out[part].dtype != gemm->out[0].dtype) return 0;
    if (gemm->bias != NULL && gemm->bias[part].dtype != gemm->bias[0].dtype) return 0;
    for (int64_t i = 0; i < kinds; i++) {
      tl_gemm_run run;
      whole_run(gemm, part, i, &run);
      if (!run_fits(gemm, &run, product != TL_GEMM_GRAD_WEIGHT)) return 0;
      if (i + 1 < kinds && run.count / gemm->leaves % STEP != 0) return 0;
    }
  }
  return 1;
}

/* ---- which variant: the one whose waves cost least. Bits do not depend on it ---- */

static int64_t count_columns(const tl_gemm *gemm, const variant *v) {
  int64_t tiles = 0;
  for (int32_t part = 0; part < gemm->parts; part++)
    tiles += quotient_up(tl_view_row(&gemm->out[part]), v->columns);
  return tiles;
}

static int64_t count_tiles(const tl_gemm *gemm, const variant *v) {
  return quotient_up(gemm->rows, (int64_t)v->rows * v->blocks) * count_columns(gemm, v);
}

/* Multiprocessors for a product: others may be spared for what another stream brings. */
static int32_t count_free(const tl_cuda *cuda) {
  return tl_cuda_device(cuda)->multiprocessors - tl_cuda_spare(cuda);
}

/* That run at once. */
static int64_t count_clusters(const variant *v, int32_t multiprocessors) {
  return (int64_t)multiprocessors * v->together / v->blocks;
}

/* `blocks`: only a variant with these tiles, if there is one for this product; 0: any. */
static const variant *choose(tl_gemm_product product, const tl_gemm *gemm,
                             const tl_cuda_facts *facts, const tl_cuda_blocks *blocks) {
  const variant *best = NULL;
  int64_t least = INT64_MAX;
  for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
    const variant *v = &variants[i];
    if (gemm->leaves < v->leaves_least || gemm->leaves > v->leaves_most) continue;
    if (v->kernel[product] == NULL) continue;
    if (blocks->gemm_rows != 0 && blocks->gemm_rows != v->rows) continue;
    if (blocks->gemm_columns != 0 && blocks->gemm_columns != v->columns) continue;
    /* Weights would be read twice: 64 rows, 2048 columns take 5.5 us so, 4.7 in tiles of 64. */
    if (blocks->gemm_rows == 0 && v->rows < 64 && gemm->rows > v->rows) continue;
    const int64_t share = quotient_up(count_tiles(gemm, v), facts->multiprocessors / v->blocks);
    const int64_t cost = share * v->cost;
    if (cost < least) best = v, least = cost;
  }
  return best;
}

/* Where a cluster makes the leaves of a tile side by side: a product of few rows whose tiles all
** run at once, or nearly. */
static const variant *choose_split(tl_gemm_product product, const tl_gemm *gemm,
                                   const tl_cuda_facts *facts, const tl_cuda_blocks *blocks) {
  const variant *best = NULL;
  if (product != TL_GEMM_LINEAR || blocks->gemm_rows != 0) return NULL;
  if (gemm->rows <= SPLIT_ABOVE || gemm->rows > SPLIT_ROWS) return NULL;
  for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
    if (splits[i].leaves_most != gemm->leaves) continue;
    best = &splits[i];
    if (best->rows >= gemm->rows) break;
  }
  if (best == NULL || count_tiles(gemm, best) * gemm->leaves > 2 * facts->multiprocessors)
    return NULL;
  return best;
}

/* ---- maps ---- */

/* `plain`: of few rows, which longer reads of memory make slower (tensor_map.h).
** A factor: along (k of a leaf, leaf, row), across (row, k of a leaf, leaf). `rows` of it, boxes of
** `box_rows`. */
static tl_status map_factor(tl_cuda *cuda, const char *what, const tl_gemm_source *s, int64_t rows,
                            int64_t count, int64_t leaves, int64_t leaf_stride, int32_t box_rows,
                            int32_t plain, tl_tensor_map *out) {
  const int64_t stride = stride_of(s);
  const tl_tensor_box along = {
      .data = s->data,
      .dtype = TL_BF16,
      .dims = 3,
      .size = {count, leaves,      rows    },
      .stride = {1,     leaf_stride, stride  },
      .box = {DEPTH, 1,           box_rows},
      .plain = plain
  };
  const tl_tensor_box across = {
      .data = s->data,
      .dtype = TL_BF16,
      .dims = 3,
      .size = {rows, count,  leaves              },
      .stride = {1,    stride, leaf_stride * stride},
      .box = {64,   DEPTH,  1                   },
  };
  return tl_tensor_map_make(cuda, what, s->k_stride == 1 ? &along : &across, out);
}

static tl_status map_output(tl_cuda *cuda, const tl_view *view, int64_t rows, tl_tensor_map *out) {
  const int64_t columns = tl_view_row(view);
  const tl_tensor_box box = {
      .data = view->data,
      .dtype = view->dtype,
      .dims = 3,
      .size = {columns,                          1,       rows   },
      .stride = {1,                                columns, columns},
      .box = {view->dtype == TL_BF16 ? 64 : 32, 1,       64     },
  };
  return tl_tensor_map_make(cuda, "map of an output", &box, out);
}

/* Of a box of the first factor: no zeros are filled in below the last row of few. */
static int32_t box_rows(const tl_gemm *gemm, const variant *v) {
  return v->shared == 0 && gemm->rows < v->rows ? (int32_t)gemm->rows : v->rows;
}

static tl_status map_factors(tl_gemm_product product, const tl_gemm *gemm, int64_t piece_stride,
                             const variant *v, tl_cuda *cuda, tl_gemm_hopper_args *args) {
  const int32_t maps = product == TL_GEMM_LINEAR ? gemm->parts : args->runs;
  const int32_t plain = v->shared == 0;
  for (int32_t i = 0; i < maps; i++) {
    const int32_t part = product == TL_GEMM_LINEAR ? i : 0;
    tl_gemm_run run;
    whole_run(gemm, part, product == TL_GEMM_LINEAR ? 0 : i, &run);
    const int64_t count = product == TL_GEMM_GRAD_WEIGHT ? run.count : run.count / gemm->leaves;
    const int64_t next = product == TL_GEMM_GRAD_WEIGHT ? piece_stride : count;
    const int64_t columns = tl_view_row(&gemm->out[part]);
    if (product != TL_GEMM_LINEAR || i == 0) {
      TL_TRY(map_factor(cuda, "map of the first factor", &run.a, gemm->rows, count, args->pieces,
                        next, box_rows(gemm, v), plain, &args->a[i]));
      args->slots[i] = (int32_t)quotient_up(count, DEPTH);
    }
    TL_TRY(map_factor(cuda, "map of the second factor", &run.b, columns, count, args->pieces, next,
                      v->columns / v->blocks, plain, &args->b[i]));
  }
  return TL_OK;
}

static tl_status fill_outputs(const tl_gemm *gemm, const variant *v, tl_cuda *cuda,
                              tl_gemm_hopper_args *args) {
  args->out_is_bf16 = gemm->out[0].dtype == TL_BF16;
  for (int32_t part = 0; part < gemm->parts; part++) {
    const int64_t columns = tl_view_row(&gemm->out[part]);
    args->first_tile[part] = args->column_tiles;
    args->columns[part] = (int32_t)columns;
    args->data[part] = gemm->out[part].data;
    args->column_tiles += (int32_t)quotient_up(columns, v->columns);
    TL_TRY(map_output(cuda, &gemm->out[part], gemm->rows, &args->out[part]));
    if (gemm->bias == NULL) continue;
    args->bias[part] = gemm->bias[part].data;
    args->bias_is_bf16 = gemm->bias[part].dtype == TL_BF16;
  }
  return TL_OK;
}

/* As few blocks as the number of waves allows: the others would find nothing in the last one. */
static uint32_t count_blocks(const variant *v, int64_t tiles, int32_t multiprocessors) {
  const int64_t waves = quotient_up(tiles, count_clusters(v, multiprocessors));
  return (uint32_t)(quotient_up(tiles, waves) * v->blocks);
}

/* Slots of a ring of gemm_hopper_few.cu and the bytes of a block: all there is where a block has a
** multiprocessor to itself. */
static uint32_t size_ring(const variant *v, int64_t tiles, const tl_cuda_facts *facts,
                          int32_t *slots) {
  const int64_t alone = v->together == 1 || tiles <= facts->multiprocessors;
  const int32_t halves = v->rows + v->columns > 128 ? 1 : 2;
  const int32_t slot = (v->rows + v->columns) * halves * DEPTH * 2 + 16;
  *slots = ((alone ? ROOM_ALONE : ROOM_TOGETHER) - SPARE) / slot;
  if (*slots > RING_MAX) *slots = RING_MAX;
  return (uint32_t)(*slots * slot + SPARE);
}

/* Kernels that overlap land on other multiprocessors than they did the time before. Weights that
** the second-level cache would keep from launch to launch, but not twice, once for each of its
** halves, then come from memory again: 12.6 us instead of 9.4 for 46 MB. */
static int32_t may_overlap(const tl_gemm *gemm, const tl_cuda_facts *facts) {
  int64_t bytes = 0;
  for (int32_t part = 0; part < gemm->parts; part++) {
    tl_gemm_run run;
    whole_run(gemm, part, 0, &run);
    bytes += tl_view_row(&gemm->out[part]) * run.count * tl_dtype_bytes(TL_BF16);
  }
  return 2 * bytes <= facts->cache || bytes >= facts->cache;
}

/* Whether nothing in the section writes the weights before they are read. */
static int32_t are_ahead(const tl_gemm *gemm) {
  const uint64_t weights = (UINT64_C(1) << gemm->parts) - 1;
  return (gemm->call->ahead >> 1 & weights) == weights;
}

static tl_status launch_few(const tl_gemm *gemm, const variant *v, int32_t is_split, tl_cuda *cuda,
                            const tl_gemm_hopper_args *all) {
  const tl_cuda_facts *facts = tl_cuda_device(cuda);
  const int64_t tiles = count_tiles(gemm, v);
  tl_gemm_hopper_few_args args = {.a = all->a[0],
                                  .slots = all->slots[0],
                                  .pieces = all->pieces,
                                  .row_tiles = all->row_tiles,
                                  .column_tiles = all->column_tiles,
                                  .outputs = all->outputs,
                                  .rows = all->rows,
                                  .out_is_bf16 = all->out_is_bf16,
                                  .bias_is_bf16 = all->bias_is_bf16,
                                  .ahead = are_ahead(gemm),
                                  .box_rows = box_rows(gemm, v)};
  memcpy(args.b, all->b, sizeof args.b);
  memcpy(args.first_tile, all->first_tile, sizeof args.first_tile);
  memcpy(args.columns, all->columns, sizeof args.columns);
  memcpy(args.data, all->data, sizeof args.data);
  memcpy(args.bias, all->bias, sizeof args.bias);
  const uint32_t blocks =
      is_split ? (uint32_t)(tiles * gemm->leaves) : count_blocks(v, tiles, count_free(cuda));
  const tl_cuda_grid grid = {.blocks = {blocks},
                             .threads = {v->threads},
                             .shared = size_ring(v, tiles, facts, &args.ring),
                             .overlaps = args.ahead || may_overlap(gemm, facts)};
  return tl_cuda_launch(cuda, v->kernel[TL_GEMM_LINEAR], &grid, &args);
}

/* ---- gate, up and swiglu: gemm_hopper_pair.cu ---- */

enum { PAIR_X = 82 << 10 /* bytes of its ring of x */ };

tl_status tl_gemm_hopper_pair(const tl_gemm *gemm, void *y, tl_cuda *cuda, int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(cuda);
  const int64_t columns = tl_view_row(&gemm->out[0]), rows = gemm->rows;
  *done = 0;
  if (!fits(TL_GEMM_LINEAR, gemm, 0, facts) || gemm->parts != 2 || gemm->leaves != 1) return TL_OK;
  if (gemm->bias != NULL || gemm->out[0].dtype != TL_BF16) return TL_OK;
  const tl_cuda_blocks *blocks = tl_cuda_get_blocks(cuda);
  if (blocks->gemm_provider == TL_GEMM_CUBLASLT || blocks->gemm_rows != 0) return TL_OK;
  if (tl_view_row(&gemm->out[1]) != columns) return TL_OK;
  const tl_gemm_pair_tile *t = tl_gemm_pair_choose(rows, columns, facts->multiprocessors);
  if (t == NULL) return TL_OK;
  tl_gemm_hopper_few_args args = {
      .rows = (int32_t)rows,
      .columns = {(int32_t)columns, (int32_t)columns},
      .row_tiles = (int32_t)quotient_up(rows, t->rows),
      .column_tiles = (int32_t)quotient_up(columns, t->features),
      .outputs = 1,
      .pieces = 1,
      .out_is_bf16 = 1,
      .box_rows = (int32_t)(rows < t->rows ? rows : t->rows),
      .ahead = are_ahead(gemm),
      .data = {y               }
  };
  tl_gemm_run run;
  for (int32_t part = 0; part < 2; part++) {
    whole_run(gemm, part, 0, &run);
    TL_TRY(map_factor(cuda, "map of a weight", &run.b, columns, run.count, 1, run.count,
                      t->features, 1, &args.b[part]));
  }
  TL_TRY(map_factor(cuda, "map of x", &run.a, rows, run.count, 1, run.count, args.box_rows, 1,
                    &args.a));
  args.slots = (int32_t)quotient_up(run.count, DEPTH);
  const int32_t x_slot = t->rows * DEPTH * 2 + 16, weight_slot = 2 * t->features * DEPTH * 2 + 16;
  args.x_ring = PAIR_X / x_slot;
  args.ring = (ROOM_ALONE - SPARE - args.x_ring * x_slot) / weight_slot;
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)(args.row_tiles * args.column_tiles)},
      .threads = {(uint32_t)(t->rows / 64 * 128 + 64)},
      .shared = (uint32_t)(args.ring * weight_slot + args.x_ring * x_slot + SPARE),
      .overlaps = 1};
  *done = 1;
  return tl_cuda_launch(cuda, t->kernel, &grid, &args);
}

/* ---- q, k and v, which are turned: kernels/fused/rope_hopper.cu ---- */

enum { HEAD = 64 };

tl_status tl_gemm_hopper_heads(const tl_gemm *gemm, const tl_gemm_heads_tile *t, tl_cuda *cuda,
                               tl_gemm_hopper_few_args *args, tl_cuda_grid *grid, int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(cuda);
  const int64_t rows = gemm->rows;
  const variant v = {.rows = t->rows, .columns = t->columns[0], .together = 2};
  tl_gemm_run run;
  *done = 0;
  if (!fits(TL_GEMM_LINEAR, gemm, 0, facts) || gemm->parts != 3 || gemm->leaves != 1) return TL_OK;
  if (gemm->bias != NULL || gemm->out[0].dtype != TL_BF16) return TL_OK;
  const tl_cuda_blocks *blocks = tl_cuda_get_blocks(cuda);
  if (blocks->gemm_provider == TL_GEMM_CUBLASLT || blocks->gemm_rows != 0) return TL_OK;
  *args = (tl_gemm_hopper_few_args){.rows = (int32_t)rows,
                                    .row_tiles = (int32_t)quotient_up(rows, t->rows),
                                    .outputs = 3,
                                    .pieces = 1,
                                    .out_is_bf16 = 1,
                                    .box_rows = (int32_t)(rows < t->rows ? rows : t->rows),
                                    .ahead = are_ahead(gemm)};
  for (int32_t part = 0; part < 3; part++) {
    const int64_t columns = tl_view_row(&gemm->out[part]);
    if (columns % HEAD != 0) return TL_OK;
    whole_run(gemm, part, 0, &run);
    const int64_t stride = stride_of(&run.b);
    const tl_tensor_box box = {
        .data = run.b.data,
        .dtype = TL_BF16,
        .dims = 4,
        .size = {run.count, HEAD / 2,             2,                 columns / HEAD},
        .stride = {1,         stride,               HEAD / 2 * stride, HEAD * stride },
        .box = {DEPTH,     t->columns[part] / 2, 2,                 1             },
        .plain = 1
    };
    args->first_tile[part] = args->column_tiles;
    args->column_tiles += (int32_t)(columns / t->columns[part]);
    TL_TRY(tl_tensor_map_make(cuda, "map of the weights of heads", &box, &args->b[part]));
  }
  TL_TRY(map_factor(cuda, "map of x", &run.a, rows, run.count, 1, run.count, args->box_rows, 1,
                    &args->a));
  args->slots = (int32_t)quotient_up(run.count, DEPTH);
  const int64_t tiles = (int64_t)args->row_tiles * args->column_tiles;
  *grid = (tl_cuda_grid){.blocks = {(uint32_t)tiles},
                         .threads = {(uint32_t)(t->rows / 64 * 128 + 64)},
                         .shared = size_ring(&v, tiles, facts, &args->ring),
                         .overlaps = 1};
  *done = 1;
  return TL_OK;
}

/* Maps and numbers of a launch in tiles of `v`. */
static tl_status fill(tl_gemm_product product, const tl_gemm *gemm, int64_t piece_stride,
                      const variant *v, tl_cuda *cuda, tl_gemm_hopper_args *args) {
  *args = (tl_gemm_hopper_args){
      .runs = product == TL_GEMM_GRAD_WEIGHT ? 1 : (int32_t)gemm->runs,
      .pieces =
          (int32_t)(product == TL_GEMM_GRAD_WEIGHT ? gemm->runs * gemm->leaves : gemm->leaves),
      .outputs = gemm->parts,
      .rows = (int32_t)gemm->rows,
      .row_tiles = (int32_t)quotient_up(gemm->rows, (int64_t)v->rows * v->blocks),
      .start = (int32_t)gemm->start,
  };
  TL_TRY(map_factors(product, gemm, piece_stride, v, cuda, args));
  return fill_outputs(gemm, v, cuda, args);
}

/* ---- leaves apart: gemm_hopper_leaf.cu ---- */

tl_status tl_gemm_hopper_leaves(const tl_gemm *gemm, float *sums, tl_cuda *cuda, int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(cuda);
  const tl_cuda_blocks *blocks = tl_cuda_get_blocks(cuda);
  const variant *v = &leaf_tiles[(gemm->rows > 64) + (gemm->rows > 128)];
  tl_gemm_hopper_args args;
  *done = 0;
  if (!fits(TL_GEMM_LINEAR, gemm, 0, facts) || gemm->parts != 1 || gemm->leaves < 2) return TL_OK;
  if (gemm->bias != NULL || gemm->rows <= LEAF_ABOVE || gemm->rows > SPLIT_ROWS) return TL_OK;
  if (blocks->gemm_provider == TL_GEMM_CUBLASLT || blocks->gemm_rows != 0) return TL_OK;
  if (count_tiles(gemm, v) * gemm->leaves > facts->multiprocessors) return TL_OK;
  if (gemm->leaves * gemm->rows * tl_view_row(&gemm->out[0]) > TL_CUDA_SCRATCH_BYTES / 4)
    return TL_OK;
  TL_TRY(fill(TL_GEMM_LINEAR, gemm, 0, v, cuda, &args));
  args.data[0] = sums;
  *done = 1;
  return launch_few(gemm, v, 1, cuda, &args);
}

tl_status tl_gemm_hopper(tl_gemm_product product, const tl_gemm *gemm, int64_t piece_stride,
                         tl_cuda *cuda, int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(cuda);
  const variant *v = NULL;
  *done = 0;
  if (!fits(product, gemm, piece_stride, facts)) return TL_OK;
  const variant *split = choose_split(product, gemm, facts, tl_cuda_get_blocks(cuda));
  v = split != NULL ? split : choose(product, gemm, facts, tl_cuda_get_blocks(cuda));
  if (v == NULL) v = choose(product, gemm, facts, &(tl_cuda_blocks){0});
  if (v == NULL || count_tiles(gemm, v) >= INT32_MAX / 2) return TL_OK;
  tl_gemm_hopper_args args;
  TL_TRY(fill(product, gemm, piece_stride, v, cuda, &args));
  *done = 1;
  if (v->shared == 0) return launch_few(gemm, v, split != NULL, cuda, &args);
  const tl_cuda_grid grid = {.blocks = {count_blocks(v, count_tiles(gemm, v), count_free(cuda))},
                             .threads = {v->threads},
                             .shared = v->shared,
                             .overlaps = 1};
  return tl_cuda_launch(cuda, v->kernel[product], &grid, &args);
}
