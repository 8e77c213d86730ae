/* moe_check.c - shapes, dtypes and ints of the operators of moe.h, for host twins and launchers. */
#include "moe_check.h"

#include "../gemm/gemm.h"
#include "../rows.h"

/* ---- router ---- */

tl_status tl_route_refuse(int64_t layer, int64_t token, tl_route_fault what) {
  static const char *const words[] = {"NaN", "infinite", "-infinity for too many experts"};
  if (what == TL_ROUTE_TABLE)
    return tl_fail(TL_NUMERIC,
                   "route_table: layer %lld, token %lld: no row of different experts for its id",
                   (long long)layer, (long long)token);
  return tl_fail(TL_NUMERIC, "non-finite router logits: layer %lld, token %lld is %s",
                 (long long)layer, (long long)token, words[what]);
}

static int64_t bits_of(uint64_t number, int32_t first, int32_t count) {
  return (int64_t)(number >> first & ((UINT64_C(1) << count) - 1));
}

uint64_t tl_route_note(int32_t place, int64_t layer) {
  const int32_t below = TL_ROUTE_TOKEN_BITS + 2;
  const uint64_t most = (UINT64_C(1) << TL_ROUTE_LAYER_BITS) - 1;
  return (uint64_t)place << (below + TL_ROUTE_LAYER_BITS) |
         ((uint64_t)layer < most ? (uint64_t)layer : most) << below;
}

tl_status tl_route_found(uint64_t found) {
  if (found == UINT64_MAX) return TL_OK;
  return tl_route_refuse(bits_of(found, TL_ROUTE_TOKEN_BITS + 2, TL_ROUTE_LAYER_BITS),
                         bits_of(found, 2, TL_ROUTE_TOKEN_BITS),
                         (tl_route_fault)bits_of(found, 0, 2));
}

tl_status tl_route_check(const tl_call *call) {
  const char *op = "route";
  const tl_view *z = &call->in[0], *bias = &call->in[1], *weight = &call->out[0];
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(weight);
  const int64_t groups = call->ints[2], top_groups = call->ints[3];
  TL_TRY(tl_expect_range(op, "experts", experts, 1, TL_MOE_EXPERTS_MAX));
  TL_TRY(tl_expect_range(op, "slots", slots, 1,
                         experts < TL_MOE_SLOTS_MAX ? experts : TL_MOE_SLOTS_MAX));
  TL_TRY(tl_expect_range(op, "kind", call->ints[1], 0, 2));
  TL_TRY(tl_expect_range(op, "groups", groups, 1, experts));
  TL_TRY(tl_expect_range(op, "top_groups", top_groups, 1, groups));
  if (experts % groups != 0 || top_groups * (experts / groups) < slots)
    return tl_fail(TL_ARGUMENT, "route: %lld of %lld groups of %lld experts for %lld slots",
                   (long long)top_groups, (long long)groups, (long long)experts, (long long)slots);
  TL_TRY(tl_expect(op, "z", z, TL_KIND_F32, rows * experts));
  TL_TRY(tl_expect(op, "weight", weight, TL_KIND_F32, rows * slots));
  TL_TRY(tl_expect(op, "expert", &call->out[1], TL_KIND_I32, rows * slots));
  if (bias->data != NULL) TL_TRY(tl_expect(op, "bias", bias, TL_KIND_F32, experts));
  return TL_OK;
}

tl_status tl_route_table_check(const tl_call *call) {
  const char *op = "route_table";
  const tl_view *z = &call->in[0], *table = &call->in[2], *weight = &call->out[0];
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(weight);
  const int64_t samples = call->ints[3], length = call->ints[4];
  TL_TRY(tl_expect_range(op, "experts", experts, 1, TL_MOE_EXPERTS_MAX));
  TL_TRY(tl_expect_range(op, "slots", slots, 1,
                         experts < TL_MOE_SLOTS_MAX ? experts : TL_MOE_SLOTS_MAX));
  TL_TRY(tl_expect_range(op, "kind", call->ints[1], 0, 2));
  TL_TRY(tl_expect_range(op, "samples", samples, 1, rows));
  TL_TRY(tl_expect_range(op, "length", length, rows / samples, INT32_MAX));
  TL_TRY(tl_expect_range(op, "token_first", call->ints[5], 0, length - rows / samples));
  TL_TRY(tl_expect(op, "z", z, TL_KIND_F32, rows / samples * samples * experts));
  TL_TRY(tl_expect(op, "ids", &call->in[1], TL_KIND_I32, samples * length));
  TL_TRY(tl_expect(op, "table", table, TL_KIND_F32, tl_view_count(table) / slots * slots));
  TL_TRY(tl_expect(op, "weight", weight, TL_KIND_F32, rows * slots));
  return tl_expect(op, "expert", &call->out[1], TL_KIND_I32, rows * slots);
}

