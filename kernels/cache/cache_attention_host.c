/* cache_attention_host.c - attention of single rows over pages.
**
** A task is a row and a KV head with its query heads, HEADS at a time. Keys of a block lie side by
** side in each channel of a page, so scores are computed for many keys at once, each one a chain of
** its own; values are weighed for many channels at once. In bf16 a block is gathered from its pages
** and goes through tensor-core steps: query heads are the rows, keys or channels the columns.
*/
#include <math.h>
#include <string.h>

#include "../attention/attention.h"
#include "../math.h"
#include "../rows.h"
#include "../tensorcore.h"
#include "cache.h"

enum { HEADS = TL_TENSORCORE_ROWS, BLOCK = TL_ATTENTION_BLOCK_MAX, STEP = TL_TENSORCORE_STEP };
enum { WIDTH = TL_ATTENTION_WIDTH_MAX, WIDE = 64, COLUMNS = TL_TENSORCORE_COLUMNS };

typedef struct cached {
  tl_cache_sizes sizes;
  tl_call call;
  int64_t heads, group, window, kv_block, split;
  float factor;
} cached;

/* The state of a part or of the row so far. */
typedef struct row_state {
  float m, t, l[4], sum;
  float o[WIDTH];
} row_state;

typedef struct scratch {
  float score[HEADS][BLOCK], q[HEADS][WIDTH];
  row_state part[HEADS], total[HEADS];
  int32_t begun;
  uint16_t weight[HEADS][BLOCK];
  uint16_t rows[BLOCK * WIDTH]; /* bf16 keys of a block, then its values */
  tl_tensorcore_rows packed_rows[BLOCK / STEP];
  tl_tensorcore_columns packed_columns[BLOCK / STEP];
} scratch;

_Static_assert(sizeof(scratch) <= TL_SCRATCH_BYTES, "a worker's scratch holds one task");

/* One row and some of the query heads of one KV head. */
typedef struct task {
  const cached *c;
  scratch *s;
  const int32_t *pages; /* of the row's request */
  int64_t row, position, kv_head, head, heads;
} task;

/* ---- f32 ---- */

/* `count` is a constant where this is used: the scores of so many keys stay in registers. */
TL_INLINE void dot_keys(const float *q, const float *keys, int64_t width, int64_t stride,
                        float *out, const int count) {
  float sum[WIDE];
  for (int j = 0; j < count; j++) sum[j] = 0.0f;
  for (int64_t i = 0; i < width; i++)
    for (int j = 0; j < count; j++) sum[j] = fmaf(q[i], keys[i * stride + j], sum[j]);
  for (int j = 0; j < count; j++) out[j] = sum[j];
}

/* Keys that lie side by side in one page. */
TL_INLINE void dot_page_body(const float *q, const float *keys, int64_t width, int64_t stride,
                             int64_t count, float *out) {
  int64_t j = 0;
  for (; j + WIDE <= count; j += WIDE) dot_keys(q, keys + j, width, stride, out + j, WIDE);
  for (; j + 16 <= count; j += 16) dot_keys(q, keys + j, width, stride, out + j, 16);
  for (; j + 8 <= count; j += 8) dot_keys(q, keys + j, width, stride, out + j, 8);
  for (; j < count; j++) dot_keys(q, keys + j, width, stride, out + j, 1);
}
TL_SIMD_VERSIONS(dot_page,
                 (const float *q, const float *keys, int64_t width, int64_t stride, int64_t count,
                  float *out),
                 (q, keys, width, stride, count, out))

TL_INLINE void weigh_channels(const float *weight, const float *values, int64_t count,
                              int64_t stride, float *o, const int channels) {
  float sum[WIDE];
  for (int i = 0; i < channels; i++) sum[i] = o[i];
  for (int64_t j = 0; j < count; j++)
    for (int i = 0; i < channels; i++) sum[i] = fmaf(weight[j], values[j * stride + i], sum[i]);
  for (int i = 0; i < channels; i++) o[i] = sum[i];
}

