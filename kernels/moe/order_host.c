/* order_host.c - who goes where: counts, home order, segments, and rows taken and combined. */
#include "../rows.h"
#include "moe_check.h"

static tl_status check_experts(const char *op, const int32_t *expert, int64_t count,
                               int64_t experts) {
  for (int64_t i = 0; i < count; i++)
    if (expert[i] < 0 || expert[i] >= experts)
      return tl_fail(TL_ARGUMENT, "%s: entry %lld is expert %d; there are %lld", op, (long long)i,
                     expert[i], (long long)experts);
  return TL_OK;
}

tl_status tl_host_expert_counts(const tl_call *call) {
  const tl_view *expert = &call->in[0], *counts = &call->out[0];
  TL_TRY(tl_expert_counts_check(call));
  const int64_t samples = call->ints[0], pieces = call->ints[1], block = call->ints[2];
  const int64_t rows = expert->shape[0], slots = tl_view_row(expert);
  const int64_t experts = tl_view_row(counts), tokens = rows / samples;
  TL_TRY(check_experts("expert_counts", expert->data, rows * slots, experts));
  int32_t *out = counts->data;
  const int32_t *chosen = expert->data;
  memset(out, 0, (size_t)tl_view_bytes(counts));
  for (int64_t row = 0; row < rows; row++) {
    const int64_t piece = (call->ints[3] + row % tokens) / block;
    for (int64_t i = 0; i < slots; i++)
      out[(row / tokens * pieces + piece) * experts + chosen[row * slots + i]]++;
  }
  return TL_OK;
}

tl_status tl_host_expert_order(const tl_call *call) {
  const tl_view *expert = &call->in[0];
  const int64_t count = tl_view_count(expert), listed = call->int_count;
  int32_t place_of[TL_MOE_EXPERTS_MAX];
  int64_t experts;
  TL_TRY(tl_expert_order_check(call, place_of, &experts));
  TL_TRY(check_experts("expert_order", expert->data, count, experts));
  const int32_t *chosen = expert->data;
  int32_t *place = call->out[0].data, *order = call->out[1].data, *starts = call->out[2].data;
  int32_t next[TL_MOE_LISTED_MAX] = {0};
  for (int64_t i = 0; i < count; i++) next[place_of[chosen[i]]]++;
  int32_t row = 0;
  for (int64_t p = 0; p < listed; p++) {
    const int32_t here = next[p];
    starts[p] = next[p] = row;
    row += here;
  }
  starts[listed] = row;
  for (int64_t i = 0; i < count; i++) { /* stable: tokens and slots ascend */
    place[i] = next[place_of[chosen[i]]]++;
    order[place[i]] = (int32_t)i;
  }
  return TL_OK;
}

tl_status tl_host_expert_load(const tl_call *call) {
  const tl_view *counts = &call->in[0], *load = &call->out[0];
  TL_TRY(tl_expert_load_check(call));
  const int64_t experts = tl_view_row(counts);
  int64_t *out = load->data;
  for (int64_t e = 0; e < experts; e++) {
    int64_t sum = call->ints[0] == 1 ? out[e] : 0;
    for (int64_t p = 0; p < counts->shape[0]; p++)
      sum += ((const int32_t *)counts->data)[p * experts + e];
    out[e] = sum;
  }
  return TL_OK;
}

tl_status tl_host_load_sign(const tl_call *call) {
  const tl_view *load = &call->in[0], *y = &call->out[0];
  TL_TRY(tl_load_sign_check(call));
  const int64_t experts = tl_view_count(load), *rows = load->data;
  int64_t sum = 0;
  for (int64_t e = 0; e < experts; e++) sum += rows[e];
  for (int64_t e = 0; e < experts; e++) {
    const int64_t rest = sum - experts * rows[e];
    ((float *)y->data)[e] = (float)((rest > 0) - (rest < 0));
  }
  return TL_OK;
}

/* Starts of the segments of one expert, from *row on, which moves past them. */
static void segments_of(const tl_exchange *x, int64_t expert, int32_t *out, int64_t *row) {
  for (int64_t source = 0; source < x->ranks; source += x->share) {
    for (int64_t piece = 0; piece < x->pieces; piece++) {
      *out++ = (int32_t)*row;
      for (int64_t rank = source; rank < source + x->share && expert >= 0; rank++)
        *row += x->counts[(rank * x->pieces + piece) * x->experts + expert];
    }
  }
  *out = (int32_t)*row;
}

