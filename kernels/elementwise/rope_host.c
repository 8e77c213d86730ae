/* rope_host.c - rotary positions on the host, and the tables of their angles. */
#include "../math.h"
#include "../rows.h"
#include "elementwise.h"
#include "frequencies.h"

/* --- rope ------------------------------------------------------------------------------------- */

typedef struct rope {
  const tl_view *x, *y, *cu;
  const int32_t *positions;             /* of the rows; NULL: from cu */
  const float *table;                   /* (positions, pairs, 2) */
  int64_t rows, pairs, heads, channels; /* x (rows, heads, channels) */
  int64_t rows_per_task;
  int32_t interleaved;
  float sign; /* 1, or -1 to turn back */
} rope;

enum { TASK_ELEMENTS = 1 << 14 };

/* The angles of one position: sign * sine. */
typedef struct angles {
  float cosine[TL_SPAN / 2], sine[TL_SPAN / 2];
} angles;

TL_INLINE void find_angles(const rope *r, int64_t position, angles *out) {
  const float *table = r->table + position * 2 * r->pairs;
  TL_LANES
  for (int64_t i = 0; i < r->pairs; i++) {
    out->cosine[i] = table[2 * i];
    out->sine[i] = r->sign * table[2 * i + 1];
  }
}

/* Pair i is (x[i * stride], x[i * stride + other]), and the same in y. */
TL_INLINE void turn_pairs(const angles *at, const float *x, float *y, int64_t n, int64_t stride,
                          int64_t other) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) {
    const float first = x[i * stride], second = x[i * stride + other];
    y[i * stride] = fmaf(first, at->cosine[i], -(second * at->sine[i]));
    y[i * stride + other] = fmaf(second, at->cosine[i], first * at->sine[i]);
  }
}

/* One head of one token: channels are at most TL_SPAN. */
TL_INLINE void turn_head(const rope *r, const angles *at, const float *x, float *y) {
  const int64_t turned = 2 * r->pairs;
  if (r->interleaved) {
    turn_pairs(at, x, y, r->pairs, 2, 1);
  } else {
    turn_pairs(at, x, y, r->pairs, 1, r->pairs);
  }
  if (y != x && turned < r->channels)
    memmove(y + turned, x + turned, (size_t)(r->channels - turned) * sizeof *y);
}

/* Rows first .. end - 1; `f32` is a constant where this is used: both views are f32. */
TL_INLINE void turn_rows(const rope *r, int64_t first, int64_t end, const int f32) {
  float in[TL_SPAN], out[TL_SPAN];
  angles at;
  const int32_t *start = r->positions == NULL ? r->cu->data : NULL;
  int64_t segment = start == NULL ? 0 : tl_segment_of(r->cu, first);
  for (int64_t row = first; row < end; row++) {
    while (start != NULL && row >= start[segment + 1]) segment++;
    find_angles(r, start == NULL ? r->positions[row] : row - start[segment], &at);
    for (int64_t head = 0; head < r->heads; head++) {
      const int64_t place = (row * r->heads + head) * r->channels;
      if (f32) {
        turn_head(r, &at, (const float *)r->x->data + place, (float *)r->y->data + place);
        continue;
      }
      float *y = tl_place(r->y, place, out);
      turn_head(r, &at, tl_load(r->x, place, r->channels, in), y);
      tl_commit(r->y, place, r->channels, y);
    }
  }
}

TL_INLINE void rope_rows_body(const rope *r, int64_t first, int64_t end) {
  if (r->x->dtype == TL_F32 && r->y->dtype == TL_F32) {
    turn_rows(r, first, end, 1);
  } else {
    turn_rows(r, first, end, 0);
  }
}
TL_SIMD_VERSIONS(rope_rows, (const rope *r, int64_t first, int64_t end), (r, first, end))

static void rope_task(void *context, int64_t index, int32_t worker) {
  const rope *r = context;
  const int64_t first = index * r->rows_per_task, left = r->rows - first;
  (void)worker;
  rope_rows(r, first, first + (left < r->rows_per_task ? left : r->rows_per_task));
}

