/* comm_exchange_processes.c - rows of experts between processes: straight, by islands, a ring.
**
** What goes to a rank is a stream: runs of rows, wherever they lie, one after the other. Both sides
** know all counts, so they know its length and where its parts belong without a word; it travels in
** chunks.
**
**   source's x    | ... run ... | ..... | run |
**   stream                  | run | run | run |  ->  chunk, chunk, ..
**   target's y    | run | ...... | run | ... | run |
*/
#include <string.h>

#include "comm_exchange.h"
#include "comm_processes_inner.h"

typedef enum side { SOURCE, TARGET, STAGE } side; /* whose rows say where a run lies */

/* Rows of the ranks source, source + step, .. (`sources` of them, but not number `skipped`) for the
** ranks first .. last - 1. In a stage, what comes from one source lies together, `part` rows after
** that of the source before; rows for the ranks from `begin` to first - 1 come before. */
typedef struct stream {
  const tl_swap *swap; /* NULL: nothing is sent */
  side side;
  char *at;
  int32_t source, step, sources, skipped, first, last, begin;
  int64_t part;
} stream;

/* What is done with a stream: bytes from .. to - 1 of it are copied into the chunk or out. */
typedef struct look {
  const stream *stream;
  char *chunk;
  int fills;
  int64_t from, to, seen; /* seen: bytes before the run at hand */
} look;

static void visit_run(look *l, int64_t row, int64_t rows) {
  const int64_t bytes = rows * l->stream->swap->row_bytes;
  const int64_t first = l->seen > l->from ? l->seen : l->from;
  const int64_t end = l->seen + bytes < l->to ? l->seen + bytes : l->to;
  if (first < end) {
    char *run = l->stream->at + row * l->stream->swap->row_bytes + (first - l->seen);
    char *chunk = l->chunk + (first - l->from);
    memcpy(l->fills ? chunk : run, l->fills ? run : chunk, (size_t)(end - first));
  }
  l->seen += bytes;
}

static void visit_block(void *context, int64_t home_row, int64_t owner_row, int64_t rows) {
  look *l = context;
  const int at_home = (l->stream->side == SOURCE) != (l->stream->swap->home != 0);
  visit_run(l, at_home ? home_row : owner_row, rows);
}

/* Visits the runs of a stream; returns its bytes. */
static int64_t walk(look *l) {
  const stream *s = l->stream;
  if (s->swap == NULL) return 0;
  for (int32_t k = 0, part = 0; k < s->sources; k++) {
    const int32_t source = s->source + k * s->step;
    if (k == s->skipped) continue;
    if (s->side == STAGE)
      visit_run(l, part * s->part + tl_swap_rows(s->swap, source, s->begin, s->first),
                tl_swap_rows(s->swap, source, s->first, s->last));
    for (int32_t target = s->first; s->side != STAGE && target < s->last; target++)
      tl_exchange_pair(&s->swap->plan, s->swap->home ? target : source,
                       s->swap->home ? source : target, visit_block, l);
    part++;
  }
  return l->seen;
}

/* What member `other` gets in a round, or gives. */
typedef stream (*describe)(const process_comm *c, const tl_swap *s, int32_t other, int gives,
                           int32_t round);

