/* comm_exchange.c - rows of experts between thread ranks: straight, by islands, or in a ring. */
#include "comm_threads_inner.h"

#include <string.h>

#include "comm_exchange.h"

static const char *x_of(const thread_comm *c, int32_t rank) { return c->parts[rank]; }
static char *stage_of(const thread_comm *c, int32_t rank) { return c->group->members[rank].y; }

/* Copies what goes from `source` to `target` and lies with `holder`; counts it if that is another
** rank. Returns the bytes. */
static int64_t pull(thread_comm *c, const tl_swap *s, int32_t holder, int32_t source,
                    int32_t target, tl_carry how) {
  const int64_t bytes = tl_swap_carry(s, source, target, how) * s->row_bytes;
  if (holder != c->base.position) c->base.moved += bytes;
  return bytes;
}

static tl_status flat(thread_comm *c, const tl_swap *s) {
  const int32_t me = c->base.position;
  for (int32_t source = 0; source < c->base.size; source++)
    pull(c, s, source, source, me, (tl_carry){.from = x_of(c, source), .to = s->y});
  return tl_threads_barrier(&c->base);
}

int64_t tl_swap_rows(const tl_swap *s, int32_t source, int32_t first, int32_t last) {
  int64_t rows = 0;
  for (int32_t target = first; target < last; target++)
    rows += tl_swap_carry(s, source, target, (tl_carry){.to = NULL});
  return rows;
}

int64_t tl_swap_part_rows(const tl_swap *s, int32_t size) {
  return s->stage_rows / (size / s->island - 1);
}

int32_t tl_swap_part(int32_t island, int32_t other) { return other < island ? other : other - 1; }

tl_status tl_swap_check_part(const tl_swap *s, int32_t size, int64_t rows) {
  const int64_t room = tl_swap_part_rows(s, size);
  if (rows <= room) return TL_OK;
  return tl_fail(TL_PROGRAM, "%lld rows from an island, room for %lld", (long long)rows,
                 (long long)room);
}

tl_status tl_swap_check_half(const tl_swap *s, int64_t rows) {
  if (rows <= s->stage_rows / 2) return TL_OK;
  return tl_fail(TL_PROGRAM, "%lld rows in a ring, room for %lld", (long long)rows,
                 (long long)(s->stage_rows / 2));
}

tl_status tl_swap_check_island(const tl_swap *s, int32_t size) {
  if (s->hops != TL_HOPS_HIERARCHICAL || (s->island >= 1 && size % s->island == 0)) return TL_OK;
  return tl_fail(TL_ARGUMENT, "islands of %d of %d ranks", s->island, size);
}

/* One message from another island: what the rank with my place there has for my whole island. */
static tl_status pull_island(thread_comm *c, const tl_swap *s, int32_t island, int32_t other) {
  const int32_t source = other * s->island + c->base.position % s->island;
  const int32_t first = island * s->island;
  const int64_t room = tl_swap_part_rows(s, c->base.size);
  char *to = s->stage + tl_swap_part(island, other) * room * s->row_bytes;
  TL_TRY(tl_swap_check_part(s, c->base.size, tl_swap_rows(s, source, first, first + s->island)));
  for (int32_t target = first; target < first + s->island; target++)
    to += pull(c, s, source, source, target,
               (tl_carry){.from = x_of(c, source), .to = to, .packing = 1});
  return TL_OK;
}

static tl_status hierarchical(thread_comm *c, const tl_swap *s) {
  const int32_t me = c->base.position, island = me / s->island, first = island * s->island;
  const int32_t islands = c->base.size / s->island;
  for (int32_t mate = first; mate < first + s->island; mate++)
    pull(c, s, mate, mate, me, (tl_carry){.from = x_of(c, mate), .to = s->y});
  for (int32_t other = 0; other < islands; other++)
    if (other != island) TL_TRY(pull_island(c, s, island, other));
  TL_TRY(tl_threads_barrier(&c->base));
  for (int32_t mate = first; mate < first + s->island; mate++) {
    for (int32_t other = 0; other < islands; other++) {
      if (other == island) continue;
      const int32_t source = other * s->island + mate % s->island;
      const int64_t before = tl_swap_rows(s, source, first, me);
      const int64_t row = tl_swap_part(island, other) * tl_swap_part_rows(s, c->base.size) + before;
      const char *from = stage_of(c, mate) + row * s->row_bytes;
      pull(c, s, mate, source, me, (tl_carry){.from = from, .to = s->y, .packed = 1});
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
    const int64_t rows = tl_swap_rows(s, source, 0, n);
    TL_TRY(tl_swap_check_half(s, rows));
    if (rows > 0) memcpy(to, from, (size_t)(rows * s->row_bytes));
    c->base.moved += rows * s->row_bytes;
    tl_swap_carry(s, source, me, (tl_carry){.from = to, .to = s->y});
    TL_TRY(tl_threads_barrier(&c->base));
  }
  return TL_OK;
}

tl_status tl_threads_exchange(tl_comm *comm, const tl_swap *s) {
  thread_comm *c = (thread_comm *)comm;
  const int32_t n = comm->size;
  TL_TRY(tl_swap_check_island(s, n));
  TL_TRY(tl_threads_publish(c, s->x, s->stage));
  if (s->hops == TL_HOPS_RING) return ring(c, s);
  if (s->hops == TL_HOPS_HIERARCHICAL && s->island < n) return hierarchical(c, s);
  return flat(c, s);
}
