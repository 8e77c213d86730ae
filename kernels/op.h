/* op.h - what every operator is called with, and the table of operators.
**
** An operator is one row of ops.def. The planner writes instructions that name it; the executor
** resolves their operands to views and calls the kernel of the device. A host kernel is
**
**     tl_status tl_host_<op>(const tl_call *call);
**
** and the launcher of a GPU kernel tl_cuda_<op>, which has the same argument: views then point to
** device memory, and the kernel is queued on the stream of call->cuda.
**
** Operands come in the order of the row: in[0], in[1], ...; out[0], ...; numbers by position in the
** row's lists of names. A kernel writes every element of every output, allocates nothing, and
** depends on no global state. Shapes are checked when a program is verified and again by the
** kernel where a wrong one would write outside its outputs.
*/
#ifndef TL_OP_H
#define TL_OP_H

#include "../runtime/team.h"
#include "../runtime/view.h"

/* What changes from step to step; the same for all instructions of a step. */
typedef struct tl_step {
  int64_t step;         /* from 0 */
  uint64_t seed;        /* policy.seed */
  int64_t sample_base;  /* index in the global batch of this rank's first sample */
  const float *scalars; /* numbers planned for this step: learning rate, bias corrections */
  int32_t scalar_count;
} tl_step;

typedef struct tl_call {
  const tl_view *in;
  const tl_view *out;
  int32_t in_count, out_count;
  const int64_t *ints; /* in the order of the row's names; a name that ends in ... takes the rest */
  int32_t int_count;
  const float *floats;
  int32_t float_count;
  const tl_step *step;  /* on a GPU: its copy in device memory, a tl_device_step */
  tl_team *team;        /* NULL on a GPU */
  struct tl_cuda *cuda; /* the GPU of the rank; NULL on the host */
  /* On a GPU: bit i is set where nothing that was queued in this section writes input i, so that a
  ** kernel may read it before earlier kernels have ended. */
  uint64_t ahead;
} tl_call;

/* tl_step as kernels on a GPU read it; written before each step, so that a captured step can be
** replayed. */
enum { TL_DEVICE_SCALARS_MAX = 256 };
typedef struct tl_device_step {
  int64_t step;
  uint64_t seed;
  int64_t sample_base;
  float scalars[TL_DEVICE_SCALARS_MAX];
} tl_device_step;

typedef tl_status (*tl_kernel)(const tl_call *call);

typedef enum tl_op {
#define OP(name, inputs, outputs, ints, floats, gradient, traits) TL_OP_##name,
#include "ops.def"
#undef OP
  TL_OP_COUNT
} tl_op;

/* Traits of a row. */
enum {
  TL_TRAIT_ROWWISE = 1, /* an output row depends on its own input rows only */
  TL_TRAIT_TREE = 2,    /* sums over rows, in the order that the policy's leaves fix */
  TL_TRAIT_WHOLE = 4,   /* works on whole tensors once a step or once a run */
  TL_TRAIT_COMM = 8,    /* moves bytes between ranks: run by the executor, no kernel */
  TL_TRAIT_DATA = 16,   /* reads the data source: run by the executor, no kernel */
  TL_TRAIT_ROUTED = 32  /* how many rows an output has is data; rows past the last hold anything */
};

typedef struct tl_op_row {
  const char *name, *inputs, *outputs, *ints, *floats, *gradient;
  int32_t traits;
  tl_kernel cuda; /* the launcher; NULL where this build has none */
  tl_kernel host; /* NULL for TL_TRAIT_COMM and TL_TRAIT_DATA */
} tl_op_row;

extern const tl_op_row tl_ops[TL_OP_COUNT];

#endif
