/* peers_cuda.c - boards, channels, and the kernels of a collective in their order. */
#include "peers_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "../kernels/comm/comm_args.h"
#include "exchange_cuda.h"
#include "memory.h"

enum {
  WHOLE_BYTES = 1 << 20, /* an all_reduce of two ranks up to here is folded by both */
  BLOCKS_MAX = 1056,     /* of a copy or fold; blocks stride over the rest */
  SLICE_ELEMENTS = 16    /* borders of slices are multiples of this */
};

typedef struct group {
  const char *name;
  int32_t ranks[TL_PEERS_MAX];
  int32_t n, position;
  tl_peer_row *board, *parts; /* device memory: (2, n), (n) */
  uint64_t *turn;
  tl_peer_row *boards[TL_PEERS_MAX]; /* of the members */
} group;

typedef struct channel {
  struct channel *next;
  int32_t source, target, number;
  int64_t slot_bytes, bytes_max;
  char *slots;                         /* on the target */
  uint64_t *source_side, *target_side; /* on either side: { done, done by the other } */
} channel;

typedef struct end {
  tl_gpu_comm base;
  tl_peers *peers;
  tl_cuda *cuda;
  void *whole; /* WHOLE_BYTES */
  tl_peer_progress *progress;
  int64_t bytes; /* of device memory */
  group groups[TL_GROUPS_MAX];
} end;

struct tl_peers {
  int32_t ranks;
  channel *channels;
  end ends[];
};

#define TRY_CUDA(e, what, call) \
  TL_TRY(tl_cuda_check(tl_cuda_calls((e)->cuda), tl_cuda_calls((e)->cuda)->call, what))

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

/* Zeroed memory of the rank's GPU, counted. */
static tl_status alloc(end *e, int64_t bytes, void *out) {
  void *memory;
  TL_TRY(tl_cuda_enter(e->cuda));
  TL_TRY(tl_cuda_alloc(e->cuda, bytes, &memory));
  e->bytes += bytes;
  tl_memory_note(TL_MEMORY_COMM, bytes);
  memcpy(out, &memory, sizeof memory);
  TRY_CUDA(e, "fill", fill(address(memory), 0, (size_t)bytes, tl_cuda_stream(e->cuda)));
  TRY_CUDA(e, "fill", stream_wait(tl_cuda_stream(e->cuda)));
  return TL_OK;
}

static tl_status launch(end *e, const tl_gpu_message *m, const char *kernel, uint32_t blocks,
                        uint32_t rows, uint32_t threads, const void *args) {
  const tl_cuda_grid grid = {
      .blocks = {blocks,  rows, 1},
        .threads = {threads, 1,    1}
  };
  return tl_cuda_launch_on(e->cuda, m->stream, kernel, &grid, args);
}

static uint32_t blocks_for(int64_t items) {
  const int64_t blocks = (items + TL_DEVICE_THREADS - 1) / TL_DEVICE_THREADS;
  return (uint32_t)(blocks < 1 ? 1 : blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX);
}

/* --- Collectives ------------------------------------------------------------------------------ */

static tl_meet_args meeting(const end *e, const group *g, const tl_gpu_message *m, int32_t turns) {
  tl_meet_args k = {.board = g->board,
                    .parts = g->parts,
                    .turn = g->turn,
                    .x = m->x->data,
                    .y = m->y->data,
                    .progress = e->progress,
                    .n = g->n,
                    .position = g->position,
                    .group = (int32_t)m->ints[0],
                    .instruction = m->instruction,
                    .turns = turns};
  memcpy(k.boards, g->boards, sizeof k.boards);
  return k;
}

static tl_status meet(end *e, const group *g, const tl_gpu_message *m) {
  const tl_meet_args k = meeting(e, g, m, 1);
  return launch(e, m, "peer_meet", 1, 1, TL_DEVICE_WARP, &k);
}

static tl_status fold(end *e, const group *g, const tl_gpu_message *m, tl_peer_fold_args *k) {
  k->parts = g->parts, k->n = g->n;
  const int64_t count = k->outer * k->piece;
  const char *kernel = k->kind != TL_PEER_TREE ? "peer_fold"
                       : g->n == 2             ? "peer_fold_2"
                       : g->n == 4             ? "peer_fold_4"
                       : g->n == 8             ? "peer_fold_8"
                                               : "peer_fold";
  if (count == 0) return TL_OK;
  return launch(e, m, kernel, blocks_for(count / 4 + 1), 1, TL_DEVICE_THREADS, k);
}

