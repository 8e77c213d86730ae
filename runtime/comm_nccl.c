/* comm_nccl.c - collectives as sends and receives in groups, in chunks of fixed staging. */
#include <pthread.h>

#include "comm_nccl_inner.h"
#include "exchange_cuda.h"

enum { BYTES_TYPE = 0, /* ncclInt8 */ BLOCKS_MAX = 1056, SLICE_ELEMENTS = 16 };

/* --- Small steps ------------------------------------------------------------------------------ */

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status launch(tl_nccl *n, void *stream, const char *kernel, int64_t items,
                        const void *args) {
  const int64_t blocks = (items + TL_DEVICE_THREADS - 1) / TL_DEVICE_THREADS;
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)(blocks < 1            ? 1
                            : blocks < BLOCKS_MAX ? blocks
                                                  : BLOCKS_MAX),
                 1,                                                                  1},
      .threads = {items == 1 ? 1 : TL_DEVICE_THREADS,                              1, 1}
  };
  return tl_cuda_launch_on(n->cuda, stream, kernel, &grid, args);
}

static tl_status mark(tl_nccl *n, const tl_gpu_message *m, int32_t waits_for) {
  const tl_peer_mark_args k = {n->progress, m->instruction, waits_for};
  return launch(n, m->stream, "peer_mark", 1, &k);
}

static tl_status put(tl_nccl *n, int32_t rank, const void *x, int64_t bytes, void *stream) {
  if (bytes <= 0) return TL_OK;
  TRY_NCCL(n, "send", send(x, (size_t)bytes, BYTES_TYPE, rank, n->comm, stream));
  return TL_OK;
}

static tl_status take(tl_nccl *n, int32_t rank, void *x, int64_t bytes, void *stream) {
  if (bytes <= 0) return TL_OK;
  TRY_NCCL(n, "receive", recv(x, (size_t)bytes, BYTES_TYPE, rank, n->comm, stream));
  return TL_OK;
}

static int64_t clamp(int64_t left, int64_t most) {
  return left < 0 ? 0 : left < most ? left : most;
}

static int64_t chunk_of(const nccl_group *g) { return STAGING_BYTES / g->n / 64 * 64; }

/* --- Sums ------------------------------------------------------------------------------------- */

static int64_t slice_first(const nccl_group *g, int32_t slice, int64_t count) {
  return slice == g->n ? count : slice * (count / SLICE_ELEMENTS) / g->n * SLICE_ELEMENTS;
}

/* Elements at .. at + count - 1 of member j's share of x; the share of a reduce_scatter is spread
** over pieces and is packed. */
typedef struct shares {
  const char *x;
  int64_t element, count, piece, outer; /* piece 0: slices of count elements */
} shares;

static int64_t share_of(const nccl_group *g, const shares *s, int32_t j) {
  if (s->piece > 0) return s->outer * s->piece;
  return slice_first(g, j + 1, s->count) - slice_first(g, j, s->count);
}

static tl_status find_share(tl_nccl *n, const nccl_group *g, const shares *s, int32_t j, int64_t at,
                            int64_t count, void *stream, const char **out) {
  if (s->piece == 0 || s->outer == 1) {
    const int64_t first = s->piece == 0 ? slice_first(g, j, s->count) : j * s->piece;
    *out = s->x + (first + at) * s->element;
    return TL_OK;
  }
  char *packed = n->out + j * chunk_of(g);
  const tl_peer_pack_args k = {.packed = packed,
                               .spread = (char *)(uintptr_t)s->x,
                               .at = at,
                               .count = count,
                               .run = s->piece,
                               .stride = g->n * s->piece,
                               .first = j * s->piece,
                               .word = 4};
  *out = packed;
  return count == 0 ? TL_OK : launch(n, stream, "peer_pack", count, &k);
}

static tl_status exchange_chunk(tl_nccl *n, const nccl_group *g, const shares *s, int64_t at,
                                void *stream, tl_peer_rows_args *rows) {
  const int64_t chunk = chunk_of(g) / s->element;
  const char *from[TL_PEERS_MAX];
  const int64_t mine = clamp(share_of(g, s, g->position) - at, chunk);
  for (int32_t j = 0; j < g->n; j++)
    TL_TRY(find_share(n, g, s, j, at, clamp(share_of(g, s, j) - at, chunk), stream, &from[j]));
  TRY_NCCL(n, "group", begin());
  tl_status status = TL_OK;
  for (int32_t j = 0; j < g->n && status == TL_OK; j++) {
    char *in = n->in + j * chunk_of(g);
    const int64_t theirs = clamp(share_of(g, s, j) - at, chunk);
    rows->x[j] = j == g->position ? from[j] : in;
    if (j == g->position) continue;
    status = put(n, g->ranks[j], from[j], theirs * s->element, stream);
    if (status == TL_OK) status = take(n, g->ranks[j], in, mine * s->element, stream);
  }
  TRY_NCCL(n, "group", end());
  return status;
}

