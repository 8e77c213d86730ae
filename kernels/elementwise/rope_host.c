/* rope_host.c - rotary positions on the host, and the tables of their angles. */
#include "../math.h"
#include "../rows.h"
#include "elementwise.h"
#include "frequencies.h"

/* --- rope ------------------------------------------------------------------------------------- */

typedef struct rope {
  const tl_view *x, *y, *cu;
  const float *table;             /* (positions, pairs, 2) */
  int64_t pairs, heads, channels; /* x (T, heads, channels) */
  int32_t interleaved;
  float sign; /* 1, or -1 to turn back */
} rope;

/* Pair i is (a[i * stride], b[i * stride]), and the same in ya, yb. */
typedef struct pairs {
  const float *a, *b, *table;
  float *ya, *yb;
} pairs;

TL_INLINE void turn_body(const pairs *p, int64_t n, int64_t stride, float sign) {
  const float *a = p->a, *b = p->b, *table = p->table;
  float *ya = p->ya, *yb = p->yb;
  TL_LANES
  for (int64_t i = 0; i < n; i++) {
    const float cosine = table[2 * i], sine = sign * table[2 * i + 1];
    const float first = a[i * stride], second = b[i * stride];
    ya[i * stride] = fmaf(first, cosine, -(second * sine));
    yb[i * stride] = fmaf(second, cosine, first * sine);
  }
}

TL_INLINE void turn_halves_body(const pairs *p, int64_t n, float sign) { turn_body(p, n, 1, sign); }
TL_SIMD_VERSIONS(turn_halves, (const pairs *p, int64_t n, float sign), (p, n, sign))

TL_INLINE void turn_neighbours_body(const pairs *p, int64_t n, float sign) {
  turn_body(p, n, 2, sign);
}
TL_SIMD_VERSIONS(turn_neighbours, (const pairs *p, int64_t n, float sign), (p, n, sign))

/* One head of one token: channels are at most TL_SPAN. */
static void rope_head(const rope *r, int64_t first, int64_t position) {
  float in[TL_SPAN], out[TL_SPAN];
  const float *x = tl_load(r->x, first, r->channels, in);
  float *y = tl_place(r->y, first, out);
  const int64_t other = r->interleaved ? 1 : r->pairs, turned = 2 * r->pairs;
  const pairs p = {
      .a = x, .b = x + other, .ya = y, .yb = y + other, .table = r->table + position * turned};
  if (r->interleaved) {
    turn_neighbours(&p, r->pairs, r->sign);
  } else {
    turn_halves(&p, r->pairs, r->sign);
  }
  if (y != x) memmove(y + turned, x + turned, (size_t)(r->channels - turned) * sizeof *y);
  tl_commit(r->y, first, r->channels, y);
}

static void rope_row(const void *context, int64_t row) {
  const rope *r = context;
  const int64_t position = row - ((const int32_t *)r->cu->data)[tl_segment_of(r->cu, row)];
  for (int64_t head = 0; head < r->heads; head++) {
    rope_head(r, (row * r->heads + head) * r->channels, position);
  }
}

tl_status tl_host_rope(const tl_call *call) {
  const tl_view *x = &call->in[0], *cu = &call->in[1], *table = &call->in[2];
  const int64_t count = tl_view_count(x), rows = x->shape[0];
  TL_TRY(tl_expect("rope", "x", x, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect("rope", "y", &call->out[0], TL_KIND_FLOAT, count));
  if (table->dims != 3 || table->shape[2] != 2) {
    return tl_fail(TL_SHAPE, "rope: table must have the shape (positions, pairs, 2)");
  }
  TL_TRY(tl_expect("rope", "table", table, TL_KIND_F32, tl_view_count(table)));
  TL_TRY(tl_expect_segments("rope", cu, rows));
  const int64_t channels = x->shape[x->dims - 1], positions = table->shape[0];
  TL_TRY(tl_expect_range("rope", "channels", channels, 1, TL_SPAN));
  TL_TRY(tl_expect_range("rope", "rotated channels", 2 * table->shape[1], 0, channels));
  const int32_t *start = cu->data;
  for (int64_t i = 1; i < tl_view_count(cu); i++) {
    if (start[i] - start[i - 1] > positions) {
      return tl_fail(TL_ARGUMENT, "rope: position %d of segment %lld is past the table's %lld",
                     start[i] - start[i - 1] - 1, (long long)(i - 1), (long long)positions);
    }
  }
  const rope r = {.x = x,
                  .y = &call->out[0],
                  .cu = cu,
                  .table = table->data,
                  .pairs = table->shape[1],
                  .heads = tl_view_row(x) / channels,
                  .channels = channels,
                  .interleaved = call->ints[1] != 0,
                  .sign = call->ints[0] != 0 ? -1.0f : 1.0f};
  tl_each_row(call->team, rows, tl_view_row(x), rope_row, &r);
  return TL_OK;
}

/* --- rope_table ------------------------------------------------------------------------------- */

typedef struct rope_table {
  float *out;               /* (positions, pairs, 2) */
  const float *frequencies; /* (pairs) */
  int64_t pairs;
} rope_table;

static void table_row(const void *context, int64_t position) {
  const rope_table *t = context;
  float *row = t->out + position * 2 * t->pairs;
  for (int64_t i = 0; i < t->pairs; i++) {
    const float angle = (float)position * t->frequencies[i];
    row[2 * i] = tl_cos(angle);
    row[2 * i + 1] = tl_sin(angle);
  }
}

tl_status tl_host_rope_table(const tl_call *call) {
  const tl_view *out = &call->out[0];
  const float base = call->floats[0];
  if (out->dims != 3 || out->shape[2] != 2) {
    return tl_fail(TL_SHAPE, "rope_table: table must have the shape (positions, pairs, 2)");
  }
  TL_TRY(tl_expect("rope_table", "table", out, TL_KIND_F32, tl_view_count(out)));
  TL_TRY(tl_expect_range("rope_table", "kind", call->ints[0], 0, 1));
  TL_TRY(tl_expect_range("rope_table", "positions", out->shape[0], 0, 1 << 21));
  TL_TRY(tl_expect_range("rope_table", "pairs", out->shape[1], 0, TL_SPAN));
  if (!(base >= 1.0f && base <= 0x1p+60f)) {
    return tl_fail(TL_ARGUMENT, "rope_table: base is %g, must be 1 to 2^60", (double)base);
  }
  if (call->ints[0] == 1 && !(call->ints[1] > 0 && call->floats[1] >= 1.0f &&
                              call->floats[2] > 0.0f && call->floats[3] > call->floats[2])) {
    return tl_fail(TL_ARGUMENT,
                   "rope_table: llama3 needs original > 0, factor >= 1, 0 < low < high");
  }
  const int64_t pairs = out->shape[1];
  const tl_rope_rule rule = {.kind = call->ints[0],
                             .original = call->ints[1],
                             .base = base,
                             .factor = call->floats[1],
                             .low = call->floats[2],
                             .high = call->floats[3]};
  float *frequencies = tl_team_scratch(call->team, 0);
  for (int64_t i = 0; i < pairs; i++) frequencies[i] = tl_rope_frequency(&rule, i, pairs);
  const rope_table t = {.out = out->data, .frequencies = frequencies, .pairs = pairs};
  tl_each_row(call->team, out->shape[0], 64 * pairs, table_row, &t);
  return TL_OK;
}