static tl_status reduce_scatter(end *e, const group *g, const tl_gpu_message *m) {
  const int64_t outer = m->ints[1], piece = tl_view_count(m->y) / outer;
  tl_peer_fold_args k = {.out = m->y->data,
                         .outer = outer,
                         .piece = piece,
                         .part_first = g->position * piece,
                         .part_stride = g->n * piece};
  TL_TRY(meet(e, g, m));
  TL_TRY(fold(e, g, m, &k));
  return meet(e, g, m);
}

static tl_status all_gather(end *e, const group *g, const tl_gpu_message *m) {
  const int64_t outer = m->ints[1], bytes = tl_view_bytes(m->x) / outer;
  const tl_peer_gather_args k = {
      .parts = g->parts, .out = m->y->data, .outer = outer, .bytes = bytes, .n = g->n};
  TL_TRY(meet(e, g, m));
  if (bytes > 0)
    TL_TRY(launch(e, m, "peer_gather", blocks_for(outer * bytes * g->n / 16 + 1), 1,
                  TL_DEVICE_THREADS, &k));
  return meet(e, g, m);
}

static int64_t slice_first(const group *g, int32_t slice, int64_t count) {
  return slice == g->n ? count : slice * (count / SLICE_ELEMENTS) / g->n * SLICE_ELEMENTS;
}

static tl_status reduce_whole(end *e, const group *g, const tl_gpu_message *m,
                              tl_peer_fold_args *k) {
  const int in_place = m->x->data == m->y->data;
  k->out = in_place ? e->whole : m->y->data;
  k->piece = tl_view_count(m->x);
  TL_TRY(meet(e, g, m));
  TL_TRY(fold(e, g, m, k));
  TL_TRY(meet(e, g, m));
  if (in_place)
    TRY_CUDA(e, "copy of a sum",
             copy_within(address(m->y->data), address(e->whole), (size_t)tl_view_bytes(m->y),
                         m->stream));
  return TL_OK;
}

static tl_status all_reduce(end *e, const group *g, const tl_gpu_message *m, int32_t kind) {
  const int64_t count = tl_view_count(m->x), bytes = tl_view_bytes(m->x);
  const int64_t element = tl_dtype_bytes(m->x->dtype);
  const int64_t first = slice_first(g, g->position, count);
  tl_peer_fold_args k = {.kind = kind, .outer = 1};
  if (bytes * g->n <= 2 * WHOLE_BYTES) return reduce_whole(e, g, m, &k);
  k.out = (char *)m->y->data + first * element;
  k.piece = slice_first(g, g->position + 1, count) - first;
  k.part_first = first;
  tl_peer_pull_args pull = {
      .parts = g->parts, .out = m->y->data, .n = g->n, .position = g->position};
  for (int32_t r = 0; r <= g->n; r++) pull.border[r] = slice_first(g, r, count) * element;
  TL_TRY(meet(e, g, m));
  TL_TRY(fold(e, g, m, &k));
  TL_TRY(meet(e, g, m));
  TL_TRY(launch(e, m, "peer_pull", blocks_for(bytes / g->n / 16 + 1), (uint32_t)g->n,
                TL_DEVICE_THREADS, &pull));
  return meet(e, g, m);
}

/* A group of one: nothing is added. */
static tl_status copy_alone(end *e, const tl_gpu_message *m) {
  if (m->x->data == m->y->data || tl_view_bytes(m->x) == 0) return TL_OK;
  TRY_CUDA(e, "copy",
           copy_within(address(m->y->data), address(m->x->data), (size_t)tl_view_bytes(m->x),
                       m->stream));
  return TL_OK;
}

static tl_status exchange(end *e, const group *g, const tl_gpu_message *m) {
  const tl_exchange_seat seat = {g->n, g->position, e->progress->exchanged + m->ints[0]};
  if (g->n == 1) return tl_exchange_queue(e->cuda, m, NULL, &seat);
  const tl_meet_args before = meeting(e, g, m, 1), behind = meeting(e, g, m, 2);
  TL_TRY(tl_exchange_queue(e->cuda, m, &before, &seat));
  return launch(e, m, "peer_meet", 1, 1, TL_DEVICE_WARP, &behind);
}

static int is_tree(tl_op op) { return op == TL_OP_reduce_scatter || op == TL_OP_all_reduce; }