static tl_status fold_shares(tl_nccl *n, const nccl_group *g, const shares *s, int32_t kind,
                             char *y, void *stream) {
  const int64_t chunk = chunk_of(g) / s->element;
  int64_t longest = 0;
  for (int32_t j = 0; j < g->n; j++)
    longest = share_of(g, s, j) > longest ? share_of(g, s, j) : longest;
  for (int64_t at = 0; at < longest; at += chunk) {
    const int64_t mine = clamp(share_of(g, s, g->position) - at, chunk);
    tl_peer_rows_args rows = {.rows = n->rows, .n = g->n};
    TL_TRY(exchange_chunk(n, g, s, at, stream, &rows));
    if (mine == 0) continue;
    const tl_peer_fold_args k = {.parts = n->rows,
                                 .out = y + at * s->element,
                                 .outer = 1,
                                 .piece = mine,
                                 .n = g->n,
                                 .kind = kind};
    const char *kernel = kind != TL_PEER_TREE ? "peer_fold"
                         : g->n == 2          ? "peer_fold_2"
                         : g->n == 4          ? "peer_fold_4"
                         : g->n == 8          ? "peer_fold_8"
                                              : "peer_fold";
    TL_TRY(launch(n, stream, "peer_rows", g->n, &rows));
    TL_TRY(launch(n, stream, kernel, mine / 4 + 2, &k));
  }
  return TL_OK;
}

static tl_status reduce_scatter(tl_nccl *n, const nccl_group *g, const tl_gpu_message *m) {
  const int64_t outer = m->ints[1], piece = tl_view_count(m->y) / outer;
  const shares s = {m->x->data, sizeof(float), 0, piece, outer};
  return piece == 0 ? TL_OK : fold_shares(n, g, &s, TL_PEER_TREE, m->y->data, m->stream);
}

static tl_status all_reduce(tl_nccl *n, const nccl_group *g, const tl_gpu_message *m,
                            int32_t kind) {
  const int64_t count = tl_view_count(m->x), element = tl_dtype_bytes(m->x->dtype);
  const shares s = {m->x->data, element, count, 0, 1};
  char *y = m->y->data, *mine = y + slice_first(g, g->position, count) * element;
  TL_TRY(fold_shares(n, g, &s, kind, mine, m->stream));
  TRY_NCCL(n, "group", begin());
  tl_status status = TL_OK;
  for (int32_t j = 0; j < g->n && status == TL_OK; j++) {
    if (j == g->position) continue;
    status = put(n, g->ranks[j], mine, share_of(g, &s, g->position) * element, m->stream);
    if (status == TL_OK)
      status = take(n, g->ranks[j], y + slice_first(g, j, count) * element,
                    share_of(g, &s, j) * element, m->stream);
  }
  TRY_NCCL(n, "group", end());
  return status;
}

/* --- Movement --------------------------------------------------------------------------------- */

/* Bytes at .. at + count - 1 of member j's x, which came to `from`, to their places in y. */
static tl_status place_piece(tl_nccl *n, const nccl_group *g, const tl_gpu_message *m, int32_t j,
                             int64_t at, int64_t count, const char *from) {
  const int64_t bytes = tl_view_bytes(m->x) / m->ints[1];
  const int64_t word = (bytes | at | count) % 4 == 0 ? 4 : 1;
  const tl_peer_pack_args k = {.packed = (char *)(uintptr_t)from,
                               .spread = m->y->data,
                               .at = at / word,
                               .count = count / word,
                               .run = bytes / word,
                               .stride = g->n * bytes / word,
                               .first = j * bytes / word,
                               .word = (int32_t)word,
                               .unpack = 1};
  return launch(n, m->stream, "peer_pack", k.count + 1, &k);
}

static tl_status gather_chunk(tl_nccl *n, const nccl_group *g, const tl_gpu_message *m, int64_t at,
                              int64_t count) {
  const char *x = (const char *)m->x->data + at;
  tl_status status = TL_OK;
  TRY_NCCL(n, "group", begin());
  for (int32_t j = 0; j < g->n && status == TL_OK; j++) {
    if (j == g->position) continue;
    status = put(n, g->ranks[j], x, count, m->stream);
    if (status == TL_OK) status = take(n, g->ranks[j], n->in + j * chunk_of(g), count, m->stream);
  }
  TRY_NCCL(n, "group", end());
  for (int32_t j = 0; j < g->n && status == TL_OK; j++)
    status = place_piece(n, g, m, j, at, count, j == g->position ? x : n->in + j * chunk_of(g));
  return status;
}

