/* gemm_hopper_grad.cu - linear_grad_input and linear_grad_weight on sm_90a: gemm_hopper.def. */
#include "gemm_hopper.cuh"

#define WEIGHT_0(...)
#define WEIGHT_1(name, ...) KERNEL(name, GRAD_WEIGHT, __VA_ARGS__)
#define LARGE(leaves, columns, slots, kept, room, cost, weight)                                \
  KERNEL(linear_grad_input_hopper_##columns##_##leaves, GRAD_INPUT, leaves, columns, 2, slots, \
         kept, room)                                                                           \
  WEIGHT_##weight(linear_grad_weight_hopper_##columns##_##leaves, leaves, columns, 2, slots,   \
                  kept, room)
#define FEW(...)
#include "gemm_hopper.def"