static int64_t clamp(int64_t left) {
  return left < 0 ? 0 : left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

static int64_t length_of(const stream *s) { return walk(&(look){.stream = s}); }

static void copy(const stream *s, char *chunk, int fills, int64_t at, int64_t bytes) {
  if (bytes > 0) walk(&(look){s, chunk, fills, at, at + bytes, 0});
}

/* All streams of a round, chunk by chunk. */
static tl_status pass(process_comm *c, const tl_swap *s, describe describe, int32_t round) {
  const int32_t n = c->base.size, me = c->base.position;
  tl_processes *x = c->processes;
  for (int64_t at = 0, more = 1; more; at += CHUNK_BYTES) {
    more = 0;
    for (int32_t j = 0; j < n; j++) {
      if (j == me) continue;
      const stream out = describe(c, s, j, 0, round), in = describe(c, s, j, 1, round);
      const int64_t sent = length_of(&out) - at, taken = length_of(&in) - at;
      char *chunk = x->out + (int64_t)j * CHUNK_BYTES;
      TL_TRY(tl_processes_take(c, j, x->in + (int64_t)j * CHUNK_BYTES, clamp(taken)));
      copy(&out, chunk, 1, at, clamp(sent));
      TL_TRY(tl_processes_put(c, j, chunk, clamp(sent)));
      more |= sent > CHUNK_BYTES || taken > CHUNK_BYTES;
    }
    TL_TRY(tl_processes_wait(c));
    for (int32_t j = 0; j < n; j++) {
      if (j == me) continue;
      const stream in = describe(c, s, j, 1, round);
      copy(&in, x->in + (int64_t)j * CHUNK_BYTES, 0, at, clamp(length_of(&in) - at));
    }
  }
  return TL_OK;
}

static char *writable(const char *x) { return (char *)(uintptr_t)x; /* a source is only read */ }

static stream straight(const process_comm *c, const tl_swap *s, int32_t other, int gives,
                       int32_t round) {
  const int32_t me = c->base.position, source = gives ? other : me, target = gives ? me : other;
  (void)round;
  return (stream){.swap = s,
                  .side = gives ? TARGET : SOURCE,
                  .at = gives ? s->y : writable(s->x),
                  .source = source,
                  .sources = 1,
                  .skipped = -1,
                  .first = target,
                  .last = target + 1};
}

/* Round 0: inside the island straight; with the rank at my place in another island, all that is for
** the whole island. Round 1: what lies in a stage, inside the island. */
static stream by_islands(const process_comm *c, const tl_swap *s, int32_t other, int gives,
                         int32_t round) {
  const int32_t me = c->base.position, size = s->island, island = me / size;
  const int64_t part = tl_swap_part_rows(s, c->base.size);
  if (round == 0) {
    if (other / size == island) return straight(c, s, other, gives, 0);
    if (other % size != me % size) return (stream){.swap = NULL};
    stream whole = straight(c, s, other, gives, 0);
    whole.first = whole.begin = (gives ? island : other / size) * size;
    whole.last = whole.first + size;
    if (!gives) return whole;
    whole.side = STAGE;
    whole.at = s->stage + tl_swap_part(island, other / size) * part * s->row_bytes;
    return whole;
  }
  if (other / size != island) return (stream){.swap = NULL};
  stream passed = straight(c, s, other, gives, 0);
  passed.source = (gives ? other : me) % size, passed.step = size;
  passed.sources = c->base.size / size, passed.skipped = island;
  if (gives) return passed;
  passed.side = STAGE, passed.at = s->stage, passed.part = part, passed.begin = island * size;
  return passed;
}

static tl_status hierarchical(process_comm *c, const tl_swap *s) {
  const int32_t n = c->base.size, me = c->base.position, size = s->island;
  const int32_t island = me / size, first = island * size;
  for (int32_t source = me % size; source < n; source += size)
    if (source != me)
      TL_TRY(tl_swap_check_part(s, n, tl_swap_rows(s, source, first, first + size)));
  TL_TRY(pass(c, s, by_islands, 0));
  for (int32_t source = me % size; source < n; source += size) {
    if (source == me) continue;
    const int64_t row = tl_swap_part(island, source / size) * tl_swap_part_rows(s, n) +
                        tl_swap_rows(s, source, first, me);
    tl_swap_carry(s, source, me,
                  (tl_carry){.from = s->stage + row * s->row_bytes, .to = s->y, .packed = 1});
  }
  return pass(c, s, by_islands, 1);
}

/* In step r the rows of the rank r places to the left come from the left neighbour, into one half
** of the stage, while those of the step before go out of the other half. */
static stream around(const process_comm *c, const tl_swap *s, int32_t other, int gives,
                     int32_t round) {
  const int32_t n = c->base.size, me = c->base.position, moved = gives ? round : round - 1;
  const int64_t half = s->stage_rows / 2 * s->row_bytes;
  if (other != (me + (gives ? n - 1 : 1)) % n) return (stream){.swap = NULL};
  return (stream){.swap = s,
                  .side = STAGE,
                  .at = moved == 0 ? writable(s->x) : s->stage + moved % 2 * half,
                  .source = (me + n - moved) % n,
                  .sources = 1,
                  .skipped = -1,
                  .last = n};
}

static tl_status ring(process_comm *c, const tl_swap *s) {
  const int32_t n = c->base.size, me = c->base.position;
  const int64_t half = s->stage_rows / 2 * s->row_bytes;
  for (int32_t r = 1; r < n; r++) {
    const int32_t source = (me + n - r) % n;
    TL_TRY(tl_swap_check_half(s, tl_swap_rows(s, source, 0, n)));
    TL_TRY(pass(c, s, around, r));
    tl_swap_carry(s, source, me, (tl_carry){.from = s->stage + r % 2 * half, .to = s->y});
  }
  return TL_OK;
}

tl_status tl_processes_exchange(tl_comm *comm, const tl_swap *s) {
  process_comm *c = (process_comm *)comm;
  TL_TRY(tl_swap_check_island(s, comm->size));
  tl_swap_carry(s, comm->position, comm->position, (tl_carry){.from = s->x, .to = s->y});
  if (s->hops == TL_HOPS_RING) return ring(c, s);
  if (s->hops == TL_HOPS_HIERARCHICAL && s->island < comm->size) return hierarchical(c, s);
  return pass(c, s, straight, 0);
}
