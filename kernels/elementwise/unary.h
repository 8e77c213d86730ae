/* unary.h - one number in, one number out: values and gradients, shared by C and CUDA.
**
** Every sign is one f32 operation, in the order of the brackets; sig, tanh, exp2 and log2 are
** math.h's. h is the costly part, which value and gradient have in common.
**
**   kind       h                y                      dx
**   0 sigmoid  sig(x)           h                      dy * (h * (1 - h))
**   1 silu     sig(x)           x * h                  dy * (h * (1 + x * (1 - h)))
**   2 gelu     tanh(a)          (0.5 x) * (1 + h)      dy * (0.5 * (1 + h) + (0.5 x) * u)
**   3 relu                      x if x > 0, else +0    dy if x > 0, else +0
**   4 tanh     tanh(x)          h                      dy * (1 - h * h)
**   5 square                    x * x                  dy * (x + x)
**   6 exp      exp2(x * L)      h                      dy * h
**   7 log      log2(x)          h * f32(ln 2)          dy / x
**   8 neg                       -x                     -dy
**   9 sign                      1, -1, else x          +0
**
** L = f32(log2 e). gelu is the tanh form: a = A * (x + B * ((x * x) * x)), A = f32(sqrt(2/pi)),
** B = f32(0.044715), u = (1 - h * h) * (A * (1 + C * (x * x))), C = f32(0.134145).
** relu(NaN) and sign(NaN) are NaN; sign of a zero is that zero.
*/
#ifndef TL_UNARY_H
#define TL_UNARY_H

#include "../math.h"

TL_MATH float tl_unary_sigmoid_argument(float x) { return x; }
TL_MATH float tl_unary_sigmoid_value(float x, float h) {
  (void)x;
  return h;
}
TL_MATH float tl_unary_sigmoid_slope(float dy, float x, float h) {
  (void)x;
  return dy * (h * (1.0f - h));
}

TL_MATH float tl_unary_silu_argument(float x) { return x; }
TL_MATH float tl_unary_silu_value(float x, float h) { return x * h; }
TL_MATH float tl_unary_silu_slope(float dy, float x, float h) {
  return dy * (h * (1.0f + x * (1.0f - h)));
}

TL_MATH float tl_unary_gelu_argument(float x) {
  return 0.797884561f * (x + 0.044715f * ((x * x) * x));
}
TL_MATH float tl_unary_gelu_value(float x, float h) { return (0.5f * x) * (1.0f + h); }
TL_MATH float tl_unary_gelu_slope(float dy, float x, float h) {
  const float u = (1.0f - h * h) * (0.797884561f * (1.0f + 0.134145f * (x * x)));
  return dy * (0.5f * (1.0f + h) + (0.5f * x) * u);
}

TL_MATH float tl_unary_relu_argument(float x) { return x; }
TL_MATH float tl_unary_relu_value(float x, float h) {
  (void)h;
  return x <= 0.0f ? 0.0f : x;
}
TL_MATH float tl_unary_relu_slope(float dy, float x, float h) {
  (void)h;
  return x > 0.0f ? dy : 0.0f;
}

TL_MATH float tl_unary_tanh_argument(float x) { return x; }
TL_MATH float tl_unary_tanh_value(float x, float h) {
  (void)x;
  return h;
}
TL_MATH float tl_unary_tanh_slope(float dy, float x, float h) {
  (void)x;
  return dy * (1.0f - h * h);
}

TL_MATH float tl_unary_square_argument(float x) { return x; }
TL_MATH float tl_unary_square_value(float x, float h) {
  (void)h;
  return x * x;
}
TL_MATH float tl_unary_square_slope(float dy, float x, float h) {
  (void)h;
  return dy * (x + x);
}

TL_MATH float tl_unary_exp_argument(float x) { return x * TL_LOG2E; }
TL_MATH float tl_unary_exp_value(float x, float h) {
  (void)x;
  return h;
}
TL_MATH float tl_unary_exp_slope(float dy, float x, float h) {
  (void)x;
  return dy * h;
}

TL_MATH float tl_unary_log_argument(float x) { return x; }
TL_MATH float tl_unary_log_value(float x, float h) {
  (void)x;
  return h * TL_LN2;
}
TL_MATH float tl_unary_log_slope(float dy, float x, float h) {
  (void)h;
  return dy / x;
}

TL_MATH float tl_unary_neg_argument(float x) { return x; }
TL_MATH float tl_unary_neg_value(float x, float h) {
  (void)h;
  return -x;
}
TL_MATH float tl_unary_neg_slope(float dy, float x, float h) {
  (void)x;
  (void)h;
  return -dy;
}

TL_MATH float tl_unary_sign_argument(float x) { return x; }
TL_MATH float tl_unary_sign_value(float x, float h) {
  (void)h;
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}
TL_MATH float tl_unary_sign_slope(float dy, float x, float h) {
  (void)dy;
  (void)x;
  (void)h;
  return 0.0f;
}

#endif
