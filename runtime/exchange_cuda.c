/* exchange_cuda.c - arguments of peer_exchange from those of an instruction. */
#include "exchange_cuda.h"

#include "../kernels/comm/exchange_args.h"
#include "../kernels/moe/exchange.h"
#include "view.h"

enum { BLOCKS = 2 * TL_EXCHANGE_MULTIPROCESSORS };

static tl_status check_room(const tl_exchange *x, int64_t listed) {
  const int64_t runs = x->ranks * x->slots * x->pieces;
  if (listed > TL_EXCHANGE_LISTED_MAX || runs > TL_EXCHANGE_BLOCKS_MAX)
    return tl_fail(TL_ARGUMENT,
                   "an exchange on GPUs lists up to %d experts and %d runs of rows of a wave; this "
                   "one has %lld, and %lld ranks x %lld experts x %lld pieces: more waves, or a "
                   "smaller batch.micro",
                   TL_EXCHANGE_LISTED_MAX, TL_EXCHANGE_BLOCKS_MAX, (long long)listed,
                   (long long)x->ranks, (long long)x->slots, (long long)x->pieces);
  return TL_OK;
}

/* The ints of the row, by position: group share waves wave home hops island experts... */
tl_status tl_exchange_queue(tl_cuda *cuda, const tl_gpu_message *m, const tl_peer_row *parts,
                            int32_t ranks, int32_t position) {
  const int64_t *ints = m->ints, listed = m->int_count - 7;
  tl_exchange x = {.listing = ints + 7, .ranks = ranks, .share = ints[1]};
  x.waves = ints[2], x.wave = ints[3];
  if (ints[5] != 0)
    return tl_fail(TL_ARGUMENT,
                   "exchange: GPUs of one process read each other's memory straight; "
                   "layout.all_to_all = \"flat\", with the same bits");
  TL_TRY(tl_exchange_check("exchange", &m->x[1], &x, listed));
  TL_TRY(check_room(&x, listed));
  tl_exchange_args k = {.parts = parts,
                        .x = m->x->data,
                        .y = m->y->data,
                        .counts = x.counts,
                        .row_bytes = tl_view_row(m->x) * tl_dtype_bytes(m->x->dtype),
                        .room = m->y->shape[0],
                        .ranks = ranks,
                        .position = position,
                        .share = (int32_t)x.share,
                        .pieces = (int32_t)x.pieces,
                        .experts = (int32_t)x.experts,
                        .waves = (int32_t)x.waves,
                        .wave = (int32_t)x.wave,
                        .slots = (int32_t)x.slots,
                        .home = ints[4] != 0};
  for (int64_t i = 0; i < listed; i++) k.listing[i] = (int16_t)x.listing[i];
  const int64_t runs = x.ranks * x.slots * x.pieces;
  const tl_cuda_grid grid = {.blocks = {BLOCKS},
                             .threads = {TL_EXCHANGE_THREADS},
                             .shared = (uint32_t)((2 * runs + 1) * (int64_t)sizeof(int32_t))};
  return tl_cuda_launch_on(cuda, m->stream, "peer_exchange", &grid, &k);
}

tl_status tl_exchange_by_messages(tl_cuda *cuda, const tl_gpu_message *m, int32_t ranks) {
  if (ranks == 1) return tl_exchange_queue(cuda, m, NULL, 1, 0);
  return tl_fail(
      TL_ARGUMENT,
      "exchange: a process for each GPU (NCCL) cannot send rows of experts, whose number "
      "stands in device memory; one process for all GPUs of a machine can (no mpirun, "
      "no torchrun), and so can layout.ep = 1, with the same bits");
}