static tl_status all_gather(tl_nccl *n, const nccl_group *g, const tl_gpu_message *m) {
  const int64_t whole = tl_view_bytes(m->x), chunk = chunk_of(g);
  for (int64_t at = 0; at < whole; at += chunk)
    TL_TRY(gather_chunk(n, g, m, at, clamp(whole - at, chunk)));
  return TL_OK;
}

/* NCCL wants lengths from the host, and how many rows there are is known to the device alone: slabs
** are as long as they could be, and travel in chunks of the staging. */
static tl_status exchange_slabs(tl_nccl *n, const nccl_group *g, int64_t bytes, void *stream) {
  tl_status status = TL_OK;
  TRY_NCCL(n, "group", begin());
  for (int32_t j = 0; j < g->n && status == TL_OK; j++) {
    if (j == g->position) continue;
    status = put(n, g->ranks[j], n->out + j * chunk_of(g), bytes, stream);
    if (status == TL_OK) status = take(n, g->ranks[j], n->in + j * chunk_of(g), bytes, stream);
  }
  TRY_NCCL(n, "group", end());
  return status;
}

static tl_status exchange(tl_nccl *n, const nccl_group *g, const tl_gpu_message *m) {
  const int64_t slab = tl_exchange_slab_rows(m), row = tl_exchange_row_bytes(m);
  const int64_t chunk = chunk_of(g) / (row > 0 ? row : 1);
  const tl_exchange_seat seat = {g->n, g->position, n->progress->exchanged + m->ints[0]};
  tl_peer_rows_args rows = {.rows = n->rows, .n = g->n};
  for (int32_t j = 0; j < g->n; j++)
    rows.x[j] = j == g->position ? m->x->data : n->in + j * chunk_of(g);
  if (chunk == 0)
    return tl_fail(TL_ARGUMENT,
                   "exchange: a row of %lld bytes; between processes it has room for "
                   "%lld",
                   (long long)row, (long long)chunk_of(g));
  TL_TRY(launch(n, m->stream, "peer_rows", g->n, &rows));
  for (int64_t at = 0; at < slab; at += chunk) {
    const int64_t most = clamp(slab - at, chunk);
    for (int32_t j = 0; j < g->n; j++)
      if (j != g->position)
        TL_TRY(tl_exchange_pack(n->cuda, m, &seat, j, at, most, n->out + j * chunk_of(g)));
    TL_TRY(exchange_slabs(n, g, most * row, m->stream));
    TL_TRY(tl_exchange_place(n->cuda, m, &seat, n->rows, at, most));
  }
  return TL_OK;
}

static tl_status collective(tl_nccl *n, const tl_gpu_message *m) {
  const nccl_group *g = &n->groups[m->ints[0]];
  const int tree = m->op == TL_OP_reduce_scatter || m->op == TL_OP_all_reduce;
  if (tree && (g->n & (g->n - 1)) != 0)
    return tl_fail(TL_ARGUMENT, "a tree over %d ranks: the number of ranks must be a power of two",
                   g->n);
  if (g->n == 1 && m->op == TL_OP_exchange)
    return tl_exchange_queue(n->cuda, m, NULL, &(tl_exchange_seat){.ranks = 1});
  if (g->n == 1) {
    if (m->x->data != m->y->data)
      TRY_CUDA(n, "copy",
               copy_within(address(m->y->data), address(m->x->data), (size_t)tl_view_bytes(m->x),
                           m->stream));
    return TL_OK;
  }
  TL_TRY(mark(n, m, g->ranks[g->position == 0 ? 1 : 0]));
  switch (m->op) {
    case TL_OP_all_gather: TL_TRY(all_gather(n, g, m)); break;
    case TL_OP_reduce_scatter: TL_TRY(reduce_scatter(n, g, m)); break;
    case TL_OP_all_reduce: TL_TRY(all_reduce(n, g, m, TL_PEER_TREE)); break;
    case TL_OP_all_reduce_max: TL_TRY(all_reduce(n, g, m, TL_PEER_MAX)); break;
    case TL_OP_exchange: TL_TRY(exchange(n, g, m)); break;
    case TL_OP_all_reduce_count: TL_TRY(all_reduce(n, g, m, TL_PEER_COUNT)); break;
    default: return tl_fail(TL_PROGRAM, "no way to communicate by %s", tl_ops[m->op].name);
  }
  return mark(n, m, -1);
}

/* --- Messages --------------------------------------------------------------------------------- */

