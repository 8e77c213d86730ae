/* elementwise_cuda.c - queues the kernels of the elementwise operators. */
#include "elementwise.h"

#include "../launch_cuda.h"
#include "elementwise_args.h"

static tl_status launch(const tl_call *call, const char *kernel, const tl_elements_args *a) {
  return tl_overlap_threads(call->cuda, kernel, tl_pieces(a->count), a);
}

tl_status tl_cuda_swiglu(const tl_call *call) {
  TL_TRY(tl_swiglu_check(call));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .b = tl_array_of(&call->in[1]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0])};
  return launch(call, "swiglu_elements", &a);
}

tl_status tl_cuda_swiglu_grad(const tl_call *call) {
  TL_TRY(tl_swiglu_grad_check(call));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .b = tl_array_of(&call->in[1]),
                              .c = tl_array_of(&call->in[2]),
                              .out = tl_array_of(&call->out[0]),
                              .out2 = tl_array_of(&call->out[1]),
                              .count = tl_view_count(&call->in[0])};
  return launch(call, "swiglu_grad_elements", &a);
}

tl_status tl_cuda_unary(const tl_call *call) {
  TL_TRY(tl_unary_check(call));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .kind = (int32_t)call->ints[0]};
  return launch(call, "unary_elements", &a);
}

tl_status tl_cuda_unary_grad(const tl_call *call) {
  TL_TRY(tl_unary_grad_check(call));
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
  TL_TRY(tl_binary_check(call));
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
  TL_TRY(tl_scale_check(call));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .number = call->floats[0]};
  return launch(call, "scale_elements", &a);
}

tl_status tl_cuda_scale_step(const tl_call *call) {
  TL_TRY(tl_scale_step_check(call, TL_DEVICE_SCALARS_MAX));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0]),
                              .kind = (int32_t)call->ints[0],
                              .step = (const tl_device_step *)(const void *)call->step};
  return launch(call, "scale_step_elements", &a);
}

tl_status tl_cuda_cast(const tl_call *call) {
  TL_TRY(tl_cast_check(call));
  const tl_elements_args a = {.a = tl_array_of(&call->in[0]),
                              .out = tl_array_of(&call->out[0]),
                              .count = tl_view_count(&call->in[0])};
  return launch(call, "cast_elements", &a);
}

tl_status tl_cuda_fill(const tl_call *call) {
  const int64_t count = tl_view_count(&call->out[0]);
  TL_TRY(tl_fill_check(call));
  const tl_elements_args a = {
      .out = tl_array_of(&call->out[0]), .count = count, .number = call->floats[0]};
  return launch(call, "fill_elements", &a);
}

tl_status tl_cuda_dropout(const tl_call *call) {
  const tl_view *x = &call->in[0];
  const int64_t *ints = call->ints;
  const float rate = call->floats[0];
  TL_TRY(tl_dropout_check(call));
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
  return tl_overlap_threads(call->cuda, "dropout_elements", d.rows * tl_pieces(d.width), &d);
}
