/* loss_host.c - the operators that have one number for each token, on the host. */
#include "loss.h"

#include "../math.h"
#include "../rows.h"

typedef struct tokens {
  const float *m, *s, *zt, *zsum, *loss;
  const int32_t *targets;
  float *out;
  float vocab, smoothing, weight, seed;
} tokens;

static void cross_entropy(const void *context, int64_t first, int64_t n) {
  const tokens *k = context;
  for (int64_t i = first; i < first + n; i++) {
    if (k->targets[i] < 0) {
      k->out[i] = 0.0f;
      continue;
    }
    const float l = tl_log(k->s[i]);
    float loss = l - (k->zt[i] - k->m[i]);
    if (k->smoothing != 0.0f) {
      loss = (1.0f - k->smoothing) * loss + k->smoothing * (l - k->zsum[i] / k->vocab);
    }
    const float lse = k->m[i] + l;
    if (k->weight != 0.0f) loss = loss + k->weight * (lse * lse);
    k->out[i] = loss;
  }
}

static void logsumexp(const void *context, int64_t first, int64_t n) {
  const tokens *k = context;
  for (int64_t i = first; i < first + n; i++) k->out[i] = k->m[i] + tl_log(k->s[i]);
}

static void seed(const void *context, int64_t first, int64_t n) {
  const tokens *k = context;
  for (int64_t i = first; i < first + n; i++) k->out[i] = k->targets[i] >= 0 ? k->seed : 0.0f;
}

static void mask(const void *context, int64_t first, int64_t n) {
  const tokens *k = context;
  for (int64_t i = first; i < first + n; i++) k->out[i] = k->targets[i] >= 0 ? k->loss[i] : 0.0f;
}

tl_status tl_host_cross_entropy(const tl_call *call) {
  const int64_t rows = tl_view_count(&call->out[0]);
  TL_TRY(tl_cross_entropy_check(call));
  const tokens k = {.m = call->in[0].data,
                    .s = call->in[1].data,
                    .zt = call->in[2].data,
                    .zsum = call->in[3].data,
                    .targets = call->in[4].data,
                    .out = call->out[0].data,
                    .vocab = (float)call->ints[0],
                    .smoothing = call->floats[0],
                    .weight = call->floats[1]};
  tl_each_span(call->team, rows, cross_entropy, &k);
  return TL_OK;
}

tl_status tl_host_logsumexp(const tl_call *call) {
  TL_TRY(tl_logsumexp_check(call));
  const int64_t rows = tl_view_count(&call->out[0]);
  const tokens k = {.m = call->in[0].data, .s = call->in[1].data, .out = call->out[0].data};
  tl_each_span(call->team, rows, logsumexp, &k);
  return TL_OK;
}

tl_status tl_host_loss_seed(const tl_call *call) {
  TL_TRY(tl_loss_seed_check(call));
  const int64_t rows = tl_view_count(&call->out[0]);
  const int64_t count = *(const int64_t *)call->in[1].data;
  const tokens k = {.targets = call->in[0].data,
                    .out = call->out[0].data,
                    .seed = count > 0 ? 1.0f / (float)count : 0.0f};
  tl_each_span(call->team, rows, seed, &k);
  return TL_OK;
}

tl_status tl_host_loss_mask(const tl_call *call) {
  TL_TRY(tl_loss_mask_check(call));
  const int64_t rows = tl_view_count(&call->out[0]);
  const tokens k = {
      .loss = call->in[0].data, .targets = call->in[1].data, .out = call->out[0].data};
  tl_each_span(call->team, rows, mask, &k);
  return TL_OK;
}

tl_status tl_host_loss_finish(const tl_call *call) {
  TL_TRY(tl_loss_finish_check(call));
  const float sum = *(const float *)call->in[0].data;
  const int64_t count = *(const int64_t *)call->in[1].data;
  *(float *)call->out[0].data = count > 0 ? sum / (float)count : 0.0f;
  return TL_OK;
}
