/* grouped_hopper.cu - the products of grouped_hopper.cuh, all variants of grouped_hopper.def. */
#include "grouped_turns.cuh"

#define GROUPED(name, columns, blocks, slots, room, cost)                                          \
  GROUPED_KERNEL(grouped_linear_hopper_##name, LINEAR, 1, columns, blocks, slots, 0, room)         \
  GROUPED_KERNEL(grouped_grad_input_hopper_##name, GRAD_INPUT, 1, columns, blocks, slots, 0, room) \
  GROUPED_KERNEL(grouped_grad_weight_hopper_##name, GRAD_WEIGHT, 1, columns, blocks, slots, 0, room)
#define LEAVES(name, leaves, kept, columns, blocks, slots, room)                                 \
  GROUPED_KERNEL(grouped_grad_weight_hopper_##name, GRAD_WEIGHT, leaves, columns, blocks, slots, \
                 kept, room)
#define TURNS(name, columns, blocks, slots, room)                                           \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(384, 1)       \
      grouped_grad_weight_hopper_##name(const __grid_constant__ tl_grouped_hopper_args k) { \
    GroupedTurns<Shape<1, columns, blocks, slots, 0, room>>::run(k);                        \
  }
#include "grouped_hopper.def"
