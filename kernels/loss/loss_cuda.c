/* loss_cuda.c - queues the kernels of the loss operators. */
#include "loss.h"

#include "../launch_cuda.h"
#include "loss_args.h"

/* --- Rows of logits --------------------------------------------------------------------------- */

static tl_logits_args logits_of(const tl_call *call) {
  const tl_view *z = &call->in[0];
  return (tl_logits_args){
      .z = tl_array_of(z), .rows = z->shape[0], .width = tl_view_row(z), .columns = call->ints[0]};
}

tl_status tl_cuda_row_max(const tl_call *call) {
  TL_TRY(tl_row_max_check(call));
  tl_logits_args k = logits_of(call);
  k.out_m = call->out[0].data;
  k.lanes = tl_row_lanes(k.width);
  return tl_overlap_threads(call->cuda, "row_max_rows", k.rows * k.lanes, &k);
}

/* The kernel whose leaves are as long as these. */
static tl_status launch_sum_exp_whole(tl_cuda *cuda, const tl_logits_args *k) {
  const int64_t spans = (k->width / k->leaves + TL_DEVICE_PARTIALS - 1) / TL_DEVICE_PARTIALS;
  const tl_cuda_grid grid = {.blocks = {(uint32_t)k->rows},
                             .threads = {TL_DEVICE_THREADS},
                             .shared = (uint32_t)k->leaves * TL_DEVICE_THREADS * 2 * sizeof(float)};
  const char *kernel = spans <= 1   ? "row_sum_exp_whole_1"
                       : spans <= 2 ? "row_sum_exp_whole_2"
                       : spans <= 4 ? "row_sum_exp_whole_4"
                                    : "row_sum_exp_whole_8";
  return tl_cuda_launch(cuda, kernel, &grid, k);
}

tl_status tl_cuda_row_sum_exp(const tl_call *call) {
  TL_TRY(tl_row_sum_exp_check(call));
  tl_logits_args k = logits_of(call);
  k.first = call->ints[1];
  k.leaves = call->ints[2];
  k.m = call->in[1].data;
  k.targets = call->in[2].data;
  k.out_s = call->out[0].data;
  k.out_zt = call->out[1].data;
  k.out_zsum = call->out[2].data;
  k.lanes = tl_row_lanes(k.width / k.leaves);
  if (k.lanes == TL_DEVICE_THREADS && k.columns == k.width && k.leaves <= TL_LOSS_WHOLE_LEAVES &&
      k.rows <= INT32_MAX && tl_whole(&k.z, k.width / k.leaves))
    return launch_sum_exp_whole(call->cuda, &k);
  if (k.lanes == TL_DEVICE_THREADS && k.leaves > 1 && k.leaves <= TL_LOSS_SIDE_LEAVES)
    return tl_launch(call->cuda, "row_sum_exp_side", k.rows, (uint32_t)k.leaves * TL_DEVICE_THREADS,
                     1, &k);
  return tl_overlap_threads(call->cuda, "row_sum_exp_rows", k.rows * k.lanes, &k);
}

static tl_status launch_grad(const tl_call *call, const tl_logits_args *k) {
  if (tl_whole(&k->z, k->width) && tl_whole(&k->dz, k->width) &&
      k->columns % TL_DEVICE_PIECE == 0 && k->width >= TL_DEVICE_PARTIALS)
    return tl_launch_blocks(call->cuda, "logits_grad_whole", k->rows, TL_DEVICE_THREADS, k);
  return tl_launch_threads(call->cuda, "logits_grad_elements", k->rows * tl_pieces(k->width), k);
}

tl_status tl_cuda_cross_entropy_grad(const tl_call *call) {
  TL_TRY(tl_cross_entropy_grad_check(call));
  tl_logits_args k = logits_of(call);
  k.m = call->in[1].data;
  k.s = call->in[2].data;
  k.targets = call->in[3].data;
  k.drow = call->in[4].data;
  k.dz = tl_array_of(&call->out[0]);
  k.first = call->ints[1];
  k.vocab = (float)call->ints[2];
  k.smoothing = call->floats[0];
  k.weight = call->floats[1];
  return launch_grad(call, &k);
}

tl_status tl_cuda_logsumexp_grad(const tl_call *call) {
  TL_TRY(tl_logsumexp_grad_check(call));
  tl_logits_args k = logits_of(call);
  k.m = call->in[1].data;
  k.s = call->in[2].data;
  k.drow = call->in[3].data;
  k.dz = tl_array_of(&call->out[0]);
  k.vocab = 1.0f;
  return launch_grad(call, &k);
}

/* --- One number for each token ---------------------------------------------------------------- */

tl_status tl_cuda_cross_entropy(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_cross_entropy_check(call));
  const tl_tokens_args k = {.m = call->in[0].data,
                            .s = call->in[1].data,
                            .zt = call->in[2].data,
                            .zsum = call->in[3].data,
                            .targets = call->in[4].data,
                            .out = call->out[0].data,
                            .rows = rows,
                            .vocab = (float)call->ints[0],
                            .smoothing = call->floats[0],
                            .weight = call->floats[1]};
  return tl_overlap_threads(call->cuda, "cross_entropy_tokens", rows, &k);
}

tl_status tl_cuda_logsumexp(const tl_call *call) {
  TL_TRY(tl_logsumexp_check(call));
  const int64_t rows = tl_view_count(&call->out[0]);
  const tl_tokens_args k = {
      .m = call->in[0].data, .s = call->in[1].data, .out = call->out[0].data, .rows = rows};
  return tl_launch_threads(call->cuda, "logsumexp_tokens", rows, &k);
}

tl_status tl_cuda_loss_seed(const tl_call *call) {
  TL_TRY(tl_loss_seed_check(call));
  const int64_t rows = tl_view_count(&call->out[0]);
  const tl_tokens_args k = {.targets = call->in[0].data,
                            .count = call->in[1].data,
                            .out = call->out[0].data,
                            .rows = rows};
  return tl_launch_threads(call->cuda, "loss_seed_tokens", rows, &k);
}

tl_status tl_cuda_loss_mask(const tl_call *call) {
  TL_TRY(tl_loss_mask_check(call));
  const int64_t rows = tl_view_count(&call->out[0]);
  const tl_tokens_args k = {.loss = call->in[0].data,
                            .targets = call->in[1].data,
                            .out = call->out[0].data,
                            .rows = rows};
  return tl_launch_threads(call->cuda, "loss_mask_tokens", rows, &k);
}

tl_status tl_cuda_loss_finish(const tl_call *call) {
  TL_TRY(tl_loss_finish_check(call));
  const tl_tokens_args k = {
      .loss = call->in[0].data, .count = call->in[1].data, .out = call->out[0].data, .rows = 1};
  return tl_launch_blocks(call->cuda, "loss_finish_one", 1, TL_DEVICE_WARP, &k);
}
