/* moe_route.cu - the router on a GPU: choices, their gradient, and what balances loads.
**
** The best expert that is left: a choice becomes a whole number in the same order, the largest of
** the lanes is one instruction, and the lowest lane that has it has the lowest index. 0: taken.
*/
#include "moe_route.cuh"

/* --- route ------------------------------------------------------------------------------------ */

/* In the order of the numbers, zeros alike; never 0. */
TL_GPU uint32_t rank_of(float choice) {
  const uint32_t bits = tl_math_bits(choice + 0.0f);
  const uint32_t key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return key == 0 ? 1 : key;
}

/* Takes away the experts of groups that do not stay. `choice`: memory of the warp, (experts). */
template <int each>
TL_GPU void drop_groups(const tl_route_args &k, float *choice, uint32_t *key) {
  const int size = k.experts / k.groups, first = lane_of() * each;
  float *score = choice + k.experts; /* (groups) */
  for (int g = lane_of(); g < k.groups; g += WARP) {
    const float *c = choice + g * size;
    float best = c[0], second = tl_math_float(0xff800000u);
    for (int j = 1; j < size; j++) {
      if (c[j] > best) {
        second = best, best = c[j];
      } else if (c[j] > second) {
        second = c[j];
      }
    }
    score[g] = k.kind == SOFTMAX || size == 1 ? best : best + second;
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < each; i++) {
    if (first + i >= k.experts) continue;
    const int own = (first + i) / size;
    int better = 0;
    for (int g = 0; g < k.groups; g++)
      better += score[g] > score[own] || (score[g] == score[own] && g < own);
    if (better >= k.top_groups) key[i] = 0;
  }
}

/* The slots of a row, the lane's choices as keys. Slot i is kept by lane i % 32. */
template <int each>
TL_GPU void choose(const tl_route_args &k, int64_t row, const float *s, uint32_t *key) {
  const int lane = lane_of();
  float total = 0.0f, score[2] = {0.0f, 0.0f};
  int expert[2] = {0, 0};
  for (int slot = 0; slot < k.slots; slot++) {
    uint32_t best = key[0];
#pragma unroll
    for (int i = 1; i < each; i++) best = max(best, key[i]);
    const uint32_t most = __reduce_max_sync(ALL, best);
    const int winner = __ffs(__ballot_sync(ALL, best == most)) - 1;
    int index = 0;
#pragma unroll
    for (int i = each - 1; i > 0; i--)
      if (key[i] == most) index = i;
    if (key[0] == most) index = 0;
    float best_score = tl_math_float(most ^ 0x80000000u); /* a choice without bias, never below 0 */
    if (k.bias != nullptr) {
      best_score = s[0];
#pragma unroll
      for (int i = 1; i < each; i++)
        if (i == index) best_score = s[i];
      best_score = __shfl_sync(ALL, best_score, winner);
    }
    const int chosen = winner * each + __shfl_sync(ALL, index, winner);
#pragma unroll
    for (int i = 0; i < each; i++)
      if (lane == winner && i == index) key[i] = 0;
    total = total + best_score;
    if (lane == slot % WARP) {
      if (slot < WARP)
        score[0] = best_score, expert[0] = chosen;
      else
        score[1] = best_score, expert[1] = chosen;
    }
  }
  if (k.kind != SOFTMAX) total = total + 1e-20f;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int slot = lane + i * WARP;
    if (slot >= k.slots) continue;
    k.weight[row * k.slots + slot] = (k.normalize ? score[i] / total : score[i]) * k.scale;
    k.expert[row * k.slots + slot] = expert[i];
  }
}

template <int each>
TL_GPU void route_row(const tl_route_args &k, int64_t row, float *memory) {
  const int first = lane_of() * each;
  float z[each], s[each];
  uint32_t key[each];
  load_row<each>(k.z + row * k.experts, k.experts, k.vectors, z);
  tell_fault(k, row, fault_of<each>(k, z));
  scores_of<each>(k.kind, k.experts, z, s);
#pragma unroll
  for (int i = 0; i < each; i++) {
    const bool own = first + i < k.experts;
    const float choice = k.bias != nullptr && own ? s[i] + k.bias[first + i] : s[i];
    key[i] = own ? rank_of(choice) : 0;
    if (k.groups > 1 && own) memory[first + i] = choice;
  }
  if (k.groups > 1) {
    __syncwarp();
    drop_groups<each>(k, memory, key);
    __syncwarp(); /* the warp's next row may write its memory */
  }
  choose<each>(k, row, s, key);
}

template <int each>
TL_GPU void route(const tl_route_args &k) {
  each_row<each>(k, 2 * k.experts,
                 [&](int64_t row, float *memory) { route_row<each>(k, row, memory); });
}

/* --- route_grad ------------------------------------------------------------------------------- */

