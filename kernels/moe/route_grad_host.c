/* route_grad_host.c - the gradient of the router, and the loss that keeps its load even. */
#include "../math.h"
#include "moe_check.h"
#include "score.h"

typedef struct slope {
  const tl_view *z, *dz;
  const int32_t *expert, *place;
  const float *dweight, *load;               /* load: or NULL */
  int64_t experts, slots, normalize, tokens; /* tokens of a sample here */
  tl_router kind;
  float scale, balance;
} slope;

/* What only the slots decide: d of each slot, the sums over slots. */
typedef struct chosen {
  float d[TL_MOE_SLOTS_MAX];
  float total, g;
} chosen;

static void look(const slope *s, int64_t row, const float *score, chosen *c) {
  const int32_t *expert = s->expert + row * s->slots, *place = s->place + row * s->slots;
  c->total = tl_moe_total(s->kind, score, expert, s->slots);
  c->g = 0.0f;
  for (int64_t i = 0; i < s->slots; i++) {
    c->d[i] = s->dweight[place[i]];
    const float q = s->normalize ? score[expert[i]] / c->total : score[expert[i]];
    c->g = fmaf(q, c->d[i], c->g);
  }
}

/* Without normalizing, a softmax score of any expert moves all weights. */
static void softmax_whole(const slope *s, const float *score, const chosen *c,
                          const int32_t *expert, float *dz) {
  float d[TL_MOE_EXPERTS_MAX] = {0};
  for (int64_t i = 0; i < s->slots; i++) d[expert[i]] = d[expert[i]] + c->d[i];
  for (int64_t j = 0; j < s->experts; j++) dz[j] = (s->scale * score[j]) * (d[j] - c->g);
}

static float slot_slope(const slope *s, const chosen *c, int64_t slot, float score, float z) {
  if (s->kind == TL_ROUTER_SOFTMAX) return (s->scale * (score / c->total)) * (c->d[slot] - c->g);
  const float ds =
      s->normalize ? (s->scale * (c->d[slot] - c->g)) / c->total : s->scale * c->d[slot];
  if (s->kind == TL_ROUTER_SIGMOID) return ds * (score * (1.0f - score));
  return score == 0.0f ? 0.0f : ds * (tl_sigmoid(z) / (score + score));
}

/* Adds the slope of the balance loss. */
static void add_balance(const slope *s, int64_t row, const float *score, float *dz) {
  const int64_t n = s->experts;
  const float *load = s->load + row / s->tokens * n;
  float t[TL_MOE_EXPERTS_MAX];
  for (int64_t j = 0; j < n; j++) t[j] = s->balance * load[j];
  const float r = tl_moe_dot(t, score, n);
  for (int64_t j = 0; j < n; j++) dz[j] = dz[j] + score[j] * (t[j] - r);
}

static void slope_row(const void *context, int64_t row) {
  const slope *s = context;
  const int64_t n = s->experts;
  const float *z = (const float *)s->z->data + row * n;
  const int32_t *expert = s->expert + row * s->slots;
  float score[TL_MOE_EXPERTS_MAX], buffer[TL_SPAN];
  float *dz = tl_place(s->dz, row * n, buffer);
  chosen c;
  tl_moe_scores(s->kind, z, n, score);
  look(s, row, score, &c);
  if (s->kind == TL_ROUTER_SOFTMAX && !s->normalize) {
    softmax_whole(s, score, &c, expert, dz);
  } else {
    for (int64_t j = 0; j < n; j++) dz[j] = 0.0f;
    for (int64_t i = 0; i < s->slots; i++)
      dz[expert[i]] = dz[expert[i]] + slot_slope(s, &c, i, score[expert[i]], z[expert[i]]);
  }
  if (s->load != NULL) add_balance(s, row, score, dz);
  tl_commit(s->dz, row * n, n, dz);
}

/* Ids and places from another operator, but never used as an index unseen. */
static tl_status check_indices(const char *op, const int32_t *list, int64_t count, int64_t bound) {
  for (int64_t i = 0; i < count; i++)
    if (list[i] < 0 || list[i] >= bound)
      return tl_fail(TL_ARGUMENT, "%s: entry %lld is %d; there are %lld", op, (long long)i, list[i],
                     (long long)bound);
  return TL_OK;
}

