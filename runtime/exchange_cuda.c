/* exchange_cuda.c - arguments of peer_exchange from those of an instruction. */
#include "exchange_cuda.h"

#include "../kernels/comm/exchange_args.h"
#include "../kernels/moe/exchange.h"
#include "view.h"

/* MET_BYTES: of shared memory that the kernel has of itself, with what the system keeps of it. */
enum { STAGED_ROW_BYTES = 512, MET_BYTES = TL_PEERS_MAX * sizeof(tl_peer_row) + 1024 };

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
static tl_status read_arguments(const tl_gpu_message *m, const tl_exchange_seat *seat,
                                tl_exchange_args *k) {
  const int64_t *ints = m->ints, listed = m->int_count - 7;
  tl_exchange x = {.listing = ints + 7, .ranks = seat->ranks, .share = ints[1]};
  x.waves = ints[2], x.wave = ints[3];
  if (ints[5] != 0)
    return tl_fail(TL_ARGUMENT,
                   "exchange: between GPUs rows go straight to their owners; "
                   "layout.all_to_all = \"flat\", with the same bits");
  TL_TRY(tl_exchange_check("exchange", &m->x[1], &x, listed));
  TL_TRY(check_room(&x, listed));
  *k = (tl_exchange_args){.x = m->x->data,
                          .y = m->y->data,
                          .counts = x.counts,
                          .row_bytes = tl_exchange_row_bytes(m),
                          .room = m->y->shape[0],
                          .ranks = seat->ranks,
                          .position = seat->position,
                          .own = seat->position,
                          .share = (int32_t)x.share,
                          .pieces = (int32_t)x.pieces,
                          .experts = (int32_t)x.experts,
                          .waves = (int32_t)x.waves,
                          .wave = (int32_t)x.wave,
                          .slots = (int32_t)x.slots,
                          .home = ints[4] != 0};
  for (int64_t i = 0; i < listed; i++) k->listing[i] = (int16_t)x.listing[i];
  return TL_OK;
}

/* Long rows that are written to other GPUs go through shared memory, where the lists leave room for
** them. Slabs do not: that way has not been run for them. */
static tl_status launch(tl_cuda *cuda, const tl_gpu_message *m, tl_exchange_args *k) {
  const int64_t runs = (int64_t)k->ranks * k->slots * k->pieces;
  int64_t shared = (3 * runs + 1) * (int64_t)sizeof(int32_t);
  k->staged = k->mode == TL_EXCHANGE_PUSH && k->row_bytes >= STAGED_ROW_BYTES &&
              TL_EXCHANGE_PLACES_BYTES + shared + MET_BYTES <= tl_cuda_device(cuda)->shared_max;
  if (k->staged) shared += TL_EXCHANGE_PLACES_BYTES;
  const tl_cuda_grid grid = {.blocks = {TL_EXCHANGE_MULTIPROCESSORS},
                             .threads = {TL_EXCHANGE_THREADS},
                             .shared = (uint32_t)shared};
  return tl_cuda_launch_on(cuda, m->stream, "peer_exchange", &grid, k);
}

tl_status tl_exchange_queue(tl_cuda *cuda, const tl_gpu_message *m, const tl_meet_args *meet,
                            const tl_exchange_seat *seat) {
  tl_exchange_args k;
  TL_TRY(read_arguments(m, seat, &k));
  k.mode = TL_EXCHANGE_PUSH;
  if (meet != NULL) k.meet = *meet;
  k.exchanged = seat->exchanged, k.bytes = -1;
  return launch(cuda, m, &k);
}

int64_t tl_exchange_slab_rows(const tl_gpu_message *m) {
  const int64_t x = m->x->shape[0], y = m->y->shape[0];
  return x < y ? x : y;
}

int64_t tl_exchange_row_bytes(const tl_gpu_message *m) {
  return tl_view_row(m->x) * tl_dtype_bytes(m->x->dtype);
}

tl_status tl_exchange_pack(tl_cuda *cuda, const tl_gpu_message *m, const tl_exchange_seat *seat,
                           int32_t target, int64_t at, int64_t most, char *slab) {
  tl_exchange_args k;
  TL_TRY(read_arguments(m, seat, &k));
  k.mode = TL_EXCHANGE_PACK, k.position = target;
  k.at = at, k.most = most, k.y = slab;
  return launch(cuda, m, &k);
}

tl_status tl_exchange_place(tl_cuda *cuda, const tl_gpu_message *m, const tl_exchange_seat *seat,
                            const tl_peer_row *parts, int64_t at, int64_t most) {
  tl_exchange_args k;
  TL_TRY(read_arguments(m, seat, &k));
  k.mode = TL_EXCHANGE_PLACE, k.parts = parts;
  k.at = at, k.most = most;
  k.exchanged = seat->exchanged, k.bytes = (seat->ranks - 1) * most * k.row_bytes;
  return launch(cuda, m, &k);
}
