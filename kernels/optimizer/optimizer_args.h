/* optimizer_args.h - arguments of the optimizer kernels. */
#ifndef TL_OPTIMIZER_ARGS_H
#define TL_OPTIMIZER_ARGS_H

#include "../device_args.h"

typedef struct tl_adamw_args {
  tl_array grad, weight, m, v, master; /* master may be absent */
  const float *control;
  const struct tl_device_step *step;
  int64_t count, scalar_first;
  float beta1, beta2, eps, decay, lr_scale;
} tl_adamw_args;

typedef struct tl_set_state_args {
  tl_array value, state;
  const float *control;
  int64_t count;
} tl_set_state_args;

typedef struct tl_init_args {
  tl_array y;
  const struct tl_device_step *step;
  uint64_t name_hash;
  int64_t kind, rows, columns, row_first, col_first, cols_full;
  float first, second;
} tl_init_args;

#endif
