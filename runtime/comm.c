/* comm.c - what is the same for every transport: groups of one, arguments, and the folds. */
#include "comm.h"

#include <string.h>

#include "dtype.h"

enum { FOLD_BLOCK = 256 }; /* floats on the stack for each level above eight ranks */

typedef float quad __attribute__((vector_size(16), aligned(4)));

static tl_status check_tree(const tl_comm *comm) {
  if ((comm->size & (comm->size - 1)) == 0) return TL_OK;
  return tl_fail(TL_ARGUMENT, "a tree over %d ranks: the number of ranks must be a power of two",
                 comm->size);
}

static void copy(void *to, const void *from, int64_t bytes) {
  if (to != from && bytes > 0) memcpy(to, from, (size_t)bytes);
}

tl_status tl_comm_all_gather(tl_comm *comm, const void *x, void *y, int64_t outer, int64_t bytes) {
  if (comm->size > 1) return comm->kind->all_gather(comm, x, y, outer, bytes);
  copy(y, x, outer * bytes);
  return TL_OK;
}

tl_status tl_comm_reduce_scatter(tl_comm *comm, const float *x, float *y, int64_t outer,
                                 int64_t piece) {
  TL_TRY(check_tree(comm));
  if (comm->size > 1) return comm->kind->reduce_scatter(comm, x, y, outer, piece);
  copy(y, x, outer * piece * (int64_t)sizeof *x);
  return TL_OK;
}

tl_status tl_comm_all_reduce(tl_comm *comm, const float *x, float *y, int64_t count) {
  TL_TRY(check_tree(comm));
  if (comm->size > 1) return comm->kind->all_reduce(comm, x, y, count);
  copy(y, x, count * (int64_t)sizeof *x);
  return TL_OK;
}

tl_status tl_comm_all_reduce_max(tl_comm *comm, const float *x, float *y, int64_t count) {
  if (comm->size > 1) return comm->kind->all_reduce_max(comm, x, y, count);
  copy(y, x, count * (int64_t)sizeof *x);
  return TL_OK;
}

tl_status tl_comm_all_reduce_count(tl_comm *comm, const int64_t *x, int64_t *y, int64_t count) {
  if (comm->size > 1) return comm->kind->all_reduce_count(comm, x, y, count);
  copy(y, x, count * (int64_t)sizeof *x);
  return TL_OK;
}

tl_status tl_comm_broadcast(tl_comm *comm, const void *x, void *y, int64_t bytes, int32_t root) {
  if (root < 0 || root >= comm->size)
    return tl_fail(TL_ARGUMENT, "broadcast from position %d of a group of %d", root, comm->size);
  if (comm->size > 1) return comm->kind->broadcast(comm, x, y, bytes, root);
  copy(y, x, bytes);
  return TL_OK;
}

typedef struct carrying {
  tl_carry carry;
  const tl_swap *swap;
  int64_t rows;
} carrying;

static void carry_block(void *context, int64_t home_row, int64_t owner_row, int64_t rows) {
  carrying *c = context;
  const int64_t source = c->swap->home ? owner_row : home_row;
  const int64_t target = c->swap->home ? home_row : owner_row;
  const int64_t bytes = c->swap->row_bytes;
  copy(c->carry.to + (c->carry.packing ? c->rows : target) * bytes,
       c->carry.from + (c->carry.packed ? c->rows : source) * bytes, rows * bytes);
  c->rows += rows;
}

static void count_block(void *context, int64_t home_row, int64_t owner_row, int64_t rows) {
  (void)home_row, (void)owner_row;
  ((carrying *)context)->rows += rows;
}

int64_t tl_swap_carry(const tl_swap *swap, int32_t source, int32_t target, tl_carry carry) {
  carrying c = {carry, swap, 0};
  tl_exchange_pair(&swap->plan, swap->home ? target : source, swap->home ? source : target,
                   carry.to == NULL ? count_block : carry_block, &c);
  return c.rows;
}

static tl_status check_swap(const tl_comm *comm, const tl_swap *s) {
  const int64_t home = tl_exchange_home_rows(&s->plan, comm->position);
  const int64_t owner = tl_exchange_owner_rows(&s->plan, comm->position);
  const int64_t x = s->home ? owner : home, y = s->home ? home : owner;
  if (s->plan.ranks != comm->size)
    return tl_fail(TL_PROGRAM, "an exchange of %lld ranks over a group of %d",
                   (long long)s->plan.ranks, comm->size);
  if (x > s->x_rows || y > s->y_rows)
    return tl_fail(TL_PROGRAM, "an exchange of %lld rows for %lld has room for %lld and %lld",
                   (long long)x, (long long)y, (long long)s->x_rows, (long long)s->y_rows);
  return TL_OK;
}

