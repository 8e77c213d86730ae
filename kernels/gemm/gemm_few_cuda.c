/* gemm_few_cuda.c - launches gemm_few.cu where it fits: see gemm_few.cu. */
#include "gemm_few_args.h"

#include "../../runtime/cuda.h"
#include "gemm_core.h"
#include "gemm_few_cuda.h"

enum { STEP = 16, RELAY_STEPS = 16 /* of a warp at least */, SHARED_MAX = 227 << 10 };

static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int is_aligned(const tl_gemm_source *s, uintptr_t bytes) {
  return (uintptr_t)s->data % bytes == 0 && (uintptr_t)(s->stride * 2) % bytes == 0 &&
         s->k_stride == 1;
}

/* k as it lies in memory, all leaves. */
static void whole_run(const tl_gemm *gemm, int32_t part, tl_gemm_run *run) {
  tl_gemm whole = *gemm;
  whole.leaves = 1;
  whole.run(&whole, part, 0, 0, run);
}

static int fits(const tl_gemm *gemm, const tl_cuda_facts *facts) {
  if (facts->major != 9 || facts->minor != 0 || gemm->dtype != TL_BF16) return 0;
  if (gemm->rows < 1 || gemm->rows > TL_GEMM_FEW_ROWS || gemm->runs != 1) return 0;
  if (gemm->start != TL_GEMM_ZERO || gemm->parts > TL_GEMM_FEW_PARTS || gemm->leaves > 8) return 0;
  for (int32_t part = 0; part < gemm->parts; part++) {
    tl_gemm_run run;
    whole_run(gemm, part, &run);
    if (run.count < STEP || run.count >= INT32_MAX || run.count % (STEP * gemm->leaves) != 0)
      return 0;
    if (!is_aligned(&run.a, 16) || !is_aligned(&run.b, 8)) return 0;
    if (tl_view_row(&gemm->out[part]) < 1 || tl_view_row(&gemm->out[part]) >= INT32_MAX / 2)
      return 0;
    if (gemm->out[part].dtype != gemm->out[0].dtype) return 0;
    if (gemm->bias != NULL && gemm->bias[part].dtype != gemm->bias[0].dtype) return 0;
  }
  return 1;
}

static void fill_parts(const tl_gemm *gemm, tl_gemm_few_args *k) {
  for (int32_t part = 0; part < gemm->parts; part++) {
    tl_gemm_run run;
    whole_run(gemm, part, &run);
    k->weight[part] = run.b.data;
    k->weight_stride[part] = run.b.stride;
    k->out[part] = gemm->out[part].data;
    k->columns[part] = (int32_t)tl_view_row(&gemm->out[part]);
    k->first_tile[part] = k->tiles;
    k->tiles += (int32_t)quotient_up(k->columns[part], TL_GEMM_FEW_FEATURES);
    if (gemm->bias != NULL) k->bias[part] = gemm->bias[part].data;
  }
}

/* How many warps share a chain: as many as run at once, each with work for its ring. */
static int32_t count_relay(const tl_gemm_few_args *k, const tl_cuda_facts *facts) {
  const int64_t warps = (int64_t)facts->multiprocessors * TL_GEMM_FEW_WARPS;
  int32_t relay = 1;
  if (k->leaves > 1) return 1;
  while (relay < 8 && (int64_t)k->tiles * relay * 2 <= warps &&
         k->depth / STEP >= (int64_t)relay * 2 * RELAY_STEPS)
    relay *= 2;
  return relay;
}

/* No kernel that may still run writes a weight. */
static int32_t are_ahead(const tl_gemm *gemm, const tl_call *call) {
  const uint64_t weights = (UINT64_C(1) << gemm->parts) - 1;
  return (call->ahead >> 1 & weights) == weights;
}

tl_status tl_gemm_few_args_of(const tl_gemm *gemm, const tl_call *call, tl_gemm_few_args *out,
                              int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(call->cuda);
  tl_gemm_run run;
  *done = fits(gemm, facts);
  if (!*done) return TL_OK;
  whole_run(gemm, 0, &run);
  *out = (tl_gemm_few_args){.x = run.a.data,
                            .x_stride = run.a.stride,
                            .rows = (int32_t)gemm->rows,
                            .depth = (int32_t)run.count,
                            .x_pitch = (int32_t)(quotient_up(run.count * 2, 128) * 128 + 32),
                            .leaves = (int32_t)gemm->leaves,
                            .parts = gemm->parts,
                            .ahead = are_ahead(gemm, call),
                            .out_is_bf16 = gemm->out[0].dtype == TL_BF16,
                            .bias_is_bf16 = gemm->bias != NULL && gemm->bias[0].dtype == TL_BF16};
  fill_parts(gemm, out);
  out->relay = count_relay(out, facts);
  out->run = (int32_t)(out->leaves > 1 ? out->depth / out->leaves
                                       : quotient_up(out->depth / STEP, out->relay) * STEP);
  return TL_OK;
}

tl_status tl_gemm_few_cuda(const tl_gemm *gemm, const tl_call *call, int32_t *done) {
  const tl_cuda_facts *facts = tl_cuda_device(call->cuda);
  const int32_t most = facts->multiprocessors;
  tl_gemm_few_args k;
  TL_TRY(tl_gemm_few_args_of(gemm, call, &k, done));
  if (!*done) return TL_OK;
  const int64_t shared = TL_GEMM_FEW_SLOTS + (int64_t)k.rows * k.x_pitch;
  *done = shared <= SHARED_MAX;
  if (!*done) return TL_OK;
  const tl_cuda_grid grid = {.blocks = {(uint32_t)(k.tiles < most ? k.tiles : most)},
                             .threads = {32 * TL_GEMM_FEW_WARPS},
                             .shared = (uint32_t)shared,
                             .overlaps = facts->major >= 9};
  return tl_cuda_launch(call->cuda, k.rows <= 8 ? "linear_few_8" : "linear_few_16", &grid, &k);
}
