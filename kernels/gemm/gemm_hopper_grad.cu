/* gemm_hopper_grad.cu - linear_grad_input and linear_grad_weight on sm_90a: gemm_hopper.cuh. */
#include "gemm_hopper.cuh"

KERNEL(linear_grad_input_hopper_256, GRAD_INPUT, 1, 256, 2, 3, 0, 32768)
KERNEL(linear_grad_input_hopper_256_2, GRAD_INPUT, 2, 256, 2, 3, 48, 40960)
KERNEL(linear_grad_input_hopper_128, GRAD_INPUT, 1, 128, 2, 5, 0, 16384)
KERNEL(linear_grad_input_hopper_128_4, GRAD_INPUT, 4, 128, 2, 5, 128, 16384)
KERNEL(linear_grad_input_hopper_128_8, GRAD_INPUT, 8, 128, 2, 5, 128, 32768)
KERNEL(linear_grad_weight_hopper_256, GRAD_WEIGHT, 1, 256, 2, 3, 0, 32768)
KERNEL(linear_grad_weight_hopper_128, GRAD_WEIGHT, 1, 128, 2, 5, 0, 16384)
