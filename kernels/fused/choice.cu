/* choice.cu - the end of a step that decodes: a token is chosen, and its loss is worked out
** (sample, row_max, row_sum_exp, cross_entropy) while a row of logits is in the first-level cache.
**
**   row of f32    | leaf 0       | leaf 1       | leaf 2       | leaf 3       |
**                 256 threads each, pieces of 8, 2048 apart, as the row rule says
**
** A block of threads has a row. Only ids and losses are written. Of many rows those whose token is
** drawn leave the sum and the largest logit there for a second kernel, which draws (fused_draws).
*/
#include "../sampling/sampling.cuh"
#include "fused_args.h"

enum { LEAVES = TL_CHOICE_LEAVES, LEAF_THREADS = THREADS / LEAVES, SPAN = TL_DEVICE_PARTIALS };
static_assert(LEAF_THREADS == TL_DEVICE_THREADS, "threads of a leaf");
static_assert(WARPS == WARP, "a lane has what a warp found");

struct Choice {
  float most[WARPS];
  float tree[LEAVES * TL_P];
  float leaf[LEAVES];
  int32_t place[WARPS];
};

// The part of a thread in its row: true columns from `at` on, in pieces SPAN apart, before `end`.
struct Part {
  const float *z;
  int at, end;
};

TL_GPU Part part_of(const tl_sample_args &g, int32_t row) {
  const int length = g.width / LEAVES, first = threadIdx.x / LEAF_THREADS * length;
  return {g.z + (int64_t)row * g.width, first + (int)(threadIdx.x % LEAF_THREADS) * TL_P,
          g.columns < first + length ? g.columns : first + length};
}

// Calls use(z, column, i) for element i of each of the thread's pieces; `loads` of them are under
// way at once.
template <int loads, class Use>
TL_GPU void each(const Part &p, Use use) {
#pragma unroll 1
  for (int first = p.at; first < p.end; first += loads * SPAN) {
    float4 low[loads], high[loads];
#pragma unroll
    for (int j = 0; j < loads; j++) {
      const float4 *from = (const float4 *)(p.z + first + j * SPAN);
      if (first + j * SPAN < p.end) low[j] = from[0], high[j] = from[1];
    }
#pragma unroll
    for (int j = 0; j < loads; j++) {
      const float z[TL_P] = {low[j].x,  low[j].y,  low[j].z,  low[j].w,
                             high[j].x, high[j].y, high[j].z, high[j].w};
      const int at = first + j * SPAN;
#pragma unroll
      for (int i = 0; i < TL_P; i++)
        if (at + i < p.end) use(z[i], at + i, i);
    }
  }
}

TL_GPU float largest_of_warp(float m) {
  for (int step = WARP / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, m, step);
    m = other > m ? other : m;
  }
  return m;
}

// The largest of the row, as row_max finds it, for all threads. `bad`: one is a NaN or +infinity.
template <int loads>
TL_GPU float find_largest(const Part &part, int &bad, Choice &s) {
  float m = tl_math_float(0xff800000u);
  each<loads>(part, [&](float z, int, int) {
    m = z > m ? z : m;
    bad |= !(z < tl_math_float(0x7f800000u));
  });
  m = largest_of_warp(m);
  if (threadIdx.x % WARP == 0) s.most[threadIdx.x / WARP] = m;
  bad = __syncthreads_or(bad);
  return largest_of_warp(s.most[threadIdx.x % WARP]) + 0.0f;
}