tl_status tl_route_grad_check(const tl_call *call) {
  const char *op = "route_grad";
  const tl_view *in = call->in, *z = &in[0], *load = &in[4];
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(&in[1]);
  const int64_t samples = call->ints[2];
  TL_TRY(tl_expect_range(op, "experts", experts, 1, TL_MOE_EXPERTS_MAX));
  TL_TRY(tl_expect_range(op, "slots", slots, 1, TL_MOE_SLOTS_MAX));
  TL_TRY(tl_expect_range(op, "kind", call->ints[0], 0, load->data != NULL ? 0 : 2));
  TL_TRY(tl_expect_range(op, "samples", samples, 1, rows));
  TL_TRY(tl_expect(op, "z", z, TL_KIND_F32, rows * experts));
  TL_TRY(tl_expect(op, "expert", &in[1], TL_KIND_I32, rows * slots));
  TL_TRY(tl_expect(op, "place", &in[2], TL_KIND_I32, rows * slots));
  TL_TRY(tl_expect(op, "dweight", &in[3], TL_KIND_F32, rows * slots));
  TL_TRY(tl_expect(op, "dz", &call->out[0], TL_KIND_FLOAT, rows * experts));
  if (load->data != NULL) TL_TRY(tl_expect(op, "load", load, TL_KIND_F32, samples * experts));
  return TL_OK;
}

tl_status tl_route_sums_check(const tl_call *call) {
  const char *op = "route_sums";
  const tl_view *z = &call->in[0], *expert = &call->in[1];
  const int64_t rows = z->shape[0], experts = tl_view_row(z), slots = tl_view_row(expert);
  const int64_t samples = call->ints[0], runs = call->ints[1];
  TL_TRY(tl_expect_range(op, "experts", experts, 1, TL_MOE_EXPERTS_MAX));
  TL_TRY(tl_expect_range(op, "samples", samples, 1, rows));
  TL_TRY(tl_expect_range(op, "runs", runs, 1, TL_MOE_RUNS_MAX));
  if (rows % samples != 0 || (runs & (runs - 1)) != 0)
    return tl_fail(TL_ARGUMENT, "%s: %lld rows, %lld samples, %lld runs", op, (long long)rows,
                   (long long)samples, (long long)runs);
  TL_TRY(tl_expect(op, "z", z, TL_KIND_F32, rows * experts));
  TL_TRY(tl_expect(op, "expert", expert, TL_KIND_I32, rows * slots));
  TL_TRY(tl_expect(op, "share", &call->out[0], TL_KIND_F32, samples * experts));
  return tl_expect(op, "load", &call->out[1], TL_KIND_F32, samples * experts);
}

tl_status tl_balance_loss_check(const tl_call *call) {
  const char *op = "balance_loss";
  const tl_view *share = &call->in[0], *load = &call->in[1];
  const int64_t samples = share->shape[0], experts = tl_view_row(share);
  TL_TRY(tl_expect_range(op, "experts", experts, 1, TL_MOE_EXPERTS_MAX));
  TL_TRY(tl_expect_range(op, "length", call->ints[0], 1, INT32_MAX));
  TL_TRY(tl_expect(op, "share", share, TL_KIND_F32, samples * experts));
  TL_TRY(tl_expect(op, "load", load, TL_KIND_F32, samples * experts));
  return tl_expect(op, "loss", &call->out[0], TL_KIND_F32, samples);
}

/* ---- who goes where ---- */

tl_status tl_expert_counts_check(const tl_call *call) {
  const char *op = "expert_counts";
  const tl_view *expert = &call->in[0], *counts = &call->out[0];
  const int64_t samples = call->ints[0], pieces = call->ints[1], block = call->ints[2];
  const int64_t rows = expert->shape[0], slots = tl_view_row(expert);
  TL_TRY(tl_expect_range(op, "samples", samples, 1, rows));
  TL_TRY(tl_expect_range(op, "block", block, 1, INT32_MAX));
  const int64_t tokens = rows / samples;
  TL_TRY(tl_expect(op, "expert", expert, TL_KIND_I32, samples * tokens * slots));
  TL_TRY(tl_expect(op, "counts", counts, TL_KIND_I32, samples * pieces * tl_view_row(counts)));
  return tl_expect_range(op, "token_first", call->ints[3], 0, pieces * block - tokens);
}

