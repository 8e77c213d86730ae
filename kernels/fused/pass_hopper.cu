// pass_hopper.cu - a pass of up to 8 rows: pass_run.cuh says how.
#include "pass_run.cuh"

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(TL_PASS_THREADS, 1)
    pass_few_64(const __grid_constant__ tl_pass_args s) {
  run(s);
}
