// attention_hopper_grad_query.cu - dq of bf16 heads by Hopper's copy engine and warpgroups.
//
// The sum of a step runs while the next step's scores wait behind it:
//
//   products   s 1      g 1            dq 1  s 2      g 2            dq 2 ..
//   others               p 1     ds 1                  p 2     ds 2
//
// With g given out only now, the fragments of the step before need no registers beside it.
#include "attention_hopper_grad.cuh"

template <int width, int step, int slots>
struct GradQuery {
  typedef Places<width, step, slots, 0> P;
  typedef float Scores[step / 2];

  static __device__ __forceinline__ int first_key(const tl_attention_args &g, const Item &item) {
    const int oldest = item.offset - g.window + 1;
    return oldest > 0 ? oldest / step * step : 0;
  }

  static __device__ __forceinline__ void load(const tl_attention_hopper_args &a, uint32_t base) {
    typename P::Loader to = {base};
    Feed feed = Feed::begin(a, a.g.first_head, a.g.head_count, a.g.group);
    while (true) {
      const Item item = feed.take(a);
      to.item(item, a.q, a.grad);
      if (item.head < 0) return;
      for (int at = first_key(a.g, item); at < item.end(); at += step)
        to.stream(item, at, item.head / a.g.group, false, a.k, a.v, [] {});
    }
  }

  // What a row does not see becomes +0. The warpgroup's 64 rows begin at `row`, the thread's at
  // `own`, the keys at `at`.
  static __device__ __forceinline__ void hide(const tl_attention_args &g, int row, int own, int at,
                                              Scores &s) {
    if (at + step - 1 <= row && at >= row + 63 - g.window + 1) return;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < step / 2; i++) {
      const int column = i / 4 * 8 + 2 * t + i % 2, last = own - at + (i & 2 ? 8 : 0);
      if (column > last || column <= last - g.window) s[i] = 0.0f;
    }
  }

  // lse and delta of the thread's rows, of which the first is `own`; +0 past the segment's end.
  static __device__ __forceinline__ void load_sums(const tl_attention_args &g, const Item &item,
                                                   int own, float2 (&sums)[2]) {
    const float2 *from =
        (const float2 *)g.sums + int64_t(item.head - g.first_head) * g.rows + item.start + own;
#pragma unroll
    for (int e = 0; e < 2; e++)
      sums[e] = own + 8 * e < item.length ? from[8 * e] : make_float2(0.0f, 0.0f);
  }

  static __device__ __forceinline__ void tile(const tl_attention_hopper_args &a,
                                              typename P::Reader &to, const Item &item) {
    const tl_attention_args &g = a.g;
    const int row = item.offset + 64 * to.warpgroup;
    const int own = item.offset + to.row + threadIdx.x % 32 / 4;
    const uint32_t place = to.base + 64 * HALF_ROW * to.warpgroup;
    float2 sums[2];
    float dq[width / 2];
    uint32_t ds[step / 4] = {};
    Scores s, x;
    load_sums(g, item, own, sums);
    clear(dq);
    for (int at = first_key(g, item); at < item.end(); at += step) {
      to.wait();
      products_begin();
      multiply_along<width, OWN_ROWS, step>(s, place, to.slot());
      products_commit();
      products_wait<0>();
      hold<step / 2>(s);
      outlive(ds);
      to.slot_read();
      products_begin();
      multiply_along<width, OWN_ROWS, step>(x, place + P::OWN, to.slot() + P::PART);
      products_commit();
#pragma unroll
      for (int i = 0; i < step / 2; i++) s[i] = weight(g, s[i], sums[i / 2 % 2].x);
      products_wait<0>();
      hold<step / 2>(x);
#pragma unroll
      for (int i = 0; i < step / 2; i++) s[i] = s[i] * (x[i] - sums[i / 2 % 2].y);
      hide(g, row, own, at, s);
      round_sums<step>(s, ds);
      products_begin();
      multiply_across<width, step>(dq, ds, to.slot());
      products_commit();
      to.next();
    }
    products_wait<0>();
    hold<width / 2>(dq);
    outlive(ds);
    to.slot_read();
    to.own_read();
    store_sums<width>(g.out, item, item.offset + to.row, g.scale, dq);
  }
};

#define KERNEL(width, step, slots)                                                             \
  extern "C" __global__ void __launch_bounds__(TL_ATTENTION_WGMMA_THREADS, 1)                  \
      attention_grad_query_wgmma_##width(const __grid_constant__ tl_attention_hopper_args a) { \
    run_tiles<GradQuery<width, step, slots>, 24, 240>(a);                                      \
  }
TL_ATTENTION_GRAD_QUERY_WGMMA(KERNEL)