/* x, y and table are checked; ints: inverse, interleaved. */
static void turn(const tl_call *call, const tl_view *cu, const int32_t *positions) {
  const tl_view *x = &call->in[0], *table = &call->in[2];
  const int64_t rows = x->shape[0], channels = x->shape[x->dims - 1];
  const rope r = {.x = x,
                  .y = &call->out[0],
                  .cu = cu,
                  .positions = positions,
                  .table = table->data,
                  .rows = rows,
                  .rows_per_task = TASK_ELEMENTS / (tl_view_row(x) + 1) + 1,
                  .pairs = table->shape[1],
                  .heads = tl_view_row(x) / channels,
                  .channels = channels,
                  .interleaved = call->ints[1] != 0,
                  .sign = call->ints[0] != 0 ? -1.0f : 1.0f};
  const int64_t tasks = (rows + r.rows_per_task - 1) / r.rows_per_task;
  tl_team_for(call->team, tasks, rope_task, (void *)&r);
}

tl_status tl_host_rope(const tl_call *call) {
  const tl_view *cu = &call->in[1];
  const int64_t positions = call->in[2].shape[0];
  TL_TRY(tl_rope_check(call));
  TL_TRY(tl_expect_segments("rope", cu, call->in[0].shape[0]));
  const int32_t *start = cu->data;
  for (int64_t i = 1; i < tl_view_count(cu); i++) {
    if (start[i] - start[i - 1] > positions) {
      return tl_fail(TL_ARGUMENT, "rope: position %d of segment %lld is past the table's %lld",
                     start[i] - start[i - 1] - 1, (long long)(i - 1), (long long)positions);
    }
  }
  turn(call, cu, NULL);
  return TL_OK;
}

tl_status tl_host_rope_rows(const tl_call *call) {
  const int64_t positions = call->in[2].shape[0];
  TL_TRY(tl_rope_rows_check(call));
  const int32_t *position = call->in[1].data;
  for (int64_t row = 0; row < call->in[0].shape[0]; row++) {
    if (position[row] < 0 || position[row] >= positions) {
      return tl_fail(TL_ARGUMENT, "rope_rows: position %d of row %lld; the table has %lld",
                     position[row], (long long)row, (long long)positions);
    }
  }
  turn(call, NULL, position);
  return TL_OK;
}

/* --- rope_table ------------------------------------------------------------------------------- */

typedef struct rope_table {
  float *out;               /* (positions, pairs, 2) */
  const float *frequencies; /* (pairs) */
  int64_t pairs;
  float magnitude;
} rope_table;

static void table_row(const void *context, int64_t position) {
  const rope_table *t = context;
  float *row = t->out + position * 2 * t->pairs;
  for (int64_t i = 0; i < t->pairs; i++) {
    const float angle = (float)position * t->frequencies[i];
    row[2 * i] = tl_cos(angle) * t->magnitude;
    row[2 * i + 1] = tl_sin(angle) * t->magnitude;
  }
}

tl_status tl_host_rope_table(const tl_call *call) {
  const tl_view *out = &call->out[0];
  const float base = call->floats[0];
  TL_TRY(tl_rope_table_check(call));
  const int64_t pairs = out->shape[1];
  const tl_rope_rule rule = {.kind = call->ints[0],
                             .original = call->ints[1],
                             .base = base,
                             .factor = call->floats[1],
                             .low = call->floats[2],
                             .high = call->floats[3],
                             .magnitude = call->floats[4]};
  float *frequencies = tl_team_scratch(call->team, 0);
  for (int64_t i = 0; i < pairs; i++) frequencies[i] = tl_rope_frequency(&rule, i, pairs);
  const rope_table t = {
      .out = out->data, .frequencies = frequencies, .pairs = pairs, .magnitude = rule.magnitude};
  tl_each_row(call->team, out->shape[0], 64 * pairs, table_row, &t);
  return TL_OK;
}