tl_status tl_host_expert_segments(const tl_call *call) {
  const int64_t position = call->ints[2];
  tl_exchange x;
  TL_TRY(tl_expert_segments_check(call, &x));
  const int64_t each = x.ranks / x.share * x.pieces + 1;
  int32_t *offsets = call->out[0].data, *segments = call->out[1].data;
  int64_t row = 0;
  for (int64_t slot = 0; slot < x.slots; slot++) {
    offsets[slot] = (int32_t)row;
    segments_of(&x, x.listing[(x.wave * x.ranks + position) * x.slots + slot],
                segments + slot * each, &row);
  }
  offsets[x.slots] = (int32_t)row;
  return TL_OK;
}

/* ---- rows ---- */

typedef struct take {
  const char *x;
  char *rows;
  const int32_t *order;
  int64_t bytes, per;
} take;

static void take_row(const void *context, int64_t row) {
  const take *t = context;
  memcpy(t->rows + row * t->bytes, t->x + t->order[row] / t->per * t->bytes, (size_t)t->bytes);
}

tl_status tl_host_take_rows(const tl_call *call) {
  const char *op = "take_rows";
  const tl_view *x = &call->in[0], *order = &call->in[1], *starts = &call->in[2];
  const tl_view *rows = &call->out[0];
  TL_TRY(tl_take_rows_check(call));
  const int64_t per = call->ints[0], first = call->ints[1], last = call->ints[2];
  const int64_t width = tl_view_row(x), count = tl_view_count(order);
  const int32_t *start = starts->data;
  if (start[first] < 0 || start[last] < start[first] || start[last] > count ||
      start[last] - start[first] > rows->shape[0])
    return tl_fail(TL_ARGUMENT, "%s: rows %d .. %d of %lld do not fit %lld", op, start[first],
                   start[last], (long long)count, (long long)rows->shape[0]);
  const take t = {.x = x->data,
                  .rows = rows->data,
                  .order = (const int32_t *)order->data + start[first],
                  .bytes = width * tl_dtype_bytes(x->dtype),
                  .per = per};
  tl_each_row(call->team, start[last] - start[first], width, take_row, &t);
  return TL_OK;
}

typedef struct combine {
  const tl_view *rows, *shared, *y; /* shared: or NULL */
  const int32_t *place;
  const float *weight; /* or NULL */
  int64_t width, slots;
} combine;

TL_INLINE void add_weighted_body(float *sum, const float *row, float weight, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) sum[i] = fmaf(weight, row[i], sum[i]);
}
TL_SIMD_VERSIONS(add_weighted, (float *sum, const float *row, float weight, int64_t n),
                 (sum, row, weight, n))

TL_INLINE void add_plain_body(float *sum, const float *row, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) sum[i] = sum[i] + row[i];
}
TL_SIMD_VERSIONS(add_plain, (float *sum, const float *row, int64_t n), (sum, row, n))

static void combine_row(const void *context, int64_t token) {
  const combine *c = context;
  float sum[TL_SPAN], buffer[TL_SPAN];
  for (int64_t at = 0; at < c->width; at += TL_SPAN) {
    const int64_t n = c->width - at < TL_SPAN ? c->width - at : TL_SPAN;
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t i = token * c->slots; i < (token + 1) * c->slots; i++) {
      const float *row = tl_load(c->rows, c->place[i] * c->width + at, n, buffer);
      if (c->weight != NULL) {
        add_weighted(sum, row, c->weight[i], n);
      } else {
        add_plain(sum, row, n);
      }
    }
    const int64_t first = token * c->width + at;
    if (c->shared != NULL) add_plain(sum, tl_load(c->shared, first, n, buffer), n);
    if (c->y->dtype == TL_F32) {
      memcpy((float *)c->y->data + first, sum, (size_t)n * sizeof *sum);
    } else {
      tl_commit(c->y, first, n, sum);
    }
  }
}

tl_status tl_host_combine(const tl_call *call) {
  const char *op = "combine";
  const tl_view *rows = &call->in[0], *place = &call->in[1], *weight = &call->in[2];
  const tl_view *shared = &call->in[3], *y = &call->out[0];
  TL_TRY(tl_combine_check(call));
  const int64_t tokens = y->shape[0], width = tl_view_row(y), slots = tl_view_row(place);
  for (int64_t i = 0; i < tokens * slots; i++) {
    const int32_t row = ((const int32_t *)place->data)[i];
    if (row < 0 || row >= tokens * slots)
      return tl_fail(TL_ARGUMENT, "%s: place %lld is row %d of %lld", op, (long long)i, row,
                     (long long)(tokens * slots));
  }
  const combine c = {.rows = rows,
                     .shared = shared->data == NULL ? NULL : shared,
                     .y = y,
                     .place = place->data,
                     .weight = weight->data,
                     .width = width,
                     .slots = slots};
  tl_each_row(call->team, tokens, width * slots, combine_row, &c);
  return TL_OK;
}
