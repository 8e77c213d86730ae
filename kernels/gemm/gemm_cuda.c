/* gemm_cuda.c - launches the three products on a GPU: gemm_hopper.cuh where it fits
** (gemm_hopper.h), else gemm_bf16.cu and gemm_f32.cu.
**
** A call is described as for the host, the description becomes the one struct of arguments, and a
** kernel is chosen by the shape of the output. Tiles are free: no choice made here changes a bit.
*/
#include "../../runtime/cuda.h"
#include "gemm_args.h"
#include "gemm_core.h"
#include "gemm_few_cuda.h"
#include "gemm_hopper.h"
#include "gemm_provider.h"

enum { DEPTH = 64 }; /* of gemm_bf16.cu */
#define RING(rows, columns, slots) ((slots) * ((rows) + (columns)) * DEPTH * 2)

typedef enum shape { LARGE, SMALL, FEW_ROWS, SHAPES } shape;

/* Blocks of `threads` own rows x columns outputs. */
typedef struct tile {
  int32_t rows, columns;
  uint32_t threads, shared;
} tile;

static const tile bf16_tiles[SHAPES] = {
    [LARGE] = {128, 128, 128, RING(128, 128, 3)},
    [SMALL] = {64,  64,  128, RING(64,  64,  4)},
    [FEW_ROWS] = {16,  64,  128, RING(16,  64,  6)},
};
static const tile f32_tiles[SHAPES] = {
    [LARGE] = {128, 128, 256, 0},
    [SMALL] = {64,  64,  256, 0},
    [FEW_ROWS] = {64,  64,  256, 0},
};

/* Along: k runs along the rows of the factor as it lies in memory. */
typedef struct product {
  const char *op;
  int32_t a_is_along, b_is_along;
  const char *bf16[SHAPES], *f32[SHAPES]; /* kernels */
} product;

static const product linear = {
    "linear",
    1,
    1,
    {"linear_bf16_128", "linear_bf16_64", "linear_bf16_16"},
    {"linear_f32_128",  "linear_f32_64",  "linear_f32_64" },
};
static const product grad_input = {
    "linear_grad_input",
    1,
    0,
    {"linear_grad_input_bf16_128", "linear_grad_input_bf16_64", "linear_grad_input_bf16_16"},
    {"linear_grad_input_f32_128",  "linear_grad_input_f32_64",  "linear_grad_input_f32_64" },
};
static const product grad_weight = {
    "linear_grad_weight",
    0,
    0,
    {"linear_grad_weight_bf16_128", "linear_grad_weight_bf16_64", "linear_grad_weight_bf16_64"},
    {"linear_grad_weight_f32_128",  "linear_grad_weight_f32_64",  "linear_grad_weight_f32_64" },
};

static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Large tiles read each factor less often, small ones keep more multiprocessors at work. */
static shape choose(const product *p, const tl_cuda_facts *facts, int64_t rows, int64_t columns) {
  if (rows <= 16 && p->a_is_along) return FEW_ROWS;
  return quotient_up(rows, 128) * quotient_up(columns, 128) >= facts->multiprocessors ? LARGE
                                                                                      : SMALL;
}

static int32_t is_aligned(const void *data, int64_t stride, tl_dtype dtype) {
  return (uintptr_t)data % 16 == 0 && stride * tl_dtype_bytes(dtype) % 16 == 0;
}

/* The runs of k of output `part`, whole: kernels cut them into leaves. Pieces are all alike. */
static tl_status fill_runs(const product *p, const tl_gemm *gemm, int32_t part,
                           tl_gemm_args *args) {
  const int64_t kinds = gemm->run_is_padded ? least(gemm->runs, 1) : gemm->runs;
  const int64_t step = gemm->dtype == TL_BF16 ? 16 : 1;
  tl_gemm whole = *gemm;
  whole.leaves = 1;
  if (kinds > TL_GEMM_RUNS_MAX)
    return tl_fail(TL_ARGUMENT, "%s: %lld parts; a GPU kernel takes %d", p->op, (long long)kinds,
                   TL_GEMM_RUNS_MAX);
  for (int64_t i = 0; i < kinds; i++) {
    tl_gemm_run run;
    whole.run(&whole, part, 0, i, &run);
    const int64_t a_stride = p->a_is_along ? run.a.stride : run.a.k_stride;
    const int64_t b_stride = p->b_is_along ? run.b.stride : run.b.k_stride;
    args->run[i] = (tl_gemm_stretch){.a = run.a.data,
                                     .b = run.b.data,
                                     .a_stride = a_stride,
                                     .b_stride = b_stride,
                                     .count = run.count,
                                     .a_aligned = is_aligned(run.a.data, a_stride, gemm->dtype),
                                     .b_aligned = is_aligned(run.b.data, b_stride, gemm->dtype)};
  }
  args->runs = (int32_t)gemm->runs;
  args->span = gemm->run_is_padded ? quotient_up(args->run[0].count, step) * step : 0;
  return TL_OK;
}

