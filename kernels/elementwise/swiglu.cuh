/* swiglu.cuh - swiglu of elementwise.h on a piece of 8 elements of a GPU, and its gradient. */
#ifndef TL_SWIGLU_CUH
#define TL_SWIGLU_CUH

#include "../device.cuh"

/* gate = swiglu(gate, up). */
TL_GPU void tl_swiglu_piece(float *gate, const float *up) {
#pragma unroll
  for (int i = 0; i < TL_P; i++) gate[i] = (gate[i] * tl_sigmoid(gate[i])) * up[i];
}

/* gate and up become their gradients. */
TL_GPU void tl_swiglu_grad_piece(const float *dy, float *gate, float *up) {
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    const float g = gate[i], s = tl_sigmoid(g), to_up = dy[i] * (g * s);
    gate[i] = (dy[i] * up[i]) * (s * (1.0f + g * (1.0f - s)));
    up[i] = to_up;
  }
}

#endif
