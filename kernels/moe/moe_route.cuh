/* moe_route.cuh - what kernels of routers share: a warp for each row of logits.
**
** Lane l holds the experts each * l .. each * l + each - 1, where each * 32 is the power of two
** from E up (at least 32): the tree of neighbours of the row rule is then a tree in the lane's
** registers, and on top of it one over neighbouring lanes.
*/
#ifndef TL_MOE_ROUTE_CUH
#define TL_MOE_ROUTE_CUH

#include "../device.cuh"
#include "moe_args.h"

enum { WARP = TL_DEVICE_WARP };
constexpr uint32_t ALL = 0xffffffffu;
enum Kind { SOFTMAX, SIGMOID, SQRT_SOFTPLUS };
enum Fault { FAULT_NAN, FAULT_INFINITE, FAULT_FEW, FAULT_TABLE, FAULT_NONE };

TL_GPU int lane_of(void) { return threadIdx.x % WARP; }

TL_GPU float warp_tree(float v) {
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) v = v + __shfl_xor_sync(ALL, v, step);
  return v;
}

template <int each>
TL_GPU float neighbours(const float *v) {
  float sum[each];
#pragma unroll
  for (int i = 0; i < each; i++) sum[i] = v[i];
#pragma unroll
  for (int step = 1; step < each; step *= 2)
#pragma unroll
    for (int i = 0; i < each; i += 2 * step) sum[i] = sum[i] + sum[i + step];
  return sum[0];
}

/* The row rule over what the lanes hold; missing elements are +0. */
template <int each>
TL_GPU float row_sum(const float *v) {
  return warp_tree(neighbours<each>(v));
}

/* The lane's logits; -infinity where there are no experts. */
template <int each>
TL_GPU void load_row(const float *z, int experts, bool vectors, float *v) {
  const int first = lane_of() * each;
  const float none = tl_math_float(0xff800000u);
  if (vectors && each % 4 == 0) {
#pragma unroll
    for (int i = 0; i < each; i += 4) {
      const float4 four = *(const float4 *)(z + first + i);
      v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < each; i++) v[i] = first + i < experts ? z[first + i] : none;
}

TL_GPU float sqrt_softplus(float z) {
  if (z > 20.0f) return sqrtf(z);
  const float u = tl_exp(z), w = 1.0f + u;
  return sqrtf(w == 1.0f ? u : tl_log(w) * (u / (w - 1.0f)));
}

/* Scores of the lane's experts; +0 where there are none. */
template <int each>
TL_GPU void scores_of(int kind, int experts, const float *z, float *s) {
  const int first = lane_of() * each;
  if (kind == SOFTMAX) {
    float m = z[0];
#pragma unroll
    for (int i = 1; i < each; i++) m = fmaxf(m, z[i]);
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) m = fmaxf(m, __shfl_xor_sync(ALL, m, step));
    const float t = m * TL_LOG2E;
#pragma unroll
    for (int i = 0; i < each; i++)
      s[i] = first + i < experts ? tl_exp2(fmaf(z[i], TL_LOG2E, -t)) + 0.0f : 0.0f;
    const float sum = row_sum<each>(s);
#pragma unroll
    for (int i = 0; i < each; i++) s[i] = first + i < experts ? s[i] / sum : 0.0f;
    return;
  }
#pragma unroll
  for (int i = 0; i < each; i++) {
    const float v = kind == SIGMOID ? tl_sigmoid(z[i]) : sqrt_softplus(z[i]);
    s[i] = first + i < experts ? v : 0.0f;
  }
}

/* What is wrong with a row, alike in all lanes. */
template <int each>
TL_GPU int fault_of(const tl_route_args &k, const float *z) {
  const int first = lane_of() * each;
  bool finite = true, nan = false, infinite = false;
  int usable = 0;
#pragma unroll
  for (int i = 0; i < each; i++)
    finite = finite && (first + i >= k.experts || fabsf(z[i]) < tl_math_float(0x7f800000u));
  if (__all_sync(ALL, finite)) return FAULT_NONE;
#pragma unroll
  for (int i = 0; i < each; i++) {
    const uint32_t bits = first + i < k.experts ? tl_math_bits(z[i]) : 0xff800000u;
    nan = nan || (bits & 0x7fffffffu) > 0x7f800000u;
    infinite = infinite || bits == 0x7f800000u;
    usable += bits != 0xff800000u;
  }
  if (__any_sync(ALL, nan)) return FAULT_NAN;
  if (__any_sync(ALL, infinite)) return FAULT_INFINITE;
  return __reduce_add_sync(ALL, usable) < k.slots ? FAULT_FEW : FAULT_NONE;
}

/* The first row with a fault stays, whichever warp tells it. */
TL_GPU void tell_fault(const tl_route_args &k, int64_t row, int fault) {
  if (fault != FAULT_NONE && lane_of() == 0)
    atomicMin((unsigned long long *)k.found, k.note | (unsigned long long)row << 2 | fault);
}

/* A warp for each row, striding over the grid. Dynamic shared memory: `floats` for each warp. */
template <int each, class Args, class Row>
TL_GPU void each_row(const Args &k, int floats, Row row_of) {
  extern __shared__ float shared[];
  const int warp = threadIdx.x / WARP;
  const int64_t step = (int64_t)gridDim.x * TL_MOE_WARPS;
  for (int64_t row = (int64_t)blockIdx.x * TL_MOE_WARPS + warp; row < k.rows; row += step)
    row_of(row, shared + warp * floats);
}

#endif
