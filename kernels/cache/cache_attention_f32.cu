// cache_attention_f32.cu - attention_cached of f32: cache.h says what. A block of 256 threads has a
// row and a KV head, and goes through its query heads, 8 at a time.
//
//   scores    a thread a key, for all heads: chains over channels
//   softmax   a warp a head: largest, weights; four of its lanes add up l0 .. l3
//   O         a thread a channel of some heads, in registers: chains over keys
//
// Shared memory: q [head][width], scores [head][block], and of each head what threads pass on.
#include "../attention/attention_device.cuh"
#include "cache_device.cuh"

enum {
  THREADS = TL_CACHED_F32_THREADS,
  HEADS = TL_CACHED_F32_HEADS,
  WARP = 32,
  SUMS = HEADS  // channels of a thread at most: 8 heads of 256
};

static_assert(THREADS / WARP == HEADS, "a warp a head");

struct Task {
  float *q, *score;    // [head][width], [head][block]
  float *fade;         // of O, by head
  float *sum, *level;  // l and t of a part
  int request, position, kv_head, head, heads;
};

GPU void load_queries(const tl_cached_args &g, const Task &t, int64_t row) {
  const float *q = (const float *)g.q + (row * g.heads + t.head) * g.width;
  for (int i = threadIdx.x; i < t.heads * g.width; i += THREADS) t.q[i] = q[i];
}