TL_INLINE void weigh_page_body(const float *weight, const float *values, int64_t count,
                               int64_t stride, int64_t channels, float *o) {
  int64_t i = 0;
  for (; i + WIDE <= channels; i += WIDE)
    weigh_channels(weight, values + i, count, stride, o + i, WIDE);
  for (; i + 16 <= channels; i += 16) weigh_channels(weight, values + i, count, stride, o + i, 16);
  for (; i + 8 <= channels; i += 8) weigh_channels(weight, values + i, count, stride, o + i, 8);
  for (; i < channels; i++) weigh_channels(weight, values + i, count, stride, o + i, 1);
}
TL_SIMD_VERSIONS(weigh_page,
                 (const float *weight, const float *values, int64_t count, int64_t stride,
                  int64_t channels, float *o),
                 (weight, values, count, stride, channels, o))

/* The same of two query heads of one KV head, whose chains then do not wait for each other. */
TL_INLINE void weigh_both(const float *const weight[2], const float *values, int64_t count,
                          int64_t stride, float *const o[2], const int channels) {
  float a[32], b[32];
  for (int i = 0; i < channels; i++) a[i] = o[0][i], b[i] = o[1][i];
  for (int64_t j = 0; j < count; j++)
    for (int i = 0; i < channels; i++) {
      a[i] = fmaf(weight[0][j], values[j * stride + i], a[i]);
      b[i] = fmaf(weight[1][j], values[j * stride + i], b[i]);
    }
  for (int i = 0; i < channels; i++) o[0][i] = a[i], o[1][i] = b[i];
}

TL_INLINE void weigh_pair_body(const float *const weight[2], const float *values, int64_t count,
                               int64_t stride, int64_t channels, float *const o[2]) {
  int64_t i = 0;
#define STEP_OF(n)                                        \
  for (; i + n <= channels; i += n) {                     \
    float *const at[2] = {o[0] + i, o[1] + i};            \
    weigh_both(weight, values + i, count, stride, at, n); \
  }
  STEP_OF(32) STEP_OF(16) STEP_OF(8) STEP_OF(1)
#undef STEP_OF
}
TL_SIMD_VERSIONS(weigh_pair,
                 (const float *const weight[2], const float *values, int64_t count, int64_t stride,
                  int64_t channels, float *const o[2]),
                 (weight, values, count, stride, channels, o))

/* Where position `at` begins, and how many from it on lie in one page, `end` at most. */
static int64_t stretch(const task *t, int64_t at, int64_t end, int64_t *page, int64_t *entry) {
  const int64_t size = t->c->sizes.page;
  *page = t->pages[at / size], *entry = at % size;
  return size - *entry < end - at ? size - *entry : end - at;
}

static void scores_f32(const task *t, int64_t first, int64_t end) {
  const tl_cache_sizes *z = &t->c->sizes;
  int64_t page, entry, count;
  for (int64_t at = first; at < end; at += count) {
    count = stretch(t, at, end, &page, &entry);
    const float *keys = (const float *)t->c->call.in[1].data +
                        (page * z->kv_heads + t->kv_head) * z->width * z->page + entry;
    for (int64_t h = 0; h < t->heads; h++)
      dot_page(t->s->q[h], keys, z->width, z->page, count, t->s->score[h] + (at - first));
  }
}

static void weigh_f32(const task *t, int64_t first, int64_t end) {
  const tl_cache_sizes *z = &t->c->sizes;
  const int64_t stride = z->kv_heads * z->value_width;
  int64_t page, entry, count;
  for (int64_t at = first; at < end; at += count) {
    count = stretch(t, at, end, &page, &entry);
    const float *values = (const float *)t->c->call.in[2].data + (page * z->page + entry) * stride +
                          t->kv_head * z->value_width;
    int64_t h = 0;
    for (; h + 2 <= t->heads && z->value_width < WIDE; h += 2) {
      const float *const weight[2] = {t->s->score[h] + (at - first),
                                      t->s->score[h + 1] + (at - first)};
      float *const o[2] = {t->s->part[h].o, t->s->part[h + 1].o};
      weigh_pair(weight, values, count, stride, z->value_width, o);
    }
    for (; h < t->heads; h++)
      weigh_page(t->s->score[h] + (at - first), values, count, stride, z->value_width,
                 t->s->part[h].o);
  }
}

