/* dropout_host.c - dropout on the host: one random word for each element, by its logical index. */
#include "../../runtime/random.h"
#include "../rows.h"
#include "elementwise.h"

typedef struct dropout {
  const tl_view *x, *y;
  tl_random_key key;
  uint64_t step;
  int64_t width;          /* local features */
  int64_t sample, length; /* first sample in the global batch; tokens of a whole sample */
  int64_t token_first, tokens;
  int64_t feature_first, features;
  float rate, factor;
} dropout;

/* x[i] for the n elements whose logical indices are index, index + 1, ... */
TL_INLINE void mask_span_body(const dropout *d, uint64_t index, const float *x, float *y,
                              int64_t n) {
  const tl_random_key key = d->key;
  const uint64_t step = d->step;
  const float rate = d->rate, factor = d->factor;
  TL_LANES
  for (int64_t i = 0; i < n; i++) {
    const uint32_t word = tl_random_words(key, index + (uint64_t)i, step).word[0];
    const float kept = x[i] * factor;
    y[i] = tl_random_unit(word) >= rate ? kept : 0.0f;
  }
}
TL_SIMD_VERSIONS(mask_span, (const dropout *d, uint64_t index, const float *x, float *y, int64_t n),
                 (d, index, x, y, n))

static void drop_row(const void *context, int64_t row) {
  const dropout *d = context;
  const int64_t sample = d->sample + row / d->tokens, token = d->token_first + row % d->tokens;
  const uint64_t index =
      (uint64_t)(sample * d->length + token) * (uint64_t)d->features + (uint64_t)d->feature_first;
  float in[TL_SPAN], out[TL_SPAN];
  for (int64_t at = 0; at < d->width; at += TL_SPAN) {
    const int64_t n = d->width - at < TL_SPAN ? d->width - at : TL_SPAN;
    const int64_t first = row * d->width + at;
    const float *x = tl_load(d->x, first, n, in);
    float *y = tl_place(d->y, first, out);
    if (d->rate > 0.0f) {
      mask_span(d, index + (uint64_t)at, x, y, n);
    } else if (y != x) {
      memmove(y, x, (size_t)n * sizeof *y);
    }
    tl_commit(d->y, first, n, y);
  }
}

tl_status tl_host_dropout(const tl_call *call) {
  const int64_t *ints = call->ints;
  const float rate = call->floats[0];
  TL_TRY(tl_dropout_check(call));
  const dropout d = {.x = &call->in[0],
                     .y = &call->out[0],
                     .key = tl_random_key_of(call->step->seed, (uint64_t)ints[0]),
                     .step = (uint64_t)call->step->step,
                     .width = tl_view_row(&call->in[0]),
                     .sample = call->step->sample_base + ints[1],
                     .length = ints[2],
                     .token_first = ints[3],
                     .tokens = ints[4],
                     .feature_first = ints[5],
                     .features = ints[6],
                     .rate = rate,
                     .factor = 1.0f / (1.0f - rate)};
  tl_each_row(call->team, d.x->shape[0], d.width, drop_row, &d);
  return TL_OK;
}
