/* ops.c - the table of operators, from ops.def. */
#include "op.h"

#define OP(name, inputs, outputs, ints, floats, gradient, traits)             \
  extern tl_status tl_host_##name(const tl_call *call) __attribute__((weak)); \
  extern tl_status tl_cuda_##name(const tl_call *call) __attribute__((weak));
#include "ops.def"
#undef OP

#define ROWWISE TL_TRAIT_ROWWISE
#define TREE TL_TRAIT_TREE
#define WHOLE TL_TRAIT_WHOLE
#define COMM TL_TRAIT_COMM
#define DATA TL_TRAIT_DATA
#define ROUTED TL_TRAIT_ROUTED

const tl_op_row tl_ops[TL_OP_COUNT] = {
#define OP(name, inputs, outputs, ints, floats, gradient, traits) \
  {#name, inputs, outputs, ints, floats, #gradient, traits, tl_cuda_##name, tl_host_##name},
#include "ops.def"
#undef OP
};
