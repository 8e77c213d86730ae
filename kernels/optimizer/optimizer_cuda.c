/* optimizer_cuda.c - queues the kernels of adamw, set_state and init. */
#include "optimizer.h"

#include "../launch_cuda.h"
#include "optimizer_args.h"

tl_status tl_cuda_adamw(const tl_call *call) {
  const tl_view *grad = &call->in[0], *control = &call->in[1];
  const int64_t count = tl_view_count(grad), scalar = call->ints[0];
  const int32_t masters = call->out_count > 3 && call->out[3].data != NULL;
  TL_TRY(tl_adamw_check(call, TL_DEVICE_SCALARS_MAX));
  const tl_adamw_args k = {.grad = tl_array_of(grad),
                           .weight = tl_array_of(&call->out[0]),
                           .m = tl_array_of(&call->out[1]),
                           .v = tl_array_of(&call->out[2]),
                           .master = masters ? tl_array_of(&call->out[3]) : (tl_array){0},
                           .control = control->data,
                           .step = (const tl_device_step *)(const void *)call->step,
                           .count = count,
                           .scalar_first = scalar,
                           .beta1 = call->floats[0],
                           .beta2 = call->floats[1],
                           .eps = call->floats[2],
                           .decay = call->floats[3],
                           .lr_scale = call->floats[4]};
  return tl_launch_threads(call->cuda, "adamw_elements", tl_pieces(count), &k);
}

tl_status tl_cuda_set_state(const tl_call *call) {
  const tl_view *value = &call->in[0], *control = &call->in[1], *state = &call->out[0];
  const int64_t count = tl_view_count(value);
  TL_TRY(tl_set_state_check(call));
  const tl_set_state_args k = {.value = tl_array_of(value),
                               .state = tl_array_of(state),
                               .control = control->data,
                               .count = count};
  return tl_launch_threads(call->cuda, "set_state_elements", tl_pieces(count), &k);
}

tl_status tl_cuda_init(const tl_call *call) {
  const tl_view *y = &call->out[0];
  const int64_t *ints = call->ints, columns = tl_view_row(y);
  TL_TRY(tl_init_check(call));
  const tl_init_args k = {.y = tl_array_of(y),
                          .step = (const tl_device_step *)(const void *)call->step,
                          .name_hash = (uint64_t)ints[1],
                          .kind = ints[0],
                          .rows = y->shape[0],
                          .columns = columns,
                          .row_first = ints[2],
                          .col_first = ints[3],
                          .cols_full = ints[4],
                          .first = call->floats[0],
                          .second = call->floats[1]};
  return tl_launch_threads(call->cuda, "init_elements", k.rows * tl_pieces(columns), &k);
}
