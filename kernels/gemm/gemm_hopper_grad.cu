/* gemm_hopper_grad.cu - linear_grad_input and linear_grad_weight on sm_90a: gemm_hopper.def. */
#include "gemm_hopper.cuh"

#define KERNEL_0(...)
#define KERNEL_1(name, ...) KERNEL(name, __VA_ARGS__)
#define LARGE(leaves, columns, slots, kept, room, cost, dx, dw)                              \
  KERNEL_##dx(linear_grad_input_hopper_##columns##_##leaves, GRAD_INPUT, leaves, columns, 2, \
              slots, kept, room) KERNEL_##dw(linear_grad_weight_hopper_##columns##_##leaves, \
                                             GRAD_WEIGHT, leaves, columns, 2, slots, kept, room)
#define FEW(...)
#define SPLIT(...)
#include "gemm_hopper.def"