// The sum of exp(z - m) over the row, as row_sum_exp says, and the first column whose z is m.
TL_GPU float sum_exponentials(const Part &part, float m, int32_t &first, Choice &s) {
  const float t = m * TL_LOG2E;
  float p[TL_P];
  int own = INT32_MAX;
  tl_clear(p);
  each<1>(part, [&](float z, int column, int i) {
    p[i] = p[i] + tl_exp2(fmaf(z, TL_LOG2E, -t));
    own = z == m && column < own ? column : own;
  });
  own = __reduce_min_sync(0xffffffffu, own);
  if (threadIdx.x % WARP == 0) s.place[threadIdx.x / WARP] = own;
  const float sum = tl_row_total(p, LEAF_THREADS, s.tree);
  if (threadIdx.x % LEAF_THREADS == 0) s.leaf[threadIdx.x / LEAF_THREADS] = sum;
  __syncthreads();
  first = __reduce_min_sync(0xffffffffu, s.place[threadIdx.x % WARP]);
  return (s.leaf[0] + s.leaf[1]) + (s.leaf[2] + s.leaf[3]);
}

TL_GPU float loss_of(const tl_choice_args &k, int32_t row, int32_t id, float m, float sum) {
  float zt = 0.0f;
  if (id < 0) return 0.0f;
  if (id < k.sample.columns) zt = k.sample.z[(int64_t)row * k.sample.width + id] + 0.0f;
  return tl_log(sum) - (zt - m);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    fused_choice(const __grid_constant__ tl_choice_args k) {
  tl_after_earlier();
  __shared__ Choice s;
  const int32_t row = blockIdx.x;
  const Part part = part_of(k.sample, row);
  int bad = 0, first;
  const float m = find_largest<2>(part, bad, s), sum = sum_exponentials(part, m, first, s);
  if (threadIdx.x != 0) return;
  if (needs_scratch(k.sample, row)) {  // the next kernel chooses
    k.sample.ids[row] = (int32_t)tl_math_bits(sum);
    k.nll[row] = m;
    return;
  }
  int32_t id = k.sample.next[row];
  if (id == -1) id = bad || m == tl_math_float(0xff800000u) ? -1 : first;
  id = id >= 0 ? id : -1;
  k.sample.ids[row] = id;
  k.nll[row] = loss_of(k, row, id, m, sum);
}

// The same where every row has scratch and a multiprocessor: one kernel, which also draws, and has
// registers for more reads under way.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused_choice_of_few(const __grid_constant__ tl_choice_args k) {
  tl_after_earlier();
  __shared__ Choice s;
  __shared__ Shared draw;
  const tl_sample_args &g = k.sample;
  const int32_t row = blockIdx.x, next = g.next[row];
  const float temperature = g.controls[2 * row];
  const Part part = part_of(g, row);
  int bad = 0, first;
  const float m = find_largest<4>(part, bad, s), sum = sum_exponentials(part, m, first, s);
  int32_t id = next;
  if (next == -1 && temperature != 0.0f) {
    Row r = scratch_of(g, row);
    id = choose_row(g, r, row, draw);
  } else if (next == -1) {
    id = bad || m == tl_math_float(0xff800000u) ? -1 : first;
  }
  if (threadIdx.x != 0) return;
  id = id >= 0 ? id : -1;
  g.ids[row] = id;
  k.nll[row] = loss_of(k, row, id, m, sum);
}

// The rows whose token is drawn, as in sample_rows; registers are short.
extern "C" __global__ void __launch_bounds__(THREADS)
    fused_draws(const __grid_constant__ tl_choice_args k) {
  tl_after_earlier();
  __shared__ Shared s;
  __shared__ Row r;
  const tl_sample_args &g = k.sample;
  if (threadIdx.x == 0) r = scratch_of(g, blockIdx.x);
  __syncthreads();
  for (int32_t row = blockIdx.x; row < g.rows; row += g.places) {
    if (!needs_scratch(g, row)) continue;
    const int32_t id = choose_row(g, r, row, s);
    if (threadIdx.x == 0) {
      const float sum = tl_math_float((uint32_t)g.ids[row]);
      k.nll[row] = loss_of(k, row, id, k.nll[row], sum);
      g.ids[row] = id;
    }
    __syncthreads();  // shared memory may be written again
  }
}
