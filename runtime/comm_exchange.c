/* comm_exchange.c - rows of experts between thread ranks: straight, by islands, or in a ring. */
#include "comm_threads_inner.h"

#include <string.h>

#include "comm.h"

static const char *x_of(const thread_comm *c, int32_t rank) { return c->parts[rank]; }
static char *stage_of(const thread_comm *c, int32_t rank) { return c->group->members[rank].y; }

static tl_status flat(thread_comm *c, const tl_swap *s) {
  const int32_t me = c->base.position;
  for (int32_t source = 0; source < c->base.size; source++)
    tl_swap_carry(s, source, me, (tl_carry){.from = x_of(c, source), .to = s->y});
  return tl_threads_barrier(&c->base);
}

/* Rows that go from `source` to the ranks first .. last - 1. */
static int64_t rows_to(const tl_swap *s, int32_t source, int32_t first, int32_t last) {
  int64_t rows = 0;
  for (int32_t target = first; target < last; target++)
    rows += tl_swap_carry(s, source, target, (tl_carry){.to = NULL});
  return rows;
}

/* The stage of a relay has a part for each other island, in ascending order. */
static int64_t part_rows(const thread_comm *c, const tl_swap *s) {
  return s->stage_rows / (c->base.size / s->island - 1);
}

static int32_t part_of(int32_t island, int32_t other) { return other < island ? other : other - 1; }

/* One message from another island: what the rank with my place there has for my whole island. */
static tl_status pull_island(thread_comm *c, const tl_swap *s, int32_t island, int32_t other) {
  const int32_t source = other * s->island + c->base.position % s->island;
  const int32_t first = island * s->island;
  const int64_t room = part_rows(c, s), rows = rows_to(s, source, first, first + s->island);
  char *to = s->stage + part_of(island, other) * room * s->row_bytes;
  if (rows > room)
    return tl_fail(TL_PROGRAM, "%lld rows from an island, room for %lld", (long long)rows,
                   (long long)room);
  for (int32_t target = first; target < first + s->island; target++)
    to += s->row_bytes * tl_swap_carry(s, source, target,
                                       (tl_carry){.from = x_of(c, source), .to = to, .packing = 1});
  return TL_OK;
}

static tl_status hierarchical(thread_comm *c, const tl_swap *s) {
  const int32_t me = c->base.position, island = me / s->island, first = island * s->island;
  const int32_t islands = c->base.size / s->island;
  for (int32_t mate = first; mate < first + s->island; mate++)
    tl_swap_carry(s, mate, me, (tl_carry){.from = x_of(c, mate), .to = s->y});
  for (int32_t other = 0; other < islands; other++)
    if (other != island) TL_TRY(pull_island(c, s, island, other));
  TL_TRY(tl_threads_barrier(&c->base));
  for (int32_t mate = first; mate < first + s->island; mate++) {
    for (int32_t other = 0; other < islands; other++) {
      if (other == island) continue;
      const int32_t source = other * s->island + mate % s->island;
      const int64_t before = rows_to(s, source, first, me);
      const int64_t row = part_of(island, other) * part_rows(c, s) + before;
      const tl_carry carry = {.from = stage_of(c, mate) + row * s->row_bytes, .to = s->y};
      tl_swap_carry(s, source, me, (tl_carry){carry.from, carry.to, .packed = 1});
    }
  }
  return tl_threads_barrier(&c->base);
}

/* In step r the rows of the rank r places to the left arrive from the left neighbour. The stage has
** two halves: one is filled while the right neighbour reads the other. */
static tl_status ring(thread_comm *c, const tl_swap *s) {
  const int32_t me = c->base.position, n = c->base.size, left = (me + n - 1) % n;
  const int64_t half = s->stage_rows / 2 * s->row_bytes;
  tl_swap_carry(s, me, me, (tl_carry){.from = s->x, .to = s->y});
  for (int32_t r = 1; r < n; r++) {
    const int32_t source = (me + n - r) % n;
    const char *from = r == 1 ? x_of(c, left) : stage_of(c, left) + (r - 1) % 2 * half;
    char *to = s->stage + r % 2 * half;
    const int64_t rows = s->home ? tl_exchange_owner_rows(&s->plan, source)
                                 : tl_exchange_home_rows(&s->plan, source);
    if (rows * s->row_bytes > half)
      return tl_fail(TL_PROGRAM, "%lld rows in a ring, room for %lld", (long long)rows,
                     (long long)(s->stage_rows / 2));
    if (rows > 0) memcpy(to, from, (size_t)(rows * s->row_bytes));
    tl_swap_carry(s, source, me, (tl_carry){.from = to, .to = s->y});
    TL_TRY(tl_threads_barrier(&c->base));
  }
  return TL_OK;
}

tl_status tl_threads_exchange(tl_comm *comm, const tl_swap *s) {
  thread_comm *c = (thread_comm *)comm;
  const int32_t n = comm->size;
  if (s->hops == TL_HOPS_HIERARCHICAL && (s->island < 1 || n % s->island != 0))
    return tl_fail(TL_ARGUMENT, "islands of %d of %d ranks", s->island, n);
  TL_TRY(tl_threads_publish(c, s->x, s->stage));
  if (s->hops == TL_HOPS_RING) return ring(c, s);
  if (s->hops == TL_HOPS_HIERARCHICAL && s->island < n) return hierarchical(c, s);
  return flat(c, s);
}