TL_GPU float slot_slope(const tl_route_grad_args &k, float d, float g, float total, float score,
                        float z) {
  if (k.kind == SOFTMAX) return (k.scale * (score / total)) * (d - g);
  const float ds = k.normalize ? (k.scale * (d - g)) / total : k.scale * d;
  if (k.kind == SIGMOID) return ds * (score * (1.0f - score));
  return score == 0.0f ? 0.0f : ds * (tl_sigmoid(z) / (score + score));
}

/* memory: scores and slopes of the row, 2 (experts). */
template <int each>
TL_GPU void slope_row(const tl_route_grad_args &k, int64_t row, float *memory) {
  const int lane = lane_of(), first = lane * each;
  const float *logits = k.z + row * k.experts;
  float z[each], s[each], *slope = memory + k.experts;
  load_row<each>(logits, k.experts, k.vectors, z);
  scores_of<each>(k.kind, k.experts, z, s);
#pragma unroll
  for (int i = 0; i < each; i++)
    if (first + i < k.experts) memory[first + i] = s[i], slope[first + i] = 0.0f;
  __syncwarp();
  int expert[2] = {0, 0};
  float d[2] = {0.0f, 0.0f}, total = 0.0f, g = 0.0f;
#pragma unroll
  for (int i = 0; i < 2; i++)
    if (lane + i * WARP < k.slots) {
      expert[i] = k.expert[row * k.slots + lane + i * WARP];
      d[i] = k.dweight[k.place[row * k.slots + lane + i * WARP]];
    }
  for (int i = 0; i < k.slots; i++)
    total = total + memory[__shfl_sync(ALL, i < WARP ? expert[0] : expert[1], i % WARP)];
  if (k.kind != SOFTMAX) total = total + 1e-20f;
  for (int i = 0; i < k.slots; i++) {
    const float score = memory[__shfl_sync(ALL, i < WARP ? expert[0] : expert[1], i % WARP)];
    const float q = k.normalize ? score / total : score;
    g = fmaf(q, __shfl_sync(ALL, i < WARP ? d[0] : d[1], i % WARP), g);
  }
  const bool whole = k.kind == SOFTMAX && !k.normalize; /* slope: then d of each expert */
  for (int i = 0; i < k.slots; i++) {
    const int e = __shfl_sync(ALL, i < WARP ? expert[0] : expert[1], i % WARP);
    const float own = __shfl_sync(ALL, i < WARP ? d[0] : d[1], i % WARP);
    if (lane == e % WARP)
      slope[e] = slope[e] + (whole ? own
                                   : slot_slope(k, own, g, total, memory[e],
                                                k.kind == SQRT_SOFTPLUS ? logits[e] : 0.0f));
  }
  __syncwarp();
  float dz[each], t[each], product[each];
  const float *load = k.load + (k.load == nullptr ? 0 : row / k.tokens * k.experts);
#pragma unroll
  for (int i = 0; i < each; i++) {
    const bool own = first + i < k.experts;
    dz[i] = own ? slope[first + i] : 0.0f;
    if (whole) dz[i] = (k.scale * s[i]) * (dz[i] - g);
    t[i] = k.load != nullptr && own ? k.balance * load[first + i] : 0.0f;
    product[i] = own ? t[i] * s[i] + 0.0f : 0.0f;
  }
  if (k.load != nullptr) {
    const float r = row_sum<each>(product);
#pragma unroll
    for (int i = 0; i < each; i++) dz[i] = dz[i] + s[i] * (t[i] - r);
  }
#pragma unroll
  for (int i = 0; i < each; i++)
    if (first + i < k.experts) tl_store_one(k.dz, row * k.experts + first + i, dz[i]);
  __syncwarp();
}

template <int each>
TL_GPU void route_grad(const tl_route_grad_args &k) {
  each_row<each>(k, 2 * k.experts,
                 [&](int64_t row, float *memory) { slope_row<each>(k, row, memory); });
}

/* --- route_sums ------------------------------------------------------------------------------- */

template <int each>
TL_GPU void put_scores(const tl_route_sums_args &k, int64_t token, float *to) {
  const int first = lane_of() * each;
  float z[each], s[each];
  load_row<each>(k.z + token * k.experts, k.experts, k.vectors, z);
  scores_of<each>(SOFTMAX, k.experts, z, s);
#pragma unroll
  for (int i = 0; i < each; i++)
    if (first + i < k.experts) to[first + i] = s[i];
}