tl_status tl_host_route_grad(const tl_call *call) {
  const tl_view *in = call->in, *z = &in[0], *load = &in[4];
  TL_TRY(tl_route_grad_check(call));
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(&in[1]);
  const int64_t samples = call->ints[2];
  TL_TRY(check_indices("route_grad: expert", in[1].data, rows * slots, experts));
  TL_TRY(check_indices("route_grad: place", in[2].data, rows * slots, rows * slots));
  const slope s = {.z = z,
                   .dz = &call->out[0],
                   .expert = in[1].data,
                   .place = in[2].data,
                   .dweight = in[3].data,
                   .load = load->data,
                   .experts = experts,
                   .slots = slots,
                   .normalize = call->ints[1],
                   .tokens = rows / samples,
                   .kind = (tl_router)call->ints[0],
                   .scale = call->floats[0],
                   .balance = call->floats[1]};
  tl_each_row(call->team, rows, 4 * experts, slope_row, &s);
  return TL_OK;
}

typedef struct sums {
  const float *z;
  const int32_t *expert;
  float *share, *load;
  int64_t experts, slots, tokens, runs;
} sums;

enum { BLOCK = 64 };

/* One run of a sample: blocks of 64 tokens. */
static void sum_run(const sums *s, int64_t first, int64_t last, float *out) {
  float score[TL_MOE_EXPERTS_MAX], block[TL_MOE_EXPERTS_MAX];
  for (int64_t j = 0; j < s->experts; j++) out[j] = 0.0f;
  for (int64_t begin = first; begin < last; begin += BLOCK) {
    for (int64_t j = 0; j < s->experts; j++) block[j] = 0.0f;
    for (int64_t t = begin; t < last && t < begin + BLOCK; t++) {
      tl_moe_scores(TL_ROUTER_SOFTMAX, s->z + t * s->experts, s->experts, score);
      for (int64_t j = 0; j < s->experts; j++) block[j] = block[j] + score[j];
    }
    for (int64_t j = 0; j < s->experts; j++) out[j] = out[j] + block[j];
  }
}

static void sum_sample(void *context, int64_t sample, int32_t worker) {
  const sums *s = context;
  const int64_t n = s->experts, first = sample * s->tokens;
  float *share = s->share + sample * n, *load = s->load + sample * n;
  float run[TL_MOE_EXPERTS_MAX], stack[8][TL_MOE_EXPERTS_MAX];
  int64_t top = 0;
  (void)worker;
  for (int64_t r = 0; r < s->runs; r++) {
    sum_run(s, first + tl_border(r, s->runs, s->tokens),
            first + tl_border(r + 1, s->runs, s->tokens), run);
    memcpy(stack[top++], run, sizeof run);
    for (int64_t pairs = r; pairs & 1; pairs >>= 1, top--)
      for (int64_t j = 0; j < n; j++) stack[top - 2][j] = stack[top - 2][j] + stack[top - 1][j];
  }
  memcpy(share, stack[0], (size_t)n * sizeof *share);
  for (int64_t j = 0; j < n; j++) load[j] = 0.0f;
  for (int64_t i = first * s->slots; i < (first + s->tokens) * s->slots; i++)
    load[s->expert[i]] += 1.0f;
}

tl_status tl_host_route_sums(const tl_call *call) {
  const tl_view *z = &call->in[0], *expert = &call->in[1];
  TL_TRY(tl_route_sums_check(call));
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(expert);
  const int64_t samples = call->ints[0], runs = call->ints[1];
  TL_TRY(check_indices("route_sums: expert", expert->data, rows * slots, experts));
  sums s = {.z = z->data, .expert = expert->data, .share = call->out[0].data};
  s.load = call->out[1].data, s.experts = experts, s.slots = slots;
  s.tokens = rows / samples, s.runs = runs;
  tl_team_for(call->team, samples, sum_sample, &s);
  return TL_OK;
}

tl_status tl_host_balance_loss(const tl_call *call) {
  const tl_view *share = &call->in[0], *load = &call->in[1], *loss = &call->out[0];
  TL_TRY(tl_balance_loss_check(call));
  const int64_t samples = share->shape[0], experts = tl_view_row(share);
  const float length = (float)call->ints[0];
  for (int64_t s = 0; s < samples; s++) {
    float f[TL_MOE_EXPERTS_MAX], p[TL_MOE_EXPERTS_MAX];
    for (int64_t j = 0; j < experts; j++) {
      f[j] = ((const float *)load->data)[s * experts + j] / length;
      p[j] = ((const float *)share->data)[s * experts + j] / length;
    }
    ((float *)loss->data)[s] = (float)experts * tl_moe_dot(f, p, experts);
  }
  return TL_OK;
}