static tl_status find_channel(tl_nccl *n, int32_t source, int32_t target, int64_t number,
                              nccl_channel **out) {
  for (int32_t i = 0; i < n->channel_count; i++) {
    nccl_channel *c = &n->channels[i];
    if (c->source != source || c->target != target || c->number != number) continue;
    *out = c;
    return TL_OK;
  }
  return tl_fail(TL_COMM, "there is no channel %lld from rank %d to rank %d", (long long)number,
                 source, target);
}

/* The slot is free when its last message has gone. */
static tl_status send_message(tl_nccl *n, const tl_gpu_message *m, nccl_channel *c) {
  const int32_t slot = c->next;
  char *at = c->slots + slot * c->slot_bytes;
  const size_t bytes = (size_t)tl_view_bytes(m->x);
  c->next = (slot + 1) % TL_SLOTS;
  if (c->used >= TL_SLOTS) TRY_CUDA(n, "wait", stream_after(m->stream, c->done[slot], 0));
  TRY_CUDA(n, "copy of a message", copy_within(address(at), address(m->x->data), bytes, m->stream));
  TRY_CUDA(n, "event", event_record(c->ready, m->stream));
  TRY_CUDA(n, "wait", stream_after(c->stream, c->ready, 0));
  TRY_NCCL(n, "send", send(at, bytes, BYTES_TYPE, 1, c->comm, c->stream));
  TRY_CUDA(n, "event", event_record(c->done[slot], c->stream));
  c->used++;
  return TL_OK;
}

static tl_status receive_message(tl_nccl *n, const tl_gpu_message *m, nccl_channel *c) {
  const size_t bytes = (size_t)tl_view_bytes(m->y);
  TL_TRY(mark(n, m, c->source));
  TRY_CUDA(n, "event", event_record(c->ready, m->stream));
  TRY_CUDA(n, "wait", stream_after(c->stream, c->ready, 0));
  TRY_NCCL(n, "receive", recv(m->y->data, bytes, BYTES_TYPE, 0, c->comm, c->stream));
  TRY_CUDA(n, "event", event_record(c->done[0], c->stream));
  TRY_CUDA(n, "wait", stream_after(m->stream, c->done[0], 0));
  return mark(n, m, -1);
}

static tl_status queue(tl_gpu_comm *comm, const tl_gpu_message *m) {
  tl_nccl *n = (tl_nccl *)comm;
  const nccl_group *g = &n->groups[m->ints[0]];
  nccl_channel *c = NULL;
  if (m->op == TL_OP_send) {
    TL_TRY(find_channel(n, n->rank, g->ranks[m->ints[1]], m->ints[2], &c));
    return send_message(n, m, c);
  }
  if (m->op == TL_OP_recv) {
    TL_TRY(find_channel(n, g->ranks[m->ints[1]], n->rank, m->ints[2], &c));
    return receive_message(n, m, c);
  }
  return collective(n, m);
}

static tl_status finish(tl_gpu_comm *comm, void *stream) {
  tl_nccl *n = (tl_nccl *)comm;
  for (int32_t i = 0; i < n->channel_count; i++) {
    nccl_channel *c = &n->channels[i];
    for (int32_t k = 0; k < TL_SLOTS && k < c->used; k++)
      TRY_CUDA(n, "wait", stream_after(stream, c->done[k], 0));
    c->used = c->next = 0; /* a section is queued as if it were the first: it may be replayed */
  }
  return TL_OK;
}

static int32_t waits_for(tl_gpu_comm *comm, int32_t *instruction) {
  const volatile tl_peer_progress *p = ((tl_nccl *)comm)->progress;
  *instruction = p->instruction;
  return p->waits_for;
}

static void *abort_one(void *comm) {
  const tl_nccl_api *api;
  if (tl_nccl_find(&api) == TL_OK) api->abort(comm);
  return NULL;
}

/* An abort ends the kernels at once, but returns only when no graph knows the communicator, or not
** at all when a peer is stopped: it has a thread of its own, which nobody waits for. */
static void abort_apart(void *comm) {
  pthread_t thread;
  if (comm != NULL && pthread_create(&thread, NULL, abort_one, comm) == 0) pthread_detach(thread);
}

static void stop(tl_gpu_comm *comm) {
  tl_nccl *n = (tl_nccl *)comm;
  if (n->stopped) return;
  n->stopped = 1;
  abort_apart(n->comm);
  for (int32_t i = 0; i < n->channel_count; i++) abort_apart(n->channels[i].comm);
}

static int64_t exchanged(tl_gpu_comm *comm, int32_t g) {
  return ((volatile tl_peer_progress *)((tl_nccl *)comm)->progress)->exchanged[g];
}

const tl_gpu_comm_kind tl_nccl_kind = {
    TL_PATH_NETWORK, queue, finish, waits_for, stop, exchanged,
};
