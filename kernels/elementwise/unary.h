/* unary.h - one number in, one number out: values and gradients, shared by C and CUDA.
**
** Every sign is one f32 operation, in the order of the brackets; sig, tanh, exp, log are math.h's.
**
**   kind       y                                  dx
**   0 sigmoid  s = sig(x)                         dy * (s * (1 - s))
**   1 silu     x * s                              dy * (s * (1 + x * (1 - s)))
**   2 gelu     (0.5 x) * (1 + t)                  dy * (0.5 * (1 + t) + (0.5 x) * u)
**   3 relu     x if x > 0, else +0                dy if x > 0, else +0
**   4 tanh     t = tanh(x)                        dy * (1 - t * t)
**   5 square   x * x                              dy * (x + x)
**   6 exp      exp(x)                             dy * exp(x)
**   7 log      log(x)                             dy / x
**   8 neg      -x                                 -dy
**
** gelu is the tanh form: t = tanh(A * (x + B * ((x * x) * x))), A = f32(sqrt(2/pi)) and B =
** f32(0.044715); u = (1 - t * t) * (A * (1 + C * (x * x))), C = f32(0.134145). relu(NaN) is NaN.
*/
#ifndef TL_UNARY_H
#define TL_UNARY_H

#include "../math.h"

TL_MATH float tl_unary_sigmoid(float x) {
  return tl_sigmoid(x);
}
TL_MATH float tl_unary_sigmoid_grad(float dy, float x) {
  const float s = tl_sigmoid(x);
  return dy * (s * (1.0f - s));
}

TL_MATH float tl_unary_silu(float x) {
  return x * tl_sigmoid(x);
}
TL_MATH float tl_unary_silu_grad(float dy, float x) {
  const float s = tl_sigmoid(x);
  return dy * (s * (1.0f + x * (1.0f - s)));
}

TL_MATH float tl_gelu_tanh(float x) {
  return tl_tanh(0.797884561f * (x + 0.044715f * ((x * x) * x)));
}
TL_MATH float tl_unary_gelu(float x) {
  return (0.5f * x) * (1.0f + tl_gelu_tanh(x));
}
TL_MATH float tl_unary_gelu_grad(float dy, float x) {
  const float t = tl_gelu_tanh(x);
  const float u = (1.0f - t * t) * (0.797884561f * (1.0f + 0.134145f * (x * x)));
  return dy * (0.5f * (1.0f + t) + (0.5f * x) * u);
}

TL_MATH float tl_unary_relu(float x) {
  return x <= 0.0f ? 0.0f : x;
}
TL_MATH float tl_unary_relu_grad(float dy, float x) {
  return x > 0.0f ? dy : 0.0f;
}

TL_MATH float tl_unary_tanh(float x) {
  return tl_tanh(x);
}
TL_MATH float tl_unary_tanh_grad(float dy, float x) {
  const float t = tl_tanh(x);
  return dy * (1.0f - t * t);
}

TL_MATH float tl_unary_square(float x) {
  return x * x;
}
TL_MATH float tl_unary_square_grad(float dy, float x) {
  return dy * (x + x);
}

TL_MATH float tl_unary_exp(float x) {
  return tl_exp(x);
}
TL_MATH float tl_unary_exp_grad(float dy, float x) {
  return dy * tl_exp(x);
}

TL_MATH float tl_unary_log(float x) {
  return tl_log(x);
}
TL_MATH float tl_unary_log_grad(float dy, float x) {
  return dy / x;
}

TL_MATH float tl_unary_neg(float x) {
  return -x;
}
TL_MATH float tl_unary_neg_grad(float dy, float x) {
  (void)x;
  return -dy;
}

#endif