/* ---- bf16 ---- */

static void gather_keys(const task *t, int64_t first, int64_t end) {
  const tl_cache_sizes *z = &t->c->sizes;
  int64_t page, entry, count;
  for (int64_t at = first; at < end; at += count) {
    count = stretch(t, at, end, &page, &entry);
    const uint16_t *keys = (const uint16_t *)t->c->call.in[1].data +
                           (page * z->kv_heads + t->kv_head) * z->width * z->page + entry;
    for (int64_t j = 0; j < count; j++)
      for (int64_t i = 0; i < z->width; i++)
        t->s->rows[(at - first + j) * z->width + i] = keys[i * z->page + j];
  }
}

static void gather_values(const task *t, int64_t first, int64_t end) {
  const tl_cache_sizes *z = &t->c->sizes;
  const int64_t stride = z->kv_heads * z->value_width;
  int64_t page, entry, count;
  for (int64_t at = first; at < end; at += count) {
    count = stretch(t, at, end, &page, &entry);
    const uint16_t *values = (const uint16_t *)t->c->call.in[2].data +
                             (page * z->page + entry) * stride + t->kv_head * z->value_width;
    for (int64_t j = 0; j < count; j++)
      memcpy(t->s->rows + (at - first + j) * z->value_width, values + j * stride,
             (size_t)z->value_width * sizeof *values);
  }
}

static int64_t steps_of(int64_t count) { return (count + STEP - 1) / STEP; }

static void scores_bf16(const task *t, int64_t first, int64_t end) {
  const tl_cache_sizes *z = &t->c->sizes;
  scratch *s = t->s;
  const int64_t steps = steps_of(z->width), heads = t->c->heads;
  const uint16_t *q =
      (const uint16_t *)t->c->call.in[0].data + (t->row * heads + t->head) * z->width;
  tl_tensorcore_clear_rows(s->packed_rows, steps);
  tl_tensorcore_pack_rows((tl_tensorcore_source){q, z->width, 1}, (int32_t)t->heads, z->width, 0,
                          s->packed_rows);
  gather_keys(t, first, end);
  for (int64_t j = 0; j < end - first; j += COLUMNS) {
    const int32_t count = end - first - j < COLUMNS ? (int32_t)(end - first - j) : COLUMNS;
    const tl_tensorcore_source keys = {s->rows + j * z->width, z->width, 1};
    tl_tensorcore_clear_columns(s->packed_columns, steps);
    tl_tensorcore_pack_columns(keys, count, z->width, 0, s->packed_columns);
    tl_tensorcore_tile(s->packed_rows, s->packed_columns, steps, (int32_t)t->heads, count,
                       s->score[0] + j, BLOCK, 0);
  }
}

/* `first` is a multiple of 16; keys before `seen` have weight +0. */
static void weigh_bf16(const task *t, int64_t first, int64_t seen, int64_t end) {
  const tl_cache_sizes *z = &t->c->sizes;
  scratch *s = t->s;
  const int64_t count = end - first, steps = steps_of(count);
  for (int64_t h = 0; h < t->heads; h++)
    for (int64_t j = 0; j < count; j++)
      s->weight[h][j] = first + j < seen ? 0 : tl_bf16_from_f32(s->score[h][first + j - seen]);
  gather_values(t, first, end);
  tl_tensorcore_clear_rows(s->packed_rows, steps);
  tl_tensorcore_pack_rows((tl_tensorcore_source){s->weight[0], BLOCK, 1}, (int32_t)t->heads, count,
                          0, s->packed_rows);
  for (int64_t i = 0; i < z->value_width; i += COLUMNS) {
    const int64_t left = z->value_width - i;
    const int32_t columns = left < COLUMNS ? (int32_t)left : COLUMNS;
    tl_tensorcore_clear_columns(s->packed_columns, steps);
    tl_tensorcore_pack_columns((tl_tensorcore_source){s->rows + i, 1, z->value_width}, columns,
                               count, 0, s->packed_columns);
    tl_tensorcore_tile(s->packed_rows, s->packed_columns, steps, (int32_t)t->heads, columns,
                       s->part[0].o + i, (int64_t)(sizeof(row_state) / sizeof(float)), 1);
  }
}

