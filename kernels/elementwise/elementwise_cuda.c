/* elementwise_cuda.c - checks the operands of elementwise operators and queues their kernels. */
#include "elementwise.h"

#include "../launch_cuda.h"
#include "elementwise_args.h"

enum {
#define UNARY(number, name, function) KIND_##name = number,
#include "unary.def"
#undef UNARY
  UNARY_KINDS
};

static tl_status launch(const tl_call *call, const char *kernel, const tl_elements_args *a) {
  return tl_launch_threads(call->cuda, kernel, tl_pieces(a->count), a);
}

/* Operands of one shape, f32 or bf16: `ins` inputs and `outs` outputs, named in this order. */
static tl_status check_same(const char *op, const tl_call *call, const char *const *names,
                            int32_t ins, int32_t outs) {
  const int64_t count = tl_view_count(&call->in[0]);
  for (int32_t i = 0; i < ins; i++)
    TL_TRY(tl_expect(op, names[i], &call->in[i], TL_KIND_FLOAT, count));
  for (int32_t i = 0; i < outs; i++)
    TL_TRY(tl_expect(op, names[ins + i], &call->out[i], TL_KIND_FLOAT, count));
  return TL_OK;
}

tl_status tl_cuda_swiglu(const tl_call *call) {
  static const char *const names[] = {"gate", "up", "y"};
  TL_TRY(check_same("swiglu", call, names, 2, 1));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .b = tl_array_of(&call->in[1]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0])};
  return launch(call, "swiglu_elements", &a);
}

tl_status tl_cuda_swiglu_grad(const tl_call *call) {
  static const char *const names[] = {"dy", "gate", "up", "dgate", "dup"};
  TL_TRY(check_same("swiglu_grad", call, names, 3, 2));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .b = tl_array_of(&call->in[1]),
                              .c = tl_array_of(&call->in[2]),
                              .out = tl_array_of(&call->out[0]),
                              .out2 = tl_array_of(&call->out[1]),
                              .count = tl_view_count(&call->in[0])};
  return launch(call, "swiglu_grad_elements", &a);
}

tl_status tl_cuda_unary(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  TL_TRY(tl_expect_range("unary", "kind", call->ints[0], 0, UNARY_KINDS - 1));
  TL_TRY(check_same("unary", call, names, 1, 1));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .kind = (int32_t)call->ints[0]};
  return launch(call, "unary_elements", &a);
}

tl_status tl_cuda_unary_grad(const tl_call *call) {
  static const char *const names[] = {"dy", "x", "dx"};
  TL_TRY(tl_expect_range("unary_grad", "kind", call->ints[0], 0, UNARY_KINDS - 1));
  TL_TRY(check_same("unary_grad", call, names, 2, 1));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .b = tl_array_of(&call->in[1]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .kind = (int32_t)call->ints[0]};
  return launch(call, "unary_grad_elements", &a);
}

tl_status tl_cuda_binary(const tl_call *call) {
  const tl_view *a = &call->in[0], *b = &call->in[1];
  const int64_t count = tl_view_count(a), width = tl_view_row(a), broadcast = call->ints[1];
  TL_TRY(tl_expect_range("binary", "kind", call->ints[0], 0, 3));
  TL_TRY(tl_expect_range("binary", "broadcast", broadcast, 0, 2));
  TL_TRY(tl_expect("binary", "a", a, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect("binary", "b", b, TL_KIND_FLOAT,
                   broadcast == 0   ? count
                   : broadcast == 1 ? width
                                    : a->shape[0]));
  TL_TRY(tl_expect("binary", "y", &call->out[0], TL_KIND_FLOAT, count));
  const tl_elements_args o = {.a = tl_array_of(a),
                              .b = tl_array_of(b),
                              .out = tl_array_of(&call->out[0]),
                              .count = count,
                              .width = width,
                              .kind = (int32_t)call->ints[0],
                              .broadcast = (int32_t)broadcast};
  return launch(call, "binary_elements", &o);
}

tl_status tl_cuda_scale(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  TL_TRY(check_same("scale", call, names, 1, 1));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .number = call->floats[0]};
  return launch(call, "scale_elements", &a);
}

tl_status tl_cuda_scale_step(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  TL_TRY(check_same("scale_step", call, names, 1, 1));
  TL_TRY(tl_expect_range("scale_step", "scalar", call->ints[0], 0, TL_DEVICE_SCALARS_MAX - 1));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .kind = (int32_t)call->ints[0],
                              .step = (const tl_device_step *)(const void *)call->step};
  return launch(call, "scale_step_elements", &a);
}

tl_status tl_cuda_cast(const tl_call *call) {
  static const char *const names[] = {"x", "y"};
  TL_TRY(check_same("cast", call, names, 1, 1));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0])};
  return launch(call, "cast_elements", &a);
}

tl_status tl_cuda_fill(const tl_call *call) {
  const int64_t count = tl_view_count(&call->out[0]);
  TL_TRY(tl_expect("fill", "y", &call->out[0], TL_KIND_FLOAT, count));
  const tl_elements_args a = {
      .out = tl_array_of(&call->out[0]), .count = count, .number = call->floats[0]};
  return launch(call, "fill_elements", &a);
}

tl_status tl_cuda_dropout(const tl_call *call) {
  const char *op = "dropout";
  const tl_view *x = &call->in[0];
  const int64_t *ints = call->ints, count = tl_view_count(x);
  const float rate = call->floats[0];
  if (!(rate >= 0.0f && rate < 1.0f)) {
    return tl_fail(TL_ARGUMENT, "%s: rate is %g, must be at least 0 and below 1", op, (double)rate);
  }
  const tl_dropout_args d = {.x = tl_array_of(x),
                             .y = tl_array_of(&call->out[0]),
                             .step = (const tl_device_step *)(const void *)call->step,
                             .key = (uint64_t)ints[0],
                             .rows = x->shape[0],
                             .width = tl_view_row(x),
                             .first = ints[1],
                             .length = ints[2],
                             .token_first = ints[3],
                             .tokens = ints[4],
                             .feature_first = ints[5],
                             .features = ints[6],
                             .rate = rate,
                             .factor = 1.0f / (1.0f - rate)};
  TL_TRY(tl_expect(op, "x", x, TL_KIND_FLOAT, count));
  TL_TRY(tl_expect(op, "y", &call->out[0], TL_KIND_FLOAT, count));
  TL_TRY(tl_expect_range(op, "tokens", d.tokens, 1, d.length));
  TL_TRY(tl_expect_range(op, "token_first", d.token_first, 0, d.length - d.tokens));
  TL_TRY(tl_expect_range(op, "feature_first", d.feature_first, 0, d.features - d.width));
  return tl_launch_threads(call->cuda, "dropout_elements", d.rows * tl_pieces(d.width), &d);
}