tl_status tl_comm_exchange(tl_comm *comm, const tl_swap *swap) {
  TL_TRY(check_swap(comm, swap));
  if (comm->size > 1) {
    const int64_t moved = comm->moved;
    const tl_status status = comm->kind->exchange(comm, swap);
    comm->exchanged[comm->kind->path] += comm->moved - moved;
    return status;
  }
  tl_swap_carry(swap, 0, 0, (tl_carry){.from = swap->x, .to = swap->y});
  return TL_OK;
}

tl_status tl_comm_barrier(tl_comm *comm) {
  return comm->size > 1 ? comm->kind->barrier(comm) : TL_OK;
}

static tl_status check_peer(const tl_comm *comm, int32_t peer) {
  if (peer >= 0 && peer < comm->size && peer != comm->position) return TL_OK;
  return tl_fail(TL_ARGUMENT, "position %d has no peer %d in a group of %d", comm->position, peer,
                 comm->size);
}

tl_status tl_comm_send(tl_comm *comm, int32_t peer, int32_t channel, const void *x, int64_t bytes) {
  TL_TRY(check_peer(comm, peer));
  return comm->kind->send(comm, peer, channel, x, bytes);
}

tl_status tl_comm_recv(tl_comm *comm, int32_t peer, int32_t channel, void *x, int64_t bytes) {
  TL_TRY(check_peer(comm, peer));
  return comm->kind->recv(comm, peer, channel, x, bytes);
}

void tl_comm_close(tl_comm *comm) {
  if (comm != NULL) comm->kind->close(comm);
}

/* Up to eight parts, straight: every part of an element is read before it is written. */
static void fold_two(const float *const *p, int64_t at, float *out, int64_t count) {
  const float *a = p[0] + at, *b = p[1] + at;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    *(quad *)(out + i) = *(const quad *)(a + i) + *(const quad *)(b + i);
  for (; i < count; i++) out[i] = a[i] + b[i];
}

static void fold_four(const float *const *p, int64_t at, float *out, int64_t count) {
  const float *a = p[0] + at, *b = p[1] + at, *c = p[2] + at, *d = p[3] + at;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    *(quad *)(out + i) = (*(const quad *)(a + i) + *(const quad *)(b + i)) +
                         (*(const quad *)(c + i) + *(const quad *)(d + i));
  for (; i < count; i++) out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

/* More parts than four: both halves to the stack, block by block. */
static void fold_block(const float *const *p, int32_t n, int64_t at, float *out, int64_t count) {
  if (n == 1) {
    copy(out, p[0] + at, count * (int64_t)sizeof *out);
  } else if (n == 2) {
    fold_two(p, at, out, count);
  } else if (n == 4) {
    fold_four(p, at, out, count);
  } else {
    float left[FOLD_BLOCK], right[FOLD_BLOCK];
    const float *const halves[] = {left, right};
    fold_block(p, n / 2, at, left, count);
    fold_block(p + n / 2, n / 2, at, right, count);
    fold_two(halves, 0, out, count);
  }
}

void tl_fold_tree(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count) {
  const float *const *p = (const float *const *)parts;
  for (int64_t i = 0; i < count; i += FOLD_BLOCK) {
    const int64_t block = count - i < FOLD_BLOCK ? count - i : FOLD_BLOCK;
    fold_block(p, n, at + i, (float *)out + i, block);
  }
}

/* The larger; +0 of two zeros; NaN if there is one. The same for any order of the parts. */
static float larger(float a, float b) {
  if (a > b) return a;
  if (b > a) return b;
  if (a == b) return tl_f32_from_bits(tl_bits_from_f32(a) & tl_bits_from_f32(b));
  return tl_f32_from_bits(0x7fc00000u);
}

void tl_fold_max(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count) {
  const float *const *p = (const float *const *)parts;
  for (int64_t i = 0; i < count; i++) {
    float m = p[0][at + i];
    for (int32_t k = 1; k < n; k++) m = larger(m, p[k][at + i]);
    ((float *)out)[i] = m;
  }
}

void tl_fold_count(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count) {
  const int64_t *const *p = (const int64_t *const *)parts;
  for (int64_t i = 0; i < count; i++) {
    int64_t sum = p[0][at + i];
    for (int32_t k = 1; k < n; k++) sum += p[k][at + i];
    ((int64_t *)out)[i] = sum;
  }
}
