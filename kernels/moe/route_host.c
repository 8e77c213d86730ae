/* route_host.c - the router on the host: scores, groups, the best experts of a row or a table's. */
#include "../math.h"
#include "moe_check.h"
#include "score.h"

typedef struct route {
  const tl_view *z;
  const float *bias;  /* or NULL */
  const int32_t *ids; /* of route_table, or NULL */
  const float *table;
  float *weight;
  int32_t *expert;
  int64_t experts, slots, groups, top_groups, normalize;
  int64_t tokens, length, token_first, vocab; /* of route_table; tokens: of a sample, here */
  tl_router kind;
  float scale;
} route;

static void softmax(const float *z, int64_t n, float *score) {
  tl_partials p;
  float m = z[0];
  for (int64_t j = 1; j < n; j++) m = z[j] > m ? z[j] : m;
  const float t = m * TL_LOG2E;
  for (int64_t j = 0; j < n; j++) score[j] = fmaf(z[j], TL_LOG2E, -t);
  tl_exp2_many(score, score, n);
  tl_partials_clear(&p);
  tl_partials_add(&p, score, n);
  const float s = tl_partials_total(&p);
  for (int64_t j = 0; j < n; j++) score[j] = score[j] / s;
}

static float sqrt_softplus(float z) {
  if (z > 20.0f) return sqrtf(z);
  const float u = tl_exp(z), w = 1.0f + u;
  return sqrtf(w == 1.0f ? u : tl_log(w) * (u / (w - 1.0f)));
}

void tl_moe_scores(tl_router kind, const float *z, int64_t n, float *score) {
  if (kind == TL_ROUTER_SOFTMAX) {
    softmax(z, n, score);
  } else if (kind == TL_ROUTER_SIGMOID) {
    tl_sigmoid_many(z, score, n);
  } else {
    for (int64_t j = 0; j < n; j++) score[j] = sqrt_softplus(z[j]);
  }
}

float tl_moe_dot(const float *a, const float *b, int64_t n) {
  tl_partials p;
  tl_partials_clear(&p);
  for (int64_t at = 0; at < n; at += TL_SPAN)
    tl_partials_dot(&p, a + at, b + at, n - at < TL_SPAN ? n - at : TL_SPAN);
  return tl_partials_total(&p);
}

float tl_moe_total(tl_router kind, const float *score, const int32_t *expert, int64_t slots) {
  float total = 0.0f;
  for (int64_t i = 0; i < slots; i++) total = total + score[expert[i]];
  return kind == TL_ROUTER_SOFTMAX ? total : total + 1e-20f;
}

/* The best of the candidates that are not taken yet, of which there is one; the lowest index of
** equal ones. NaN never wins: rows with NaN are refused before. */
static int64_t best(const float *value, const uint8_t *taken, int64_t n) {
  int64_t found = 0;
  while (found < n - 1 && taken[found]) found++;
  for (int64_t j = found + 1; j < n; j++)
    if (!taken[j] && value[j] > value[found]) found = j;
  return found;
}

/* A group counts its largest choice, or the sum of its two largest. */
static float group_score(const route *r, const float *choice, int64_t each) {
  float first = choice[0], second = -INFINITY;
  for (int64_t j = 1; j < each; j++) {
    if (choice[j] > first) {
      second = first, first = choice[j];
    } else if (choice[j] > second) {
      second = choice[j];
    }
  }
  return r->kind == TL_ROUTER_SOFTMAX || each == 1 ? first : first + second;
}

/* Marks the experts of groups that do not stay as taken. */
static void drop_groups(const route *r, const float *choice, uint8_t *taken) {
  const int64_t each = r->experts / r->groups;
  float score[TL_MOE_EXPERTS_MAX];
  uint8_t stays[TL_MOE_EXPERTS_MAX] = {0};
  for (int64_t g = 0; g < r->groups; g++) score[g] = group_score(r, choice + g * each, each);
  for (int64_t i = 0; i < r->top_groups; i++) stays[best(score, stays, r->groups)] = 1;
  for (int64_t j = 0; j < r->experts; j++) taken[j] = !stays[j / each];
}

/* The experts with the best scores. */
static void choose(const route *r, const float *score, int32_t *expert) {
  const int64_t n = r->experts;
  float choice[TL_MOE_EXPERTS_MAX];
  uint8_t taken[TL_MOE_EXPERTS_MAX] = {0};
  for (int64_t j = 0; j < n; j++) choice[j] = r->bias == NULL ? score[j] : score[j] + r->bias[j];
  if (r->groups > 1) drop_groups(r, choice, taken);
  for (int64_t i = 0; i < r->slots; i++) {
    expert[i] = (int32_t)best(choice, taken, n);
    taken[expert[i]] = 1;
  }
}

