/* norm_check.c - what the norms refuse. Host twin and launcher ask here, so both say the same. */
#include "../rows.h"
#include "norm.h"

/* Operands of a call; those that the operator does not have are NULL. */
typedef struct operands {
  const tl_view *x, *dy, *gain, *bias, *out, *mean, *rstd;
} operands;

static tl_status check(const char *op, const operands *k) {
  const int64_t count = tl_view_count(k->x), dim = tl_view_count(k->gain);
  if (dim < 1 || count % dim != 0) {
    return tl_fail(TL_SHAPE, "%s: x has %lld elements, not rows of %lld", op, (long long)count,
                   (long long)dim);
  }
  TL_TRY(tl_expect(op, "x", k->x, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect(op, "gain", k->gain, TL_KIND_FLOAT, dim));
  if (k->bias != NULL) TL_TRY(tl_expect(op, "bias", k->bias, TL_KIND_FLOAT, dim));
  if (k->dy != NULL) TL_TRY(tl_expect(op, "dy", k->dy, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect(op, k->dy != NULL ? "dx" : "y", k->out, TL_KIND_FLOAT, count));
  if (k->mean != NULL) TL_TRY(tl_expect(op, "mean", k->mean, TL_KIND_F32, count / dim));
  return tl_expect(op, "rstd", k->rstd, TL_KIND_F32, count / dim);
}

tl_status tl_rms_norm_check(const tl_call *call) {
  const operands k = {
      .x = &call->in[0], .gain = &call->in[1], .out = &call->out[0], .rstd = &call->out[1]};
  return check("rms_norm", &k);
}

tl_status tl_rms_norm_grad_check(const tl_call *call) {
  const operands k = {.dy = &call->in[0],
                      .x = &call->in[1],
                      .gain = &call->in[2],
                      .rstd = &call->in[3],
                      .out = &call->out[0]};
  return check("rms_norm_grad", &k);
}

tl_status tl_layer_norm_check(const tl_call *call) {
  const operands k = {.x = &call->in[0],
                      .gain = &call->in[1],
                      .bias = &call->in[2],
                      .out = &call->out[0],
                      .mean = &call->out[1],
                      .rstd = &call->out[2]};
  return check("layer_norm", &k);
}

tl_status tl_layer_norm_grad_check(const tl_call *call) {
  const operands k = {.dy = &call->in[0],
                      .x = &call->in[1],
                      .gain = &call->in[2],
                      .mean = &call->in[3],
                      .rstd = &call->in[4],
                      .out = &call->out[0]};
  return check("layer_norm_grad", &k);
}
