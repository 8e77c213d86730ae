/* hash_team.c - tasks of some rows each. */
#include "hash_team.h"

#include <stdatomic.h>

enum { TASK_ELEMENTS = 32 << 10 }; /* hashed by one task of a team */

typedef struct work {
  const tl_hash_part *part;
  const void *data;
  tl_dtype dtype;
  int64_t each; /* rows of a task */
  _Atomic uint64_t sum;
} work;

static void hash_task(void *context, int64_t index, int32_t worker) {
  (void)worker;
  work *w = context;
  const uint64_t sum = tl_hash_rows(w->part, w->data, w->dtype, index * w->each, w->each);
  atomic_fetch_add_explicit(&w->sum, sum, memory_order_relaxed); /* integers: in any order */
}

uint64_t tl_hash_by_team(tl_team *team, const tl_hash_part *part, const void *data,
                         tl_dtype dtype) {
  work w = {.part = part, .data = data, .dtype = dtype, .each = TASK_ELEMENTS / part->cols + 1};
  if (part->sampled) w.each *= 16;
  const int64_t tasks = (part->rows + w.each - 1) / w.each;
  if (tasks > 1 && team != NULL) {
    tl_team_for(team, tasks, hash_task, &w);
    return w.sum;
  }
  return tl_hash_rows(part, data, dtype, 0, part->rows);
}