// Scores of keys first .. end - 1 of the block that begins at `block`.
GPU void measure(const tl_cached_args &g, const Task &t, int block, int first, int end) {
  for (int j = first + threadIdx.x; j < end; j += THREADS) {
    const int64_t page = page_of(g.at, t.request, j);
    const float *key = (const float *)g.keys +
                       (page * g.kv_heads + t.kv_head) * g.width * g.at.page + page_place(g.at, j);
    float sum[HEADS] = {};
    for (int c = 0; c < g.width; c++) {
      const float x = page < 0 ? __int_as_float(0x7fffffff) : key[(int64_t)c * g.at.page];
#pragma unroll
      for (int h = 0; h < HEADS; h++)
        if (h < t.heads) sum[h] = fmaf(t.q[h * g.width + c], x, sum[h]);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
      if (h < t.heads) t.score[h * g.kv_block + j - block] = sum[h];
  }
}

// The state of a head that its warp keeps; l of lane r < 4 is l_r.
struct Level {
  float m, t, l;
};

// Scores of the warp's head become weights.
GPU void soften(const tl_cached_args &g, const Task &t, int low, int high, Level &s) {
  const int head = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  float *score = t.score + head * g.kv_block;
  if (head >= t.heads) return;
  for (int j = low + lane; j < high; j += WARP) s.m = fmaxf(s.m, score[j]);
  for (int step = WARP / 2; step > 0; step /= 2) s.m = fmaxf(s.m, __shfl_xor_sync(~0u, s.m, step));
  const float u = s.m * g.factor, a = fading(s.t, u);
  s.t = u;
  s.l = s.l * a;
  for (int j = low + lane; j < high; j += WARP) score[j] = tl_exp2(fmaf(score[j], g.factor, -u));
  __syncwarp();
  if (lane < 4)
    for (int j = 2 * lane; j < high; j += 8)
      for (int i = j; i < j + 2; i++)
        if (i >= low && i < high) s.l = s.l + score[i];
  if (lane == 0) t.fade[head] = a;
}

// Channel and first head of this thread, and how far its next head is: threads past the last
// channel of a round have none.
struct Channels {
  int channel, head, step;
};

GPU Channels channels_of(const tl_cached_args &g) {
  const int rounds = THREADS / g.value_width;
  return {int(threadIdx.x) % g.value_width, int(threadIdx.x) / g.value_width, rounds};
}

GPU void weigh(const tl_cached_args &g, const Task &t, const Channels &c, int block, int first,
               int end, float (&o)[SUMS]) {
  if (c.head >= c.step) return;
#pragma unroll
  for (int i = 0; i < SUMS; i++)
    if (c.head + i * c.step < t.heads) o[i] = o[i] * t.fade[c.head + i * c.step];
  for (int j = first; j < end; j++) {
    const int64_t page = page_of(g.at, t.request, j);
    const int64_t at = (page * g.at.page + page_place(g.at, j)) * g.kv_heads + t.kv_head;
    const float x = page < 0 ? __int_as_float(0x7fffffff)
                             : ((const float *)g.values)[at * g.value_width + c.channel];
#pragma unroll
    for (int i = 0; i < SUMS; i++)
      if (c.head + i * c.step < t.heads)
        o[i] = fmaf(t.score[(c.head + i * c.step) * g.kv_block + j - block], x, o[i]);
  }
}

// One part: keys first .. end - 1.
GPU void add_part(const tl_cached_args &g, const Task &t, const Channels &c, int first, int end,
                  float (&o)[SUMS]) {
  const int head = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  Level s = {-TL_INFINITY, -TL_INFINITY, 0.0f};
#pragma unroll
  for (int i = 0; i < SUMS; i++) o[i] = 0.0f;
  while (first < end) {
    const int block = first / g.kv_block * g.kv_block;
    const int border = block + g.kv_block < end ? block + g.kv_block : end;
    __syncthreads();  // scores have been read
    measure(g, t, block, first, border);
    __syncthreads();
    soften(g, t, first - block, border - block, s);
    __syncthreads();
    weigh(g, t, c, block, first, border, o);
    first = border;
  }
  const float sum = sum_of_four(s.l);
  if (lane == 0 && head < t.heads) t.sum[head] = sum, t.level[head] = s.t;
  __syncthreads();
}

GPU void store(const tl_cached_args &g, const Task &t, const Channels &c, int64_t row,
               const float (&o)[SUMS], const float (&l)[SUMS]) {
  if (c.head >= c.step) return;
#pragma unroll
  for (int i = 0; i < SUMS; i++) {
    const int head = c.head + i * c.step;
    if (head >= t.heads) continue;
    const int64_t at = (row * g.heads + t.head + head) * g.value_width + c.channel;
    const float y = o[i] / l[i];
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[at] = uint16_t(bf16_pair(y, 0.0f));
    else
      ((float *)g.o)[at] = y;
  }
}

// Some query heads of a row, all parts.
GPU void attend(const tl_cached_args &g, const Task &t, int64_t row) {
  const Channels c = channels_of(g);
  float total[SUMS], l[SUMS], level[SUMS], o[SUMS];
  bool begun = false;
  int first = t.position - g.window + 1 > 0 ? t.position - g.window + 1 : 0;
  __syncthreads();  // queries have been read
  load_queries(g, t, row);
  while (first <= t.position) {
    const int64_t border = ((int64_t)first / g.split + 1) * g.split;
    const int end = border < t.position + 1 ? int(border) : t.position + 1;
    add_part(g, t, c, first, end, o);
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
      const int head = c.head + i * c.step;
      if (c.head >= c.step || head >= t.heads) continue;
      const Merge m = merge(begun, true, level[i], l[i], t.level[head], t.sum[head]);
      total[i] = begun ? merged(m, total[i], o[i]) : o[i];
    }
    begun = true;
    first = end;
  }
  store(g, t, c, row, total, l);
}

GPU void fill(const tl_cached_args &g, int64_t row, int kv_head, uint32_t bits) {
  const int count = g.group * g.value_width;
  const int64_t first = row * g.heads * g.value_width + (int64_t)kv_head * count;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[first + i] = uint16_t(bits >> 16);
    else
      ((uint32_t *)g.o)[first + i] = bits;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_cached_f32(const __grid_constant__ tl_cached_args g) {
  extern __shared__ __align__(16) float shared[];
  begin_next();
  wait_earlier();
  const int64_t row = blockIdx.x / g.kv_heads;
  Task t = {};
  t.q = shared, t.score = t.q + HEADS * g.width, t.fade = t.score + HEADS * g.kv_block;
  t.sum = t.fade + HEADS, t.level = t.sum + HEADS;
  t.kv_head = blockIdx.x % g.kv_heads;
  t.request = g.at.request[row], t.position = g.at.position[row];
  if (t.request < 0) return fill(g, row, t.kv_head, 0);
  if (!is_place(g.at, t.request, t.position)) return fill(g, row, t.kv_head, 0x7fffffffu);
  for (int done = 0; done < g.group; done += HEADS) {
    t.head = t.kv_head * g.group + done;
    t.heads = g.group - done < HEADS ? g.group - done : HEADS;
    attend(g, t, row);
  }
}
