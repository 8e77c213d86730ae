/* square_sum_host.c - the gradient norm on the host: chunks in parallel, then their chain. */
#include "../rows.h"
#include "reduce.h"

enum { CHUNK = 65536 };

/* g as (outer, length, inner); part p is [:, begin + border p .. begin + border p + 1, :]. */
typedef struct square_sum {
  const tl_view *g;
  float *chunks; /* sum of every chunk, part after part */
  int64_t outer, length, inner, begin, extent, parts;
  int64_t chunks_each; /* chunks that the largest part has */
} square_sum;

TL_INLINE void add_squares_body(tl_partials *p, const float *g, int64_t n) {
  tl_partials_dot(p, g, g, n);
}
TL_SIMD_VERSIONS(add_squares, (tl_partials * p, const float *g, int64_t n), (p, g, n))

TL_INLINE void total_body(tl_partials *p, float *out) { *out = tl_partials_total(p); }
TL_SIMD_VERSIONS(total, (tl_partials * p, float *out), (p, out))

/* n <= TL_SPAN elements of a part from `at` on, row-major. The part starts at element `base` of g
** and has `row` elements of each outer index: where these end, the pieces are copied together. */
static const float *gather(const square_sum *k, int64_t base, int64_t row, int64_t at, int64_t n,
                           float *buffer) {
  const int64_t stride = k->length * k->inner;
  if (at % row + n <= row) return tl_load(k->g, base + at / row * stride + at % row, n, buffer);
  for (int64_t i = 0; i < n;) {
    const int64_t offset = (at + i) % row, piece = row - offset < n - i ? row - offset : n - i;
    const int64_t first = base + (at + i) / row * stride + offset;
    const float *part = tl_load(k->g, first, piece, buffer + i);
    if (part != buffer + i) memcpy(buffer + i, part, (size_t)piece * sizeof *buffer);
    i += piece;
  }
  return buffer;
}

static void sum_chunk(void *context, int64_t index, int32_t worker) {
  const square_sum *k = context;
  const int64_t part = index / k->chunks_each, first = index % k->chunks_each * CHUNK;
  const int64_t start = tl_border(part, k->parts, k->extent);
  const int64_t row = (tl_border(part + 1, k->parts, k->extent) - start) * k->inner;
  const int64_t end = k->outer * row - first < CHUNK ? k->outer * row : first + CHUNK;
  float buffer[TL_SPAN];
  tl_partials p;
  (void)worker;
  tl_partials_clear(&p);
  for (int64_t at = first; at < end; at += TL_SPAN) {
    const int64_t n = end - at < TL_SPAN ? end - at : TL_SPAN;
    add_squares(&p, gather(k, (k->begin + start) * k->inner, row, at, n, buffer), n);
  }
  total(&p, &k->chunks[index]);
}

/* The chain over the chunks of a part. */
static float chain_of(const square_sum *k, int64_t part) {
  const int64_t length =
      tl_border(part + 1, k->parts, k->extent) - tl_border(part, k->parts, k->extent);
  const int64_t chunks = (k->outer * length * k->inner + CHUNK - 1) / CHUNK;
  float sum = 0.0f;
  for (int64_t i = 0; i < chunks; i++) sum = sum + k->chunks[part * k->chunks_each + i];
  return sum;
}

tl_status tl_host_square_sum(const tl_call *call) {
  const char *op = "square_sum";
  const tl_view *g = &call->in[0], *slots = &call->out[0];
  const int64_t axis = call->ints[0], slot_first = call->ints[4], count = tl_view_count(slots);
  square_sum k = {.g = g,
                  .outer = 1,
                  .inner = 1,
                  .begin = call->ints[1],
                  .extent = call->ints[2],
                  .parts = call->ints[3],
                  .chunks = tl_team_scratch(call->team, 0)};
  TL_TRY(tl_expect_range(op, "axis", axis, 0, g->dims - 1));
  k.length = g->shape[axis];
  TL_TRY(tl_expect(op, "g", g, TL_KIND_FLOAT, tl_view_count(g)));
  TL_TRY(tl_expect(op, "slots", slots, TL_KIND_F32, count));
  TL_TRY(tl_expect_range(op, "slot_first", slot_first, 0, count));
  TL_TRY(tl_expect_range(op, "parts", k.parts, 0, count - slot_first));
  memset(slots->data, 0, (size_t)tl_view_bytes(slots));
  if (k.parts == 0) return TL_OK;
  TL_TRY(tl_expect_range(op, "begin", k.begin, 0, k.length));
  TL_TRY(tl_expect_range(op, "extent", k.extent, 0, k.length - k.begin));
  for (int32_t i = 0; i < g->dims; i++) {
    if (i < axis) k.outer *= g->shape[i];
    if (i > axis) k.inner *= g->shape[i];
  }
  const int64_t largest = k.outer * ((k.extent + k.parts - 1) / k.parts) * k.inner;
  k.chunks_each = (largest + CHUNK - 1) / CHUNK;
  TL_TRY(tl_expect_range(op, "chunks", k.parts * k.chunks_each, 0,
                         TL_SCRATCH_BYTES / (int64_t)sizeof(float)));
  tl_team_for(call->team, k.parts * k.chunks_each, sum_chunk, &k);
  float *slot = (float *)slots->data + slot_first;
  for (int64_t part = 0; part < k.parts; part++) slot[part] = chain_of(&k, part);
  return TL_OK;
}

