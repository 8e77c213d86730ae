/* optimizer_host.c - AdamW, states and initial values on the host, span by span. */
#include "optimizer.h"

#include "../../runtime/random.h"
#include "../math.h"
#include "../rows.h"

/* --- adamw ------------------------------------------------------------------------------------ */

typedef struct adamw {
  const float *grad;
  float *m, *v, *master; /* master may be NULL */
  const tl_view *weight;
  float clip, beta1, beta2, eps, decay, rate, c1, c2;
} adamw;

typedef struct update {
  const float *grad, *from;
  float *m, *v, *to;
} update;

TL_INLINE void update_span_body(const adamw *k, const update *p, int64_t n) {
  const float clip = k->clip, beta1 = k->beta1, beta2 = k->beta2, eps = k->eps, c1 = k->c1;
  const float c2 = k->c2, decay = k->decay, rate = k->rate;
  const float rest1 = 1.0f - beta1, rest2 = 1.0f - beta2;
  const float *grad = p->grad, *from = p->from;
  float *ms = p->m, *vs = p->v, *to = p->to;
  TL_LANES
  for (int64_t i = 0; i < n; i++) {
    const float g = grad[i] * clip, w = from[i];
    const float m = fmaf(beta1, ms[i], rest1 * g), v = fmaf(beta2, vs[i], (rest2 * g) * g);
    const float u = (m * c1) / (sqrtf(v * c2) + eps);
    ms[i] = m;
    vs[i] = v;
    to[i] = fmaf(-rate, fmaf(decay, w, u), w);
  }
}
TL_SIMD_VERSIONS(update_span, (const adamw *k, const update *p, int64_t n), (k, p, n))

static void update_weights(const void *context, int64_t first, int64_t n) {
  const adamw *k = context;
  float buffer[TL_SPAN];
  float *to = k->master != NULL ? k->master + first : tl_place(k->weight, first, buffer);
  const update p = {.grad = k->grad + first,
                    .from = k->master != NULL ? to : tl_load(k->weight, first, n, buffer),
                    .m = k->m + first,
                    .v = k->v + first,
                    .to = to};
  update_span(k, &p, n);
  if (k->weight->dtype == TL_F32 && k->master != NULL) {
    memcpy((float *)k->weight->data + first, to, (size_t)n * sizeof *to);
  }
  tl_commit(k->weight, first, n, to);
}

tl_status tl_host_adamw(const tl_call *call) {
  const tl_view *grad = &call->in[0], *control = &call->in[1];
  const int64_t count = tl_view_count(grad), scalar = call->ints[0];
  const int32_t masters = call->out_count > 3 && call->out[3].data != NULL;
  TL_TRY(tl_adamw_check(call, call->step->scalar_count));
  const float *gates = control->data, *scalars = call->step->scalars + scalar;
  if (gates[1] == 1.0f) return TL_OK;
  const adamw k = {.grad = grad->data,
                   .weight = &call->out[0],
                   .m = call->out[1].data,
                   .v = call->out[2].data,
                   .master = masters ? call->out[3].data : NULL,
                   .clip = gates[0],
                   .beta1 = call->floats[0],
                   .beta2 = call->floats[1],
                   .eps = call->floats[2],
                   .decay = call->floats[3],
                   .rate = scalars[0] * call->floats[4],
                   .c1 = scalars[1],
                   .c2 = scalars[2]};
  tl_each_span(call->team, count, update_weights, &k);
  return TL_OK;
}

/* --- set_state -------------------------------------------------------------------------------- */

tl_status tl_host_set_state(const tl_call *call) {
  const tl_view *value = &call->in[0], *control = &call->in[1], *state = &call->out[0];
  const int64_t count = tl_view_count(value);
  TL_TRY(tl_set_state_check(call));
  if (((const float *)control->data)[1] == 1.0f) return TL_OK;
  memcpy(state->data, value->data, (size_t)count * sizeof(float));
  return TL_OK;
}

/* --- init ------------------------------------------------------------------------------------- */

typedef struct init {
  const tl_view *y;
  tl_random_key key;
  int64_t kind, columns, row_first, col_first, cols_full;
  float first, second;
} init;

/* Values of the n elements whose logical indices are index, index + 1, ... */
TL_INLINE void draw_span_body(const init *k, uint64_t index, float *y, int64_t n) {
  const tl_random_key key = k->key;
  const float first = k->first, second = k->second, range = second - first;
  if (k->kind == 1) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) {
      const tl_words w = tl_random_words(key, index + (uint64_t)i, 0);
      const float r = sqrtf(-2.0f * tl_log(tl_random_unit(w.word[0]) + 0x1p-24f));
      y[i] = fmaf(second, r * tl_cos(0x1.921fb6p+2f * tl_random_unit(w.word[1])), first);
    }
  } else {
    TL_LANES
    for (int64_t i = 0; i < n; i++) {
      const tl_words w = tl_random_words(key, index + (uint64_t)i, 0);
      y[i] = fmaf(range, tl_random_unit(w.word[0]), first);
    }
  }
}
TL_SIMD_VERSIONS(draw_span, (const init *k, uint64_t index, float *y, int64_t n), (k, index, y, n))

static void init_row(const void *context, int64_t row) {
  const init *k = context;
  float buffer[TL_SPAN];
  const uint64_t index =
      (uint64_t)(k->row_first + row) * (uint64_t)k->cols_full + (uint64_t)k->col_first;
  for (int64_t at = 0; at < k->columns; at += TL_SPAN) {
    const int64_t n = k->columns - at < TL_SPAN ? k->columns - at : TL_SPAN;
    float *y = tl_place(k->y, row * k->columns + at, buffer);
    if (k->kind == 0) {
      for (int64_t i = 0; i < n; i++) y[i] = k->first;
    } else {
      draw_span(k, index + (uint64_t)at, y, n);
    }
    tl_commit(k->y, row * k->columns + at, n, y);
  }
}

tl_status tl_host_init(const tl_call *call) {
  const tl_view *y = &call->out[0];
  const int64_t *ints = call->ints, columns = tl_view_row(y);
  TL_TRY(tl_init_check(call));
  const init k = {.y = y,
                  .key = tl_random_key_of(call->step->seed, (uint64_t)ints[1]),
                  .kind = ints[0],
                  .columns = columns,
                  .row_first = ints[2],
                  .col_first = ints[3],
                  .cols_full = ints[4],
                  .first = call->floats[0],
                  .second = call->floats[1]};
  tl_each_row(call->team, y->shape[0], 16 * columns, init_row, &k);
  return TL_OK;
}