static tl_status collective(end *e, const tl_gpu_message *m) {
  const group *g = &e->groups[m->ints[0]];
  if (is_tree(m->op) && (g->n & (g->n - 1)) != 0)
    return tl_fail(TL_ARGUMENT, "a tree over %d ranks: the number of ranks must be a power of two",
                   g->n);
  if (m->op == TL_OP_exchange) return exchange(e, g, m);
  if (g->n == 1) return copy_alone(e, m);
  switch (m->op) {
    case TL_OP_all_gather: return all_gather(e, g, m);
    case TL_OP_reduce_scatter: return reduce_scatter(e, g, m);
    case TL_OP_all_reduce: return all_reduce(e, g, m, TL_PEER_TREE);
    case TL_OP_all_reduce_max: return all_reduce(e, g, m, TL_PEER_MAX);
    case TL_OP_all_reduce_count: return all_reduce(e, g, m, TL_PEER_COUNT);
    default: return tl_fail(TL_PROGRAM, "no way to communicate by %s", tl_ops[m->op].name);
  }
}

/* --- Messages --------------------------------------------------------------------------------- */

static channel *find_channel(const tl_peers *p, int32_t source, int32_t target, int32_t number) {
  for (channel *c = p->channels; c != NULL; c = c->next)
    if (c->source == source && c->target == target && c->number == number) return c;
  return NULL;
}

static tl_status message(end *e, const tl_gpu_message *m) {
  const group *g = &e->groups[m->ints[0]];
  const int receives = m->op == TL_OP_recv;
  const int32_t me = g->ranks[g->position], peer = g->ranks[m->ints[1]];
  const int32_t source = receives ? peer : me, target = receives ? me : peer;
  const channel *c = find_channel(e->peers, source, target, (int32_t)m->ints[2]);
  const tl_view *x = receives ? m->y : m->x;
  if (c == NULL || tl_view_bytes(x) > c->bytes_max)
    return tl_fail(TL_COMM, "there is no channel %lld from rank %d to rank %d for %lld bytes",
                   (long long)m->ints[2], source, target, (long long)tl_view_bytes(x));
  uint64_t *mine = receives ? c->target_side : c->source_side;
  const tl_peer_message_args k = {.mine = mine,
                                  .theirs = mine + 1,
                                  .told = (receives ? c->source_side : c->target_side) + 1,
                                  .slots = c->slots,
                                  .x = x->data,
                                  .slot_bytes = c->slot_bytes,
                                  .bytes = tl_view_bytes(x),
                                  .progress = e->progress,
                                  .receives = receives,
                                  .peer = peer,
                                  .instruction = m->instruction};
  TL_TRY(launch(e, m, "peer_message_wait", 1, 1, 1, &k));
  TL_TRY(launch(e, m, "peer_message_copy", blocks_for(k.bytes / 16 + 1), 1, TL_DEVICE_THREADS, &k));
  return launch(e, m, "peer_message_tell", 1, 1, 1, &k);
}

static tl_status queue(tl_gpu_comm *comm, const tl_gpu_message *m) {
  end *e = (end *)comm;
  return m->op == TL_OP_send || m->op == TL_OP_recv ? message(e, m) : collective(e, m);
}

/* --- What the host sees ----------------------------------------------------------------------- */

static int32_t waits_for(tl_gpu_comm *comm, int32_t *instruction) {
  const end *e = (end *)comm;
  const volatile tl_peer_progress *p = e->progress;
  const int32_t peer = p->waits_for, g = p->group;
  *instruction = p->instruction;
  return peer < 0 ? -1 : g < 0 ? peer : g < TL_GROUPS_MAX ? e->groups[g].ranks[peer] : -1;
}

static void stop(tl_gpu_comm *comm) {
  ((volatile tl_peer_progress *)((end *)comm)->progress)->stop = 1;
}

static int64_t exchanged(tl_gpu_comm *comm, int32_t g) {
  return ((volatile tl_peer_progress *)((end *)comm)->progress)->exchanged[g];
}

static const tl_gpu_comm_kind peer_kind = {
    TL_PATH_PEER, queue, NULL, waits_for, stop, exchanged,
};

/* --- Opening ---------------------------------------------------------------------------------- */

tl_status tl_peers_open(int32_t ranks, tl_peers **out) {
  tl_peers *p = calloc(1, sizeof *p + (size_t)ranks * sizeof p->ends[0]);
  if (p == NULL) return tl_fail(TL_MEMORY, "no room for %d ranks on GPUs", ranks);
  p->ranks = ranks;
  *out = p;
  return TL_OK;
}

tl_status tl_peers_add(tl_peers *p, int32_t rank, tl_cuda *cuda) {
  end *e = &p->ends[rank];
  void *pinned;
  e->base.kind = &peer_kind, e->peers = p, e->cuda = cuda;
  TL_TRY(alloc(e, WHOLE_BYTES, &e->whole));
  TRY_CUDA(e, "pinned memory", host_alloc(&pinned, sizeof *e->progress, TL_CUDA_HOST_PORTABLE));
  e->progress = pinned;
  *e->progress = (tl_peer_progress){.instruction = -1, .waits_for = -1};
  return TL_OK;
}

