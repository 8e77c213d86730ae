/* sampling_host.c - a row at a time.
**
** Candidates by falling z come from a heap over all ids, so that only as many are put in order as
** the row needs: top_k of them, or until top_p is reached.
*/
#include <math.h>

#include "../../runtime/random.h"
#include "../math.h"
#include "../rows.h"
#include "sampling.h"

typedef struct choice {
  const float *z;
  float *weight;  /* (V): by id */
  int32_t *order; /* (V): candidates */
  int64_t columns, count;
  float m, temperature, top_p;
  int32_t top_k, is_ordered;
} choice;

/* S(i), moved on by one candidate at a time. */
typedef struct running {
  float blocks, sum;
  int64_t count;
} running;

static float run_on(running *r, float weight) {
  if (r->count % TL_SAMPLE_BLOCK == 0) r->blocks = r->blocks + r->sum, r->sum = 0.0f;
  r->sum = r->sum + weight;
  r->count++;
  return r->blocks + r->sum;
}

/* Whether candidate a stands before b. */
static int before(const float *z, int32_t a, int32_t b) {
  return z[a] > z[b] || (z[a] == z[b] && a < b);
}

static void sift(const float *z, int32_t *heap, int64_t count, int64_t at) {
  const int32_t moved = heap[at];
  for (int64_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && before(z, heap[child + 1], heap[child])) child++;
    if (!before(z, heap[child], moved)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
}

static float total_of(const choice *c) {
  running r = {0};
  float total = 0.0f;
  for (int64_t i = 0; i < c->columns; i++) total = run_on(&r, c->weight[i]);
  return total;
}

/* The order's first candidates, as many as the row keeps. The heap shrinks from the front of the
** list while what it gives up fills the back, so the list is turned at the end. */
static void put_in_order(choice *c) {
  const int64_t limit = c->top_k > 0 && c->top_k < c->columns ? c->top_k : c->columns;
  const int32_t all = limit == c->columns;
  int64_t left = c->columns;
  const float bound = all && c->top_p < 1.0f ? c->top_p * total_of(c) : INFINITY;
  running r = {0};
  for (int64_t i = 0; i < left; i++) c->order[i] = (int32_t)i;
  for (int64_t i = left / 2 - 1; i >= 0; i--) sift(c->z, c->order, left, i);
  for (int64_t taken = 0; taken < limit; taken++) {
    const int32_t first = c->order[0];
    c->order[0] = c->order[--left];
    c->order[left] = first;
    if (left > 0) sift(c->z, c->order, left, 0);
    if (run_on(&r, c->weight[first]) >= bound) break;
  }
  c->count = c->columns - left;
  for (int64_t i = 0; i < c->count; i++) { /* from the back to the front */
    const int64_t from = c->columns - 1 - i;
    if (i >= from) break;
    const int32_t kept = c->order[i];
    c->order[i] = c->order[from], c->order[from] = kept;
  }
}

/* top_p beside top_k: the total is that of the candidates. */
static void cut_candidates(choice *c) {
  running all = {0}, r = {0};
  float total = 0.0f;
  for (int64_t i = 0; i < c->count; i++) total = run_on(&all, c->weight[c->order[i]]);
  for (int64_t i = 0; i < c->count; i++)
    if (run_on(&r, c->weight[c->order[i]]) >= c->top_p * total) {
      c->count = i + 1;
      return;
    }
}

static int32_t candidate(const choice *c, int64_t i) {
  return c->is_ordered ? c->order[i] : (int32_t)i;
}

static int32_t draw(const choice *c, float unit) {
  running all = {0}, r = {0};
  float total = 0.0f;
  for (int64_t i = 0; i < c->count; i++) total = run_on(&all, c->weight[candidate(c, i)]);
  for (int64_t i = 0; i < c->count; i++)
    if (run_on(&r, c->weight[candidate(c, i)]) > unit * total) return candidate(c, i);
  return candidate(c, c->count - 1);
}

TL_INLINE void weigh_body(const choice *c) {
  TL_LANES
  for (int64_t i = 0; i < c->columns; i++)
    c->weight[i] = ((c->z[i] - c->m) / c->temperature) * TL_LOG2E;
}
TL_SIMD_VERSIONS(weigh, (const choice *c), (c))

static float unit_of(const int32_t *draws) {
  const uint64_t seed = (uint32_t)draws[1] | (uint64_t)(uint32_t)draws[2] << 32;
  const uint64_t request = (uint32_t)draws[3] | (uint64_t)(uint32_t)draws[4] << 32;
  const tl_random_key key = tl_random_key_of(seed, TL_SAMPLE_STREAM);
  return tl_random_unit(tl_random_words(key, (uint32_t)draws[5], request).word[0]);
}

static int32_t choose(choice *c, const int32_t *draws) {
  int32_t best = 0;
  for (int64_t i = 1; i < c->columns; i++)
    if (c->z[i] > c->z[best]) best = (int32_t)i;
  c->m = c->z[best];
  if (c->temperature == 0.0f) return best;
  weigh(c);
  tl_exp2_many(c->weight, c->weight, c->columns);
  const int32_t some = c->top_k > 0 && c->top_k < c->columns;
  c->is_ordered = some || c->top_p < 1.0f;
  c->count = c->columns;
  if (c->is_ordered) put_in_order(c);
  if (some && c->top_p < 1.0f) cut_candidates(c);
  return draw(c, unit_of(draws));
}

typedef struct sampling {
  const tl_call *call;
} sampling;

static void sample_row(void *context, int64_t row, int32_t worker) {
  const tl_call *call = ((const sampling *)context)->call;
  const int32_t next = ((const int32_t *)call->in[1].data)[row];
  int32_t *id = (int32_t *)call->out[0].data + row;
  const float *controls = (const float *)call->in[2].data + 2 * row;
  const int32_t *draws = (const int32_t *)call->in[3].data + 6 * row;
  *id = next >= 0 ? next : -1;
  if (next != -1) return;
  float *weight = tl_team_scratch(call->team, worker);
  choice c = {.z = (const float *)call->in[0].data + row * call->in[0].shape[1],
              .weight = weight,
              .order = (int32_t *)weight + TL_SAMPLE_COLUMNS_MAX,
              .columns = call->ints[0],
              .temperature = controls[0],
              .top_p = controls[1],
              .top_k = draws[0]};
  *id = choose(&c, draws);
}

/* Numbers of the rows that choose. */
static tl_status check_rows(const tl_call *call) {
  const int64_t rows = call->in[0].shape[0], columns = call->ints[0];
  for (int64_t row = 0; row < rows; row++) {
    const int32_t next = ((const int32_t *)call->in[1].data)[row];
    const float *controls = (const float *)call->in[2].data + 2 * row;
    const int32_t top_k = ((const int32_t *)call->in[3].data)[6 * row];
    if (next < -2 || next >= columns)
      return tl_fail(TL_ARGUMENT, "sample: row %lld: next is %d; there are %lld tokens",
                     (long long)row, next, (long long)columns);
    if (next != -1) continue;
    if (!(controls[0] >= 0.0f && controls[0] <= 0x1p+60f) ||
        (controls[0] > 0.0f && controls[0] < 0x1p-60f))
      return tl_fail(TL_ARGUMENT, "sample: row %lld: temperature is %g; 0, or 2^-60 to 2^60",
                     (long long)row, (double)controls[0]);
    if (!(controls[1] > 0.0f && controls[1] <= 1.0f) || top_k < 0)
      return tl_fail(TL_ARGUMENT,
                     "sample: row %lld: top_p %g, top_k %d; 0 < top_p <= 1, 0 <= top_k",
                     (long long)row, (double)controls[1], top_k);
  }
  return TL_OK;
}

static tl_status check_logits(const tl_call *call, int64_t row) {
  const uint32_t *bits = (const uint32_t *)call->in[0].data + row * call->in[0].shape[1];
  int64_t below = 0;
  for (int64_t i = 0; i < call->ints[0]; i++) {
    const int is_nan = (bits[i] & 0x7fffffffu) > 0x7f800000u;
    if (is_nan || bits[i] == 0x7f800000u)
      return tl_fail(TL_NUMERIC, "sample: row %lld: the logit of token %lld is %s", (long long)row,
                     (long long)i, is_nan ? "NaN" : "Inf");
    below += bits[i] == 0xff800000u;
  }
  if (below < call->ints[0]) return TL_OK;
  return tl_fail(TL_NUMERIC, "sample: row %lld: the logits of all tokens are -Inf", (long long)row);
}

tl_status tl_host_sample(const tl_call *call) {
  sampling s = {call};
  TL_TRY(tl_sample_check(call));
  TL_TRY(check_rows(call));
  for (int64_t row = 0; row < call->in[0].shape[0]; row++)
    if (((const int32_t *)call->in[1].data)[row] == -1) TL_TRY(check_logits(call, row));
  tl_team_for(call->team, call->in[0].shape[0], sample_row, &s);
  return TL_OK;
}

tl_status tl_host_follow(const tl_call *call) {
  TL_TRY(tl_follow_check(call));
  const int32_t *fed = call->in[0].data, *made = call->in[1].data;
  const int64_t rows = tl_view_count(&call->in[0]), last = tl_view_count(&call->in[1]);
  int32_t *ids = call->out[0].data;
  for (int64_t row = 0; row < rows; row++) {
    const int64_t from = -2 - (int64_t)fed[row];
    if (from >= last)
      return tl_fail(TL_ARGUMENT, "follow: row %lld goes on with row %lld; there are %lld",
                     (long long)row, (long long)from, (long long)last);
    ids[row] = from < 0 ? fed[row] : made[from];
  }
  return TL_OK;
}