/* The token id of a row, 0 for padding. */
static int64_t id_of(const route *r, int64_t row) {
  const int64_t token = r->token_first + row % r->tokens;
  const int32_t id = r->ids[row / r->tokens * r->length + token];
  return id < 0 ? 0 : id;
}

static void route_row(const void *context, int64_t row) {
  const route *r = context;
  const int64_t n = r->experts;
  const float *z = (const float *)r->z->data + row * n;
  float score[TL_MOE_EXPERTS_MAX];
  float *weight = r->weight + row * r->slots;
  int32_t *expert = r->expert + row * r->slots;
  tl_moe_scores(r->kind, z, n, score);
  if (r->ids == NULL) {
    choose(r, score, expert);
  } else {
    const float *entry = r->table + id_of(r, row) * r->slots;
    for (int64_t i = 0; i < r->slots; i++) expert[i] = (int32_t)entry[i];
  }
  const float total = tl_moe_total(r->kind, score, expert, r->slots);
  for (int64_t i = 0; i < r->slots; i++) {
    const float s = score[expert[i]];
    weight[i] = (r->normalize ? s / total : s) * r->scale;
  }
}

/* The first row that cannot be routed, before any expert is chosen. */
static tl_status check_rows(const route *r, int64_t rows, int64_t layer) {
  const uint32_t *bits = r->z->data;
  for (int64_t row = 0; row < rows; row++) {
    int64_t usable = 0;
    int what = -1;
    for (int64_t j = 0; j < r->experts; j++) {
      const uint32_t b = bits[row * r->experts + j];
      if ((b & 0x7fffffffu) > 0x7f800000u) what = TL_ROUTE_NAN;
      if (b == 0x7f800000u && what < 0) what = TL_ROUTE_INFINITE;
      usable += b != 0xff800000u;
    }
    if (what < 0 && usable < r->slots) what = TL_ROUTE_FEW;
    if (what >= 0) return tl_route_refuse(layer, row, (tl_route_fault)what);
  }
  return TL_OK;
}

tl_status tl_host_route(const tl_call *call) {
  const int64_t *ints = call->ints;
  const tl_view *z = &call->in[0], *bias = &call->in[1], *weight = &call->out[0];
  TL_TRY(tl_route_check(call));
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(weight);
  route r = {.z = z, .weight = weight->data, .expert = call->out[1].data, .experts = experts};
  r.bias = bias->data, r.slots = slots, r.groups = ints[2], r.top_groups = ints[3];
  r.normalize = ints[4], r.kind = (tl_router)ints[1], r.scale = call->floats[0];
  TL_TRY(check_rows(&r, rows, ints[0]));
  tl_each_row(call->team, rows, experts * slots, route_row, &r);
  return TL_OK;
}

/* Ids that the table has, whose rows are experts, each once. */
static tl_status check_entries(const route *r, int64_t rows, int64_t layer) {
  for (int64_t row = 0; row < rows; row++) {
    const long long id = id_of(r, row);
    uint8_t taken[TL_MOE_EXPERTS_MAX] = {0};
    if (id >= r->vocab)
      return tl_fail(TL_DATA,
                     "route_table: layer %lld, token %lld: no row of different experts for its "
                     "id: id %lld; the table has %lld",
                     (long long)layer, (long long)row, id, (long long)r->vocab);
    for (int64_t i = 0; i < r->slots; i++) {
      const float entry = r->table[id * r->slots + i];
      const int within = entry >= 0.0f && entry < (float)r->experts;
      if (!within || entry != (float)(int32_t)entry || taken[(int32_t)entry])
        return tl_fail(TL_NUMERIC,
                       "route_table: layer %lld, token %lld: no row of different experts for its "
                       "id: id %lld, slot %lld is %g; there are %lld experts",
                       (long long)layer, (long long)row, id, (long long)i, (double)entry,
                       (long long)r->experts);
      taken[(int32_t)entry] = 1;
    }
  }
  return TL_OK;
}

tl_status tl_host_route_table(const tl_call *call) {
  const int64_t *ints = call->ints;
  const tl_view *z = &call->in[0], *table = &call->in[2], *weight = &call->out[0];
  TL_TRY(tl_route_table_check(call));
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(weight);
  route r = {.z = z, .weight = weight->data, .expert = call->out[1].data, .experts = experts};
  r.slots = slots, r.kind = (tl_router)ints[1], r.normalize = ints[2], r.scale = call->floats[0];
  r.ids = call->in[1].data, r.table = table->data, r.vocab = tl_view_count(table) / slots;
  r.tokens = rows / ints[3], r.length = ints[4], r.token_first = ints[5];
  TL_TRY(check_rows(&r, rows, ints[0]));
  TL_TRY(check_entries(&r, rows, ints[0]));
  tl_each_row(call->team, rows, experts * slots, route_row, &r);
  return TL_OK;
}
