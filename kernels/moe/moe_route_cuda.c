/* moe_route_cuda.c - queues the kernels of the router. */
#include "../launch_cuda.h"
#include "moe_args.h"
#include "moe_check.h"

enum { SIZES = 6, BLOCKS_EACH = 8 /* of a multiprocessor, striding over rows */ };
typedef const char *kernels[SIZES];

#define NAMES(name) \
  { name "_1", name "_2", name "_4", name "_8", name "_16", name "_32" }
static const kernels route_rows = NAMES("route_rows");
static const kernels route_table_rows = NAMES("route_table_rows");
static const kernels route_grad_rows = NAMES("route_grad_rows");
static const kernels route_sums_blocks = NAMES("route_sums_blocks");
static const kernels balance_rows = NAMES("balance_rows");

/* The kernel whose lanes hold enough experts. */
static int32_t size_of(int64_t experts) {
  int32_t size = 0;
  while (INT64_C(32) << size < experts) size++;
  return size;
}

/* A lane's logits are whole pieces of 16 bytes. */
static int32_t has_vectors(const tl_view *z, int64_t experts) {
  return size_of(experts) >= 2 && INT64_C(32) << size_of(experts) == experts &&
         (uintptr_t)z->data % 16 == 0;
}

/* `floats` of shared memory for each warp. */
static tl_status launch_rows(tl_cuda *cuda, const kernels names, int64_t rows, int64_t experts,
                             int64_t floats, const void *args) {
  const int64_t most = (int64_t)tl_cuda_device(cuda)->multiprocessors * BLOCKS_EACH;
  const int64_t blocks = (rows + TL_MOE_WARPS - 1) / TL_MOE_WARPS;
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)(blocks < most ? blocks : most)},
      .threads = {TL_DEVICE_THREADS},
      .shared = (uint32_t)(TL_MOE_WARPS * floats * (int64_t)sizeof(float)),
  };
  return tl_cuda_launch(cuda, names[size_of(experts)], &grid, args);
}

/* What both routers take: logits, where weights and experts go, and what finds NaN. */
static tl_status route_args(const tl_call *call, const char *name, int32_t normalize,
                            tl_route_args *out) {
  const tl_view *z = &call->in[0], *weight = &call->out[0];
  const int64_t rows = z->shape[0], experts = tl_view_row(z);
  TL_TRY(tl_expect_range(name, "rows", rows, 0, INT64_C(1) << TL_ROUTE_TOKEN_BITS));
  *out = (tl_route_args){.z = z->data,
                         .weight = weight->data,
                         .expert = call->out[1].data,
                         .found = tl_cuda_found(call->cuda),
                         .note = tl_route_note(tl_cuda_place(call->cuda), call->ints[0]),
                         .rows = rows,
                         .experts = (int32_t)experts,
                         .slots = (int32_t)tl_view_row(weight),
                         .kind = (int32_t)call->ints[1],
                         .normalize = normalize,
                         .vectors = has_vectors(z, experts),
                         .scale = call->floats[0]};
  return TL_OK;
}

tl_status tl_cuda_route(const tl_call *call) {
  const int64_t *ints = call->ints;
  tl_route_args k;
  TL_TRY(tl_route_check(call));
  TL_TRY(route_args(call, "route", ints[4] != 0, &k));
  k.bias = call->in[1].data, k.groups = (int32_t)ints[2], k.top_groups = (int32_t)ints[3];
  return launch_rows(call->cuda, route_rows, k.rows, k.experts, k.groups > 1 ? 2 * k.experts : 0,
                     &k);
}

tl_status tl_cuda_route_table(const tl_call *call) {
  const int64_t *ints = call->ints;
  tl_route_table_args k = {.ids = call->in[1].data, .table = call->in[2].data};
  TL_TRY(tl_route_table_check(call));
  TL_TRY(route_args(call, "route_table", ints[2] != 0, &k.route));
  k.tokens = k.route.rows / ints[3], k.length = ints[4], k.token_first = ints[5];
  k.vocab = tl_view_count(&call->in[2]) / k.route.slots;
  return launch_rows(call->cuda, route_table_rows, k.route.rows, k.route.experts, k.route.experts,
                     &k);
}

tl_status tl_cuda_route_grad(const tl_call *call) {
  const tl_view *z = &call->in[0];
  TL_TRY(tl_route_grad_check(call));
  const int64_t rows = z->shape[0], experts = tl_view_row(z);
  const tl_route_grad_args k = {.z = z->data,
                                .expert = call->in[1].data,
                                .place = call->in[2].data,
                                .dweight = call->in[3].data,
                                .load = call->in[4].data,
                                .dz = tl_array_of(&call->out[0]),
                                .rows = rows,
                                .tokens = rows / call->ints[2],
                                .experts = (int32_t)experts,
                                .slots = (int32_t)tl_view_row(&call->in[1]),
                                .kind = (int32_t)call->ints[0],
                                .normalize = call->ints[1] != 0,
                                .vectors = has_vectors(z, experts),
                                .scale = call->floats[0],
                                .balance = call->floats[1]};
  return launch_rows(call->cuda, route_grad_rows, rows, experts, 2 * experts, &k);
}

tl_status tl_cuda_route_sums(const tl_call *call) {
  const tl_view *z = &call->in[0], *expert = &call->in[1];
  TL_TRY(tl_route_sums_check(call));
  const int64_t samples = call->ints[0], runs = call->ints[1], tokens = z->shape[0] / samples;
  const int64_t experts = tl_view_row(z), longest = (tokens + runs - 1) / runs;
  const int64_t each = (longest + TL_MOE_SUM_TOKENS - 1) / TL_MOE_SUM_TOKENS;
  const int64_t blocks = samples * runs * each;
  TL_TRY(tl_expect_range("route_sums", "blocks of 64 tokens times experts", blocks * experts, 0,
                         TL_CUDA_SCRATCH_BYTES / 8));
  float *sums = tl_cuda_scratch(call->cuda);
  const tl_route_sums_args k = {.z = z->data,
                                .expert = expert->data,
                                .share = call->out[0].data,
                                .load = call->out[1].data,
                                .sums = sums,
                                .counts = (int32_t *)(sums + blocks * experts),
                                .samples = samples,
                                .tokens = tokens,
                                .runs = runs,
                                .blocks = each,
                                .experts = (int32_t)experts,
                                .slots = (int32_t)tl_view_row(expert),
                                .vectors = has_vectors(z, experts)};
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)blocks},
      .threads = {TL_DEVICE_THREADS},
      .shared = (uint32_t)((TL_MOE_WARPS + 1) * experts * (int64_t)sizeof(float)),
  };
  TL_TRY(tl_cuda_launch(call->cuda, route_sums_blocks[size_of(experts)], &grid, &k));
  return tl_launch_threads(call->cuda, "route_sums_runs", samples * experts, &k);
}

tl_status tl_cuda_balance_loss(const tl_call *call) {
  const tl_view *share = &call->in[0];
  TL_TRY(tl_balance_loss_check(call));
  const tl_balance_args k = {.share = share->data,
                             .load = call->in[1].data,
                             .loss = call->out[0].data,
                             .samples = share->shape[0],
                             .experts = (int32_t)tl_view_row(share),
                             .length = (float)call->ints[0]};
  const int64_t blocks = (k.samples + TL_MOE_WARPS - 1) / TL_MOE_WARPS;
  return tl_launch_blocks(call->cuda, balance_rows[size_of(k.experts)], blocks, TL_DEVICE_THREADS,
                          &k);
}
