/* swiglu.cuh - swiglu of elementwise.h on a piece of 8 elements of a GPU, and its gradient. */
#ifndef TL_SWIGLU_CUH
#define TL_SWIGLU_CUH

#include "../device.cuh"

/* x[i] = tl_sigmoid(x[i]), side by side: a division has a branch for numbers out of the ordinary,
** behind which the next one waits. */
template <int count>
TL_GPU void tl_sigmoids(float *x) {
  float d[count], most = 1.0f;
#pragma unroll
  for (int i = 0; i < count; i++) {
    d[i] = 1.0f + tl_exp2(-x[i] * TL_LOG2E);
    most = fmaxf(most, d[i]);
  }
#pragma unroll
  for (int i = 0; i < count; i++) x[i] = tl_reciprocal(d[i]); /* no number stays none */
  if (most > 0x1p124f)
#pragma unroll
    for (int i = 0; i < count; i++) x[i] = 1.0f / d[i];
}

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