/* The listing place of each expert; fails unless the listing has every expert once. */
static tl_status places_of(const char *op, const int64_t *listing, int64_t listed,
                           int32_t *place_of, int64_t *count) {
  int64_t experts = 0;
  TL_TRY(tl_expect_range(op, "experts listed", listed, 1, TL_MOE_LISTED_MAX));
  for (int64_t i = 0; i < listed; i++) experts += listing[i] >= 0;
  TL_TRY(tl_expect_range(op, "experts", experts, 1, TL_MOE_EXPERTS_MAX));
  for (int64_t e = 0; e < experts; e++) place_of[e] = -1;
  for (int64_t i = 0; i < listed; i++) {
    if (listing[i] < 0) continue;
    if (listing[i] >= experts || place_of[listing[i]] >= 0)
      return tl_fail(TL_ARGUMENT, "%s: the listing of %lld experts has expert %lld %s", op,
                     (long long)experts, (long long)listing[i],
                     listing[i] >= experts ? "" : "twice");
    place_of[listing[i]] = (int32_t)i;
  }
  *count = experts;
  return TL_OK;
}

tl_status tl_expert_order_check(const tl_call *call, int32_t *place_of, int64_t *experts) {
  const char *op = "expert_order";
  const tl_view *expert = &call->in[0];
  const int64_t count = tl_view_count(expert);
  TL_TRY(places_of(op, call->ints, call->int_count, place_of, experts));
  TL_TRY(tl_expect(op, "expert", expert, TL_KIND_I32, count));
  TL_TRY(tl_expect(op, "place", &call->out[0], TL_KIND_I32, count));
  TL_TRY(tl_expect(op, "order", &call->out[1], TL_KIND_I32, count));
  return tl_expect(op, "starts", &call->out[2], TL_KIND_I32, call->int_count + 1);
}

tl_status tl_expert_load_check(const tl_call *call) {
  const char *op = "expert_load";
  const tl_view *counts = &call->in[0];
  const int64_t experts = tl_view_row(counts);
  TL_TRY(tl_expect(op, "counts", counts, TL_KIND_I32, counts->shape[0] * experts));
  TL_TRY(tl_expect(op, "load", &call->out[0], TL_KIND_I64, experts));
  return tl_expect_range(op, "mode", call->ints[0], 0, 1);
}

tl_status tl_load_sign_check(const tl_call *call) {
  const int64_t experts = tl_view_count(&call->in[0]);
  TL_TRY(tl_expect("load_sign", "load", &call->in[0], TL_KIND_I64, experts));
  return tl_expect("load_sign", "y", &call->out[0], TL_KIND_F32, experts);
}

tl_status tl_expert_segments_check(const tl_call *call, tl_exchange *x) {
  const char *op = "expert_segments";
  const int64_t *ints = call->ints;
  *x = (tl_exchange){.listing = ints + 5, .ranks = ints[0], .share = ints[1]};
  x->waves = ints[3], x->wave = ints[4];
  TL_TRY(tl_exchange_check(op, &call->in[0], x, call->int_count - 5));
  TL_TRY(tl_expect_range(op, "position", ints[2], 0, x->ranks - 1));
  const int64_t each = x->ranks / x->share * x->pieces + 1;
  TL_TRY(tl_expect(op, "offsets", &call->out[0], TL_KIND_I32, x->slots + 1));
  return tl_expect(op, "segments", &call->out[1], TL_KIND_I32, x->slots * each);
}