/* ---- one block, one part, one row ---- */

TL_INLINE void weights_argument_body(float *score, int64_t count, float c, float down) {
  TL_LANES
  for (int64_t j = 0; j < count; j++) score[j] = fmaf(score[j], c, down);
}
TL_SIMD_VERSIONS(weights_argument, (float *score, int64_t count, float c, float down),
                 (score, count, c, down))

/* The largest of m and the scores; which comes first does not matter to a maximum. */
TL_INLINE void largest_body(const float *score, int64_t count, float *m) {
  float most[16];
  int64_t j = 0;
  for (int i = 0; i < 16; i++) most[i] = *m;
  for (; j + 16 <= count; j += 16)
    for (int i = 0; i < 16; i++) most[i] = score[j + i] > most[i] ? score[j + i] : most[i];
  for (; j < count; j++) most[0] = score[j] > most[0] ? score[j] : most[0];
  for (int i = 0; i < 16; i++) *m = most[i] > *m ? most[i] : *m;
}
TL_SIMD_VERSIONS(largest, (const float *score, int64_t count, float *m), (score, count, m))

/* l_r = l_r + p_j, ascending: the four chains side by side. */
static void add_weights(const float *p, int64_t count, int64_t lead, float *l) {
  int64_t j = 0;
  float l0 = l[0], l1 = l[1], l2 = l[2], l3 = l[3];
  if (lead % 8 == 0)
    for (; j + 8 <= count; j += 8) {
      l0 = l0 + p[j], l1 = l1 + p[j + 2], l2 = l2 + p[j + 4], l3 = l3 + p[j + 6];
      l0 = l0 + p[j + 1], l1 = l1 + p[j + 3], l2 = l2 + p[j + 5], l3 = l3 + p[j + 7];
    }
  l[0] = l0, l[1] = l1, l[2] = l2, l[3] = l3;
  for (; j < count; j++) {
    float *sum = &l[(lead + j) % 8 / 2];
    *sum = *sum + p[j];
  }
}

/* Scores of `count` keys become weights; `lead`: the first one's place in its block. */
static void soften(float *score, int64_t count, int64_t lead, float c, int64_t channels,
                   row_state *state) {
  float m = state->m;
  largest(score, count, &m);
  const float u = m * c, a = u == state->t ? 1.0f : tl_exp2(state->t - u);
  state->m = m, state->t = u;
  for (int r = 0; r < 4; r++) state->l[r] = state->l[r] * a;
  weights_argument(score, count, c, -u);
  tl_exp2_many(score, score, count);
  add_weights(score, count, lead, state->l);
  for (int64_t i = 0; i < channels; i++) state->o[i] = state->o[i] * a;
}

/* Keys seen .. end - 1, which lie in the block that begins at `block`. */
static void add_block(const task *t, int64_t block, int64_t seen, int64_t end) {
  const cached *c = t->c;
  const int bf16 = c->sizes.dtype == TL_BF16;
  if (bf16)
    scores_bf16(t, seen, end);
  else
    scores_f32(t, seen, end);
  for (int64_t h = 0; h < t->heads; h++)
    soften(t->s->score[h], end - seen, seen - block, c->factor, c->sizes.value_width,
           &t->s->part[h]);
  if (bf16)
    weigh_bf16(t, seen / STEP * STEP, seen, end);
  else
    weigh_f32(t, seen, end);
}

static void merge(row_state *total, const row_state *part, int64_t channels) {
  const float t = total->t > part->t ? total->t : part->t;
  const float f_old = total->t == t ? 1.0f : tl_exp2(total->t - t);
  const float f_new = part->t == t ? 1.0f : tl_exp2(part->t - t);
  total->t = t;
  total->sum = total->sum * f_old + part->sum * f_new;
  for (int64_t i = 0; i < channels; i++) total->o[i] = total->o[i] * f_old + part->o[i] * f_new;
}