tl_status tl_square_sum_rows_check(const tl_call *call) {
  const char *op = "square_sum_rows";
  const tl_view *g = &call->in[0], *slots = &call->out[0];
  const int64_t count = tl_view_count(slots);
  TL_TRY(tl_expect(op, "g", g, TL_KIND_FLOAT, tl_view_count(g)));
  TL_TRY(tl_expect(op, "slots", slots, TL_KIND_F32, count));
  TL_TRY(tl_expect_range(op, "places", call->int_count, g->shape[0], g->shape[0]));
  TL_TRY(tl_expect_range(op, "slots", count, 1, INT32_MAX));
  for (int32_t i = 0; i < call->int_count; i++)
    TL_TRY(tl_expect_range(op, "a place", call->ints[i], -1, count - 1));
  return TL_OK;
}

tl_status tl_host_square_sum_rows(const tl_call *call) {
  const tl_view *g = &call->in[0];
  const int64_t rows = g->shape[0], width = tl_view_row(g);
  TL_TRY(tl_square_sum_rows_check(call));
  square_sum k = {.g = g,
                  .outer = 1,
                  .length = rows,
                  .inner = width,
                  .extent = rows,
                  .parts = rows,
                  .chunks = tl_team_scratch(call->team, 0),
                  .chunks_each = (width + CHUNK - 1) / CHUNK};
  TL_TRY(tl_expect_range("square_sum_rows", "chunks", rows * k.chunks_each, 0,
                         TL_SCRATCH_BYTES / (int64_t)sizeof(float)));
  tl_team_for(call->team, rows * k.chunks_each, sum_chunk, &k);
  for (int64_t row = 0; row < rows; row++)
    if (call->ints[row] >= 0) ((float *)call->out[0].data)[call->ints[row]] = chain_of(&k, row);
  return TL_OK;
}

/* Over n slots of one tensor, in a copy: inputs stay. */
static float slot_tree(const float *slots, int64_t n, float *scratch) {
  memcpy(scratch, slots, (size_t)n * sizeof *slots);
  return tl_tree(scratch, n);
}

tl_status tl_host_grad_norm(const tl_call *call) {
  const char *op = "grad_norm";
  const tl_view *slots = &call->in[0], *norm = &call->out[0], *control = &call->out[1];
  int64_t sum = 0;
  for (int32_t i = 0; i < call->int_count; i++) {
    const int64_t count = call->ints[i];
    TL_TRY(tl_expect_range(op, "counts", count, 1, 1 << 20));
    if ((count & (count - 1)) != 0) {
      return tl_fail(TL_ARGUMENT, "%s: tensor %d has %lld slots, must be a power of two", op, i,
                     (long long)count);
    }
    sum += count;
  }
  TL_TRY(tl_expect(op, "slots", slots, TL_KIND_F32, sum));
  TL_TRY(tl_expect(op, "count", &call->in[1], TL_KIND_I64, 1));
  TL_TRY(tl_expect(op, "loss", &call->in[2], TL_KIND_F32, 1));
  TL_TRY(tl_expect(op, "norm", norm, TL_KIND_F32, 1));
  TL_TRY(tl_expect(op, "control", control, TL_KIND_F32, 2));
  const float *slot = slots->data, loss = *(const float *)call->in[2].data;
  float total = 0.0f;
  for (int32_t i = 0; i < call->int_count; i++) {
    total = total + slot_tree(slot, call->ints[i], tl_team_scratch(call->team, 0));
    slot += call->ints[i];
  }
  const float root = sqrtf(total), clip = call->floats[0], q = clip / (root + 1e-6f);
  const int64_t count = *(const int64_t *)call->in[1].data;
  float *out = control->data;
  *(float *)norm->data = root;
  out[0] = clip > 0.0f && q < 1.0f ? q : 1.0f;
  out[1] = count == 0 || !isfinite(root) || !isfinite(loss) ? 1.0f : 0.0f;
  return TL_OK;
}