tl_status tl_peers_group(tl_peers *p, int32_t rank, int32_t index, const char *name,
                         const tl_rank_group *from) {
  end *e = &p->ends[rank];
  group *g = &e->groups[index];
  if (from->size > TL_PEERS_MAX)
    return tl_fail(TL_ARGUMENT, "group %s has %d ranks; GPUs of one process: at most %d", name,
                   from->size, TL_PEERS_MAX);
  *g = (group){.name = name, .n = from->size, .position = from->position};
  memcpy(g->ranks, from->ranks, (size_t)g->n * sizeof *g->ranks);
  const int64_t rows = (int64_t)sizeof(tl_peer_row) * g->n;
  TL_TRY(alloc(e, 2 * rows, &g->board));
  TL_TRY(alloc(e, rows, &g->parts));
  return alloc(e, sizeof *g->turn, &g->turn);
}

tl_status tl_peers_channel(tl_peers *p, int32_t source, int32_t target, int32_t number,
                           int64_t bytes) {
  channel *c = calloc(1, sizeof *c);
  if (c == NULL) return tl_fail(TL_MEMORY, "no room for channel %d", number);
  c->source = source, c->target = target, c->number = number;
  c->bytes_max = bytes, c->slot_bytes = (bytes + 63) / 64 * 64;
  c->next = p->channels;
  p->channels = c;
  TL_TRY(alloc(&p->ends[target], TL_PEER_SLOTS * c->slot_bytes, &c->slots));
  TL_TRY(alloc(&p->ends[target], 2 * sizeof *c->target_side, &c->target_side));
  return alloc(&p->ends[source], 2 * sizeof *c->source_side, &c->source_side);
}

static tl_status join_group(tl_peers *p, group *g) {
  for (int32_t m = 0; m < g->n; m++) {
    const end *other = &p->ends[g->ranks[m]];
    for (int32_t i = 0; i < TL_GROUPS_MAX && g->boards[m] == NULL; i++) {
      const group *o = &other->groups[i];
      if (o->name == NULL || strcmp(o->name, g->name) != 0 || o->n != g->n) continue;
      if (memcmp(o->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks) == 0) g->boards[m] = o->board;
    }
    if (g->boards[m] == NULL)
      return tl_fail(TL_PROGRAM, "rank %d is in no group %s like rank %d's", g->ranks[m], g->name,
                     g->ranks[g->position]);
  }
  return TL_OK;
}

tl_status tl_peers_connect(tl_peers *p) {
  for (int32_t a = 0; a < p->ranks; a++) {
    for (int32_t b = 0; b < p->ranks; b++)
      if (a != b) TL_TRY(tl_cuda_reach(p->ends[a].cuda, p->ends[b].cuda));
    for (int32_t g = 0; g < TL_GROUPS_MAX; g++)
      if (p->ends[a].groups[g].name != NULL) TL_TRY(join_group(p, &p->ends[a].groups[g]));
  }
  return TL_OK;
}

tl_gpu_comm *tl_peers_end(tl_peers *p, int32_t rank) { return &p->ends[rank].base; }

/* Memory of a rank that was never added is NULL. */
static void close_end(tl_peers *p, int32_t rank) {
  end *e = &p->ends[rank];
  if (e->cuda == NULL || tl_cuda_enter(e->cuda) != TL_OK) return;
  for (int32_t g = 0; g < TL_GROUPS_MAX; g++) {
    tl_cuda_free(e->cuda, e->groups[g].board);
    tl_cuda_free(e->cuda, e->groups[g].parts);
    tl_cuda_free(e->cuda, e->groups[g].turn);
  }
  for (channel *c = p->channels; c != NULL; c = c->next) {
    if (c->target == rank) tl_cuda_free(e->cuda, c->slots);
    if (c->target == rank) tl_cuda_free(e->cuda, c->target_side);
    if (c->source == rank) tl_cuda_free(e->cuda, c->source_side);
  }
  tl_cuda_free(e->cuda, e->whole);
  if (e->progress != NULL) tl_cuda_calls(e->cuda)->host_free(e->progress);
  tl_memory_note(TL_MEMORY_COMM, -e->bytes);
}

void tl_peers_close(tl_peers *p) {
  if (p == NULL) return;
  for (int32_t rank = 0; rank < p->ranks; rank++) close_end(p, rank);
  for (channel *c = p->channels, *next; c != NULL; c = next) {
    next = c->next;
    free(c);
  }
  free(p);
}