/* Keys first .. end - 1, which lie in one part. */
static void add_part(const task *t, int64_t first, int64_t end) {
  const cached *c = t->c;
  scratch *s = t->s;
  for (int64_t h = 0; h < t->heads; h++) {
    memset(&s->part[h], 0, sizeof s->part[h]);
    s->part[h].m = s->part[h].t = -INFINITY;
  }
  while (first < end) {
    const int64_t block = first / c->kv_block * c->kv_block, border = block + c->kv_block;
    add_block(t, block, first, border < end ? border : end);
    first = border;
  }
  for (int64_t h = 0; h < t->heads; h++) {
    row_state *part = &s->part[h];
    const float low = part->l[0] + part->l[1];
    part->sum = low + (part->l[2] + part->l[3]);
    if (s->begun)
      merge(&s->total[h], part, c->sizes.value_width);
    else
      s->total[h] = *part;
  }
  s->begun = 1;
}

static void load_queries(const task *t) {
  const tl_cache_sizes *z = &t->c->sizes;
  const float *q = t->c->call.in[0].data;
  if (z->dtype != TL_F32) return;
  for (int64_t h = 0; h < t->heads; h++)
    memcpy(t->s->q[h], q + (t->row * t->c->heads + t->head + h) * z->width,
           (size_t)z->width * sizeof *q);
}

static void store(const task *t) {
  const tl_view *out = &t->c->call.out[0];
  const int64_t channels = t->c->sizes.value_width;
  for (int64_t h = 0; h < t->heads; h++) {
    row_state *total = &t->s->total[h];
    const int64_t place = (t->row * t->c->heads + t->head + h) * channels;
    for (int64_t i = 0; i < channels; i++) total->o[i] = total->o[i] / total->sum;
    if (out->dtype == TL_F32)
      memcpy((float *)out->data + place, total->o, (size_t)channels * sizeof(float));
    else
      for (int64_t i = 0; i < channels; i++)
        ((uint16_t *)out->data)[place + i] = tl_bf16_from_f32(total->o[i]);
  }
}

static void clear(const cached *c, int64_t row, int64_t kv_head) {
  const tl_view *out = &c->call.out[0];
  const int64_t width = c->group * c->sizes.value_width * tl_dtype_bytes(out->dtype);
  memset((char *)out->data + (row * c->sizes.kv_heads + kv_head) * width, 0, (size_t)width);
}

static void run_task(void *context, int64_t index, int32_t worker) {
  const cached *c = context;
  const tl_cache_sizes *z = &c->sizes;
  task t = {.c = c, .s = tl_team_scratch(c->call.team, worker)};
  t.row = index / z->kv_heads, t.kv_head = index % z->kv_heads;
  if (z->request[t.row] < 0) {
    clear(c, t.row, t.kv_head);
    return;
  }
  t.pages = z->table + z->request[t.row] * z->pages_max;
  t.position = z->position[t.row];
  const int64_t oldest = c->window > 0 ? t.position - c->window + 1 : 0;
  for (int64_t done = 0; done < c->group; done += HEADS) {
    t.head = t.kv_head * c->group + done;
    t.heads = c->group - done < HEADS ? c->group - done : HEADS;
    t.s->begun = 0;
    load_queries(&t);
    for (int64_t first = oldest > 0 ? oldest : 0, end; first <= t.position; first = end) {
      end = (first / c->split + 1) * c->split;
      add_part(&t, first, end < t.position + 1 ? end : t.position + 1);
    }
    store(&t);
  }
}

tl_status tl_host_attention_cached(const tl_call *call) {
  cached c = {.call = *call, .window = call->ints[0], .kv_block = call->ints[1]};
  c.split = call->ints[2], c.factor = call->floats[0] * TL_LOG2E;
  TL_TRY(tl_attention_cached_check(call, &c.sizes));
  TL_TRY(tl_cache_check_rows("attention_cached", &c.sizes, 1));
  c.heads = call->in[0].shape[1], c.group = c.heads / c.sizes.kv_heads;
  tl_team_for(call->team, c.sizes.rows * c.sizes.kv_heads, run_task, &c);
  return TL_OK;
}