/* A block for each block of 64 tokens of a run; 8 tokens at a time are scored, then added in their
** order by a thread for each expert. Shared memory: 8 rows of scores, then the counts. */
template <int each>
TL_GPU void sum_block(const tl_route_sums_args &k) {
  extern __shared__ float shared[];
  int32_t *count = (int32_t *)(shared + TL_MOE_WARPS * k.experts);
  const int64_t block = blockIdx.x % k.blocks, rest = blockIdx.x / k.blocks;
  const int64_t run = rest % k.runs, sample = rest / k.runs;
  const int64_t begin = run * k.tokens / k.runs + block * TL_MOE_SUM_TOKENS;
  const int64_t border = (run + 1) * k.tokens / k.runs;
  const int64_t last = begin + TL_MOE_SUM_TOKENS < border ? begin + TL_MOE_SUM_TOKENS : border;
  const int warp = threadIdx.x / WARP;
  enum { OWN = TL_MOE_MOST_EXPERTS / TL_DEVICE_THREADS };
  float sum[OWN];
#pragma unroll
  for (int i = 0; i < OWN; i++) sum[i] = 0.0f;
  for (int j = threadIdx.x; j < k.experts; j += TL_DEVICE_THREADS) count[j] = 0;
  for (int64_t first = begin; first < last; first += TL_MOE_WARPS) {
    const int64_t token = first + warp;
    __syncthreads();
    if (token < last) put_scores<each>(k, sample * k.tokens + token, shared + warp * k.experts);
    __syncthreads();
    for (int t = 0; t < TL_MOE_WARPS && first + t < last; t++)
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        const int j = threadIdx.x + i * TL_DEVICE_THREADS;
        if (j < k.experts) sum[i] = sum[i] + shared[t * k.experts + j];
      }
  }
  __syncthreads();
  const int32_t *chosen = k.expert + (sample * k.tokens + begin) * k.slots;
  for (int64_t i = threadIdx.x; i < (last - begin) * k.slots; i += TL_DEVICE_THREADS)
    atomicAdd(&count[chosen[i]], 1);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < OWN; i++) {
    const int j = threadIdx.x + i * TL_DEVICE_THREADS;
    if (j >= k.experts) continue;
    k.sums[(int64_t)blockIdx.x * k.experts + j] = sum[i];
    k.counts[(int64_t)blockIdx.x * k.experts + j] = count[j];
  }
}

/* A thread for each expert of a sample: block sums of a run ascending, runs in a tree. */
TL_KERNEL route_sums_runs(const __grid_constant__ tl_route_sums_args k) {
  const int64_t i = tl_thread();
  if (i >= k.samples * k.experts) return;
  const int64_t sample = i / k.experts, j = i - sample * k.experts;
  tl_counter<7> tree;
  float share = 0.0f;
  int32_t load = 0;
  for (int64_t run = 0; run < k.runs; run++) {
    const int64_t length = (run + 1) * k.tokens / k.runs - run * k.tokens / k.runs;
    const int64_t at = (sample * k.runs + run) * k.blocks;
    float sum = 0.0f;
    for (int64_t b = 0; b * TL_MOE_SUM_TOKENS < length; b++) {
      sum = sum + k.sums[(at + b) * k.experts + j];
      load += k.counts[(at + b) * k.experts + j];
    }
    share = tree.push(run, sum);
  }
  k.share[i] = share;
  k.load[i] = (float)load;
}

/* --- balance_loss ----------------------------------------------------------------------------- */

template <int each>
TL_GPU void balance_row(const tl_balance_args &k, int64_t sample) {
  const int first = lane_of() * each;
  float product[each];
#pragma unroll
  for (int i = 0; i < each; i++) {
    product[i] = 0.0f;
    if (first + i >= k.experts) continue;
    const int64_t at = sample * k.experts + first + i;
    product[i] = (k.load[at] / k.length) * (k.share[at] / k.length) + 0.0f;
  }
  const float sum = row_sum<each>(product);
  if (lane_of() == 0) k.loss[sample] = (float)k.experts * sum;
}

template <int each>
TL_GPU void balance(const tl_balance_args &k) {
  const int64_t sample = (int64_t)blockIdx.x * TL_MOE_WARPS + threadIdx.x / WARP;
  if (sample < k.samples) balance_row<each>(k, sample);
}

/* --- kernels: for each number of experts of a lane -------------------------------------------- */

/* `blocks`: on a multiprocessor. */
#define KERNELS(each, blocks)                                                        \
  extern "C" __global__ void __launch_bounds__(TL_DEVICE_THREADS, blocks)            \
      route_rows_##each(const __grid_constant__ tl_route_args k) {                   \
    route<each>(k);                                                                  \
  }                                                                                  \
  extern "C" __global__ void __launch_bounds__(TL_DEVICE_THREADS, (blocks) / 2 + 1)  \
      route_grad_rows_##each(const __grid_constant__ tl_route_grad_args k) {         \
    route_grad<each>(k);                                                             \
  }                                                                                  \
  TL_KERNEL route_sums_blocks_##each(const __grid_constant__ tl_route_sums_args k) { \
    sum_block<each>(k);                                                              \
  }                                                                                  \
  TL_KERNEL balance_rows_##each(const __grid_constant__ tl_balance_args k) { balance<each>(k); }
KERNELS(1, 5)
KERNELS(2, 5)
KERNELS(4, 5)
KERNELS(8, 4)
KERNELS(16, 2)
KERNELS(32, 1)