static void fill_output(const tl_gemm *gemm, int32_t part, tl_gemm_args *args) {
  const tl_view *out = &gemm->out[part];
  args->rows = gemm->rows;
  args->columns = tl_view_row(out);
  args->start = (int32_t)gemm->start;
  args->out = out->data;
  args->out_is_bf16 = out->dtype == TL_BF16;
  args->pairs =
      args->columns % 2 == 0 && (uintptr_t)out->data % (2 * tl_dtype_bytes(out->dtype)) == 0;
  if (gemm->bias != NULL) {
    args->bias = gemm->bias[part].data;
    args->bias_is_bf16 = gemm->bias[part].dtype == TL_BF16;
  }
}

/* Blocks: one for each tile, or as many as have room for the leaves that wait. */
static int64_t count_blocks(const tl_gemm_args *args, const tile *t) {
  const int64_t bytes = (int64_t)args->leaves_log * t->rows * t->columns * (int64_t)sizeof(float);
  const int64_t most = bytes == 0 ? INT32_MAX : TL_CUDA_SCRATCH_BYTES / bytes;
  return least(args->row_tiles * args->column_tiles, most);
}

static tl_status launch(const product *p, const tl_gemm *gemm, int32_t part, int64_t piece_stride,
                        tl_cuda *cuda) {
  tl_gemm_args args = {.piece_stride = piece_stride, .stack = tl_cuda_scratch(cuda)};
  TL_TRY(fill_runs(p, gemm, part, &args));
  fill_output(gemm, part, &args);
  const int32_t bf16 = gemm->dtype == TL_BF16;
  const shape shape = choose(p, tl_cuda_device(cuda), args.rows, args.columns);
  const tile *t = bf16 ? &bf16_tiles[shape] : &f32_tiles[shape];
  while (INT64_C(1) << args.leaves_log < gemm->leaves) args.leaves_log++;
  args.row_tiles = quotient_up(args.rows, t->rows);
  args.column_tiles = quotient_up(args.columns, t->columns);
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)count_blocks(&args, t)}, .threads = {t->threads}, .shared = t->shared};
  return tl_cuda_launch(cuda, bf16 ? p->bf16[shape] : p->f32[shape], &grid, &args);
}

tl_status tl_cuda_linear_own(const tl_call *call) {
  tl_gemm gemm;
  TL_TRY(tl_gemm_of_linear(call, &gemm));
  int32_t done;
  TL_TRY(tl_gemm_hopper(TL_GEMM_LINEAR, &gemm, 0, call->cuda, &done));
  if (done) return TL_OK;
  TL_TRY(tl_gemm_few_cuda(&gemm, call, &done));
  if (done) return TL_OK;
  for (int32_t part = 0; part < gemm.parts; part++)
    TL_TRY(launch(&linear, &gemm, part, 0, call->cuda));
  return TL_OK;
}

tl_status tl_cuda_linear_grad_input_own(const tl_call *call) {
  tl_gemm gemm;
  TL_TRY(tl_gemm_of_linear_grad_input(call, &gemm));
  int32_t done;
  TL_TRY(tl_gemm_hopper(TL_GEMM_GRAD_INPUT, &gemm, 0, call->cuda, &done));
  if (done) return TL_OK;
  return launch(&grad_input, &gemm, 0, 0, call->cuda);
}

tl_status tl_cuda_linear_grad_weight_own(const tl_call *call) {
  tl_gemm gemm;
  TL_TRY(tl_gemm_of_linear_grad_weight(call, &gemm));
  int32_t done;
  TL_TRY(tl_gemm_hopper(TL_GEMM_GRAD_WEIGHT, &gemm, call->ints[3], call->cuda, &done));
  if (done) return TL_OK;
  return launch(&grad_weight, &gemm, 0, call->ints[3], call->cuda);
}

tl_status tl_cuda_linear(const tl_call *call) {
  tl_gemm gemm;
  int32_t done;
  TL_TRY(tl_gemm_of_linear(call, &gemm));
  TL_TRY(tl_gemm_by_library(TL_GEMM_LINEAR, call, &done));
  return done ? TL_OK : tl_cuda_linear_own(call);
}

tl_status tl_cuda_linear_grad_input(const tl_call *call) {
  tl_gemm gemm;
  int32_t done;
  TL_TRY(tl_gemm_of_linear_grad_input(call, &gemm));
  TL_TRY(tl_gemm_by_library(TL_GEMM_GRAD_INPUT, call, &done));
  return done ? TL_OK : tl_cuda_linear_grad_input_own(call);
}

tl_status tl_cuda_linear_grad_weight(const tl_call *call) {
  tl_gemm gemm;
  int32_t done;
  TL_TRY(tl_gemm_of_linear_grad_weight(call, &gemm));
  TL_TRY(tl_gemm_by_library(TL_GEMM_GRAD_WEIGHT, call, &done));
  return done ? TL_OK : tl_cuda_linear_grad_weight_own(call);
}