tl_status tl_take_rows_check(const tl_call *call) {
  const char *op = "take_rows";
  const tl_view *x = &call->in[0], *order = &call->in[1], *starts = &call->in[2];
  const tl_view *rows = &call->out[0];
  const int64_t per = call->ints[0], first = call->ints[1], last = call->ints[2];
  const int64_t width = tl_view_row(x);
  TL_TRY(tl_expect(op, "order", order, TL_KIND_I32, x->shape[0] * per));
  TL_TRY(tl_expect_range(op, "last", last, 0, tl_view_count(starts) - 1));
  TL_TRY(tl_expect_range(op, "first", first, 0, last));
  TL_TRY(tl_expect(op, "starts", starts, TL_KIND_I32, tl_view_count(starts)));
  TL_TRY(tl_expect(op, "rows", rows, x->dtype == TL_F32 ? TL_KIND_F32 : TL_KIND_FLOAT,
                   rows->shape[0] * width));
  if (x->dtype != rows->dtype || tl_view_row(rows) != width)
    return tl_fail(TL_SHAPE, "%s: rows and x differ in dtype or width", op);
  return TL_OK;
}

tl_status tl_combine_check(const tl_call *call) {
  const char *op = "combine";
  const tl_view *rows = &call->in[0], *place = &call->in[1], *weight = &call->in[2];
  const tl_view *shared = &call->in[3], *y = &call->out[0];
  const int64_t tokens = y->shape[0], width = tl_view_row(y), slots = tl_view_row(place);
  TL_TRY(tl_expect(op, "place", place, TL_KIND_I32, tokens * slots));
  TL_TRY(tl_expect(op, "rows", rows, TL_KIND_FLOAT, tokens * slots * width));
  TL_TRY(tl_expect(op, "y", y, TL_KIND_FLOAT, tokens * width));
  if (weight->data != NULL) TL_TRY(tl_expect(op, "weight", weight, TL_KIND_F32, tokens * slots));
  if (shared->data != NULL) TL_TRY(tl_expect(op, "shared", shared, TL_KIND_FLOAT, tokens * width));
  return TL_OK;
}

/* ---- work on the rows of each expert ---- */

static tl_status check_stack(const char *op, const tl_view *stack, int64_t experts, int64_t rows,
                             int64_t columns) {
  if (stack->data == NULL || stack->dims < 2 || stack->shape[0] != experts ||
      tl_view_row(stack) < rows * columns)
    return tl_fail(TL_SHAPE, "%s: weights of %lld experts of %lld x %lld are wanted", op,
                   (long long)experts, (long long)rows, (long long)columns);
  return TL_OK;
}

/* f32 or bf16, all of one dtype. */
static tl_status check_factors(const char *op, const tl_view *first, const tl_view *others,
                               int64_t count) {
  TL_TRY(tl_expect(op, "a factor", first, TL_KIND_FLOAT, tl_view_count(first)));
  for (int64_t i = 0; i < count; i++)
    if (others[i].dtype != first->dtype)
      return tl_fail(TL_DTYPE, "%s: factors of %s and %s", op, tl_dtype_name(first->dtype),
                     tl_dtype_name(others[i].dtype));
  return TL_OK;
}

/* `each` inputs a part and `more`; `outputs`, 0: one a part. */
static tl_status check_parts(const char *op, const tl_call *call, int64_t each, int64_t more,
                             int64_t outputs) {
  const int64_t parts = call->ints[0];
  TL_TRY(tl_expect_range(op, "parts", parts, 1, TL_MOE_PARTS_MAX));
  if (call->in_count == each * parts + more && call->out_count == (outputs ? outputs : parts))
    return TL_OK;
  return tl_fail(TL_ARGUMENT, "%s: %d inputs and %d outputs for %lld parts", op, call->in_count,
                 call->out_count, (long long)parts);
}

static tl_status check_offsets(const char *op, const tl_view *offsets) {
  return tl_expect(op, "offsets", offsets, TL_KIND_I32, tl_view_count(offsets));
}

tl_status tl_grouped_linear_check(const tl_call *call) {
  const char *op = "grouped_linear";
  TL_TRY(check_parts(op, call, 1, 2, 0));
  const int64_t parts = call->ints[0];
  const tl_view *x = &call->in[0], *offsets = &call->in[1];
  const int64_t experts = tl_view_count(offsets) - 1, width = tl_view_row(x);
  TL_TRY(check_factors(op, x, &call->in[2], parts));
  TL_TRY(check_offsets(op, offsets));
  for (int64_t i = 0; i < parts; i++) {
    const tl_view *y = &call->out[i];
    TL_TRY(check_stack(op, &call->in[2 + i], experts, tl_view_row(y), width));
    TL_TRY(tl_expect(op, "y", y, TL_KIND_FLOAT, x->shape[0] * tl_view_row(y)));
  }
  return TL_OK;
}

