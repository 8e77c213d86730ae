// gemm_hopper_few.cu - the kernels of gemm_hopper_few.cuh.
#include "gemm_hopper_few.cuh"

#define LARGE(...)
#define SPLIT(...)
#define FEW(rows, columns, levels, together, cost)                                              \
  extern "C" __global__ void __launch_bounds__(Few<rows, columns, levels>::groups * 128 + 64,   \
                                               together)                                        \
      linear_hopper_few_##rows##_##columns(const __grid_constant__ tl_gemm_hopper_few_args g) { \
    Few<rows, columns, levels>::run(g);                                                         \
  }
#include "gemm_hopper.def"