tl_status tl_grouped_linear_grad_input_check(const tl_call *call) {
  const char *op = "grouped_linear_grad_input";
  TL_TRY(check_parts(op, call, 2, 1, 1));
  const int64_t parts = call->ints[0];
  const tl_view *offsets = &call->in[parts], *dx = &call->out[0];
  const int64_t experts = tl_view_count(offsets) - 1, width = tl_view_row(dx);
  TL_TRY(check_factors(op, &call->in[0], call->in, parts));
  TL_TRY(check_factors(op, &call->in[0], &call->in[parts + 1], parts));
  TL_TRY(tl_expect(op, "dx", dx, TL_KIND_FLOAT, dx->shape[0] * width));
  TL_TRY(check_offsets(op, offsets));
  for (int64_t i = 0; i < parts; i++) {
    const tl_view *dy = &call->in[i];
    TL_TRY(check_stack(op, &call->in[parts + 1 + i], experts, tl_view_row(dy), width));
    if (dy->shape[0] != dx->shape[0]) return tl_fail(TL_SHAPE, "%s: dy and dx differ in rows", op);
  }
  return TL_OK;
}

tl_status tl_grouped_linear_grad_weight_check(const tl_call *call) {
  const char *op = "grouped_linear_grad_weight";
  const tl_view *grad = &call->in[0], *x = &call->in[1], *segments = &call->in[2];
  const tl_view *out = &call->out[0];
  const int64_t first = call->ints[0], pieces = call->ints[1], leaves = call->ints[3];
  const int64_t experts = segments->shape[0], each = tl_view_row(segments);
  TL_TRY(check_stack(op, out, experts, tl_view_row(grad), tl_view_row(x)));
  TL_TRY(tl_expect_range(op, "mode", call->ints[2], 0, 2));
  TL_TRY(tl_expect_range(op, "first", first, 0, each - 1));
  TL_TRY(tl_expect_range(op, "samples", pieces, 0, each - 1 - first));
  TL_TRY(tl_expect_range(op, "leaves", leaves, 1, TL_GEMM_LEAVES_MAX));
  if ((leaves & (leaves - 1)) != 0 || pieces % leaves != 0 || (call->ints[2] == 1 && leaves > 1))
    return tl_fail(TL_ARGUMENT,
                   "%s: %lld pieces, mode %lld, in %lld leaves; a power of two of them, of equally "
                   "many pieces, and a chain that resumes is one",
                   op, (long long)pieces, (long long)call->ints[2], (long long)leaves);
  TL_TRY(tl_expect(op, "segments", segments, TL_KIND_I32, tl_view_count(segments)));
  TL_TRY(tl_expect(op, "dweight", out, TL_KIND_F32, experts * tl_view_row(out)));
  if (grad->dtype != x->dtype || grad->shape[0] != x->shape[0] ||
      (grad->dtype != TL_F32 && grad->dtype != TL_BF16))
    return tl_fail(TL_SHAPE, "%s: dy and x differ in dtype or rows", op);
  return TL_OK;
}

tl_status tl_expert_rows_check(const char *op, const tl_call *call, int32_t in, int32_t out) {
  const int64_t room = call->in[0].shape[0];
  TL_TRY(check_offsets(op, &call->in[in]));
  for (int32_t i = 0; i < in + out; i++) {
    const tl_view *v = i < in ? &call->in[i] : &call->out[i - in];
    TL_TRY(tl_expect(op, "an operand", v, TL_KIND_FLOAT, tl_view_count(&call->in[0])));
    if (v->shape[0] != room) return tl_fail(TL_SHAPE, "%s: operands differ in rows", op);
  }
  return TL_OK;
}

tl_status tl_expert_scale_grad_check(const tl_call *call) {
  const char *op = "expert_scale_grad";
  const tl_view *dy = &call->in[0];
  const int64_t room = dy->shape[0], width = tl_view_row(dy);
  TL_TRY(check_offsets(op, &call->in[3]));
  TL_TRY(tl_expect(op, "dy", dy, TL_KIND_FLOAT, room * width));
  TL_TRY(tl_expect(op, "out", &call->in[1], TL_KIND_FLOAT, room * width));
  TL_TRY(tl_expect(op, "weight", &call->in[2], TL_KIND_F32, room));
  TL_TRY(tl_expect(op, "dout", &call->out[0], TL_KIND_FLOAT, room * width));
  return tl_expect(op, "dweight", &call->out[1], TL_KIND_F32, room);
}
