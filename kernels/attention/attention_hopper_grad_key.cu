// attention_hopper_grad_key.cu - dk and dv of bf16 heads by Hopper's copy engine and warpgroups.
//
// Own rows are keys, so that s and g stand as (keys, queries), and p and ds are fragments of the
// products with do and q. The sums of a step run while the next step's scores wait behind them:
//
//   products   s 1      g 1            dv 1  dk 1  s 2      g 2            dv 2 ..
//   others               p 1     ds 1                        p 2     ds 2
//
// With g given out only now, fragments of the step before need no registers beside it.
//
// The heads of a KV head follow each other; a leaf's sums are complete after its last head.
#include "attention_hopper_grad_key.cuh"

template <int width, int step, int slots>
struct GradKey {
  typedef Places<width, step, slots, 8 * step> P;
  typedef KeyScores<step> K;
  typedef typename K::Scores Scores;
  typedef float Sum[width / 2];

  // ---- the load warp ----

  static __device__ __forceinline__ void load(const tl_attention_hopper_args &a, uint32_t base) {
    const tl_attention_args &g = a.g;
    typename P::Loader to = {base};
    Feed feed = Feed::begin(a, g.first_head / g.group, g.head_count / g.group, 1);
    while (true) {
      const Item item = feed.take(a);
      to.item(item, a.k, a.v);
      if (item.head < 0) return;
      const int end = K::queries_end(g, item, OWN_ROWS);
      for (int head = item.head * g.group; head < (item.head + 1) * g.group; head++)
        for (int at = item.offset; at < end; at += step)
          to.stream(item, at, head, true, a.q, a.grad, [&] {
            K::load_sums(g, item, at, head, base + P::SUMS + to.ring.slot * 8 * step);
          });
    }
  }

  // ---- the two warpgroups ----

  // Queries from `at` on of one head. The warpgroup's 64 keys begin at `key`.
  static __device__ __forceinline__ void work(const tl_attention_args &g, typename P::Reader &to,
                                              const Item &item, int at, uint32_t (&p)[step / 4],
                                              uint32_t (&ds)[step / 4], Sum &dk, Sum &dv) {
    const int key = item.offset + 64 * to.warpgroup, row = 64 * HALF_ROW * to.warpgroup;
    const int own = item.offset + to.row + threadIdx.x % 32 / 4;
    const bool border = at < key + 63 || at + step > item.length || at + 63 - key >= g.window;
    const uint32_t sums = to.base + P::SUMS + to.ring.slot * 8 * step;
    Scores s, x;
    to.wait();
    products_begin();
    multiply_along<width, OWN_ROWS, step>(s, to.base + row, to.slot());
    products_commit();
    products_wait<0>();
    hold<step / 2>(s);
    outlive(p);
    outlive(ds);
    to.slot_read();
    products_begin();
    multiply_along<width, OWN_ROWS, step>(x, to.base + P::OWN + row, to.slot() + P::PART);
    products_commit();
    K::weigh(g, sums, s);
    if (border) K::hide(g, item, own, at, s);
    products_wait<0>();  // fragments may not be written while products run
    hold<step / 2>(x);
    round_sums<step>(s, p);
    K::grade(sums, x, s);
    if (border) K::hide(g, item, own, at, s);
    round_sums<step>(s, ds);
    products_begin();
    multiply_across<width, step>(dv, p, to.slot() + P::PART);
    multiply_across<width, step>(dk, ds, to.slot());
    products_commit();
    to.next();
  }

  // All products have ended, and the slot of the last ones has been read.
  static __device__ __forceinline__ void settle(typename P::Reader &to,
                                                const uint32_t (&ds)[step / 4], Sum &dk, Sum &dv) {
    products_wait<0>();
    hold<width / 2>(dk);
    hold<width / 2>(dv);
    outlive(ds);
    to.slot_read();
    to.before = -1;
  }

  static __device__ __forceinline__ void end_leaf(const tl_attention_hopper_args &a, int leaf,
                                                  bool is_last, Sum &dk, Sum &dv) {
    const int thread = threadIdx.x % READER_THREADS, level = width / 2 * READER_THREADS;
    float *stack = a.g.stack + int64_t(blockIdx.x) * a.g.leaves_log * 2 * level;
    fold<width / 2, READER_THREADS>(stack, thread, a.g.leaves_log, leaf, dk);
    fold<width / 2, READER_THREADS>(stack + a.g.leaves_log * level, thread, a.g.leaves_log, leaf,
                                    dv);
    if (is_last) return;
    clear(dk);
    clear(dv);
  }

  static __device__ __forceinline__ void tile(const tl_attention_hopper_args &a,
                                              typename P::Reader &to, const Item &item) {
    const tl_attention_args &g = a.g;
    const int end = K::queries_end(g, item, OWN_ROWS);
    uint32_t p[step / 4] = {}, ds[step / 4] = {};
    Sum dk, dv;
    clear(dk);
    clear(dv);
    for (int head = 1; head <= g.group; head++) {
      for (int at = item.offset; at < end; at += step) work(g, to, item, at, p, ds, dk, dv);
      if (g.leaves_log == 0 || head % g.leaf_heads != 0) continue;
      settle(to, ds, dk, dv);
      end_leaf(a, head / g.leaf_heads - 1, head == g.group, dk, dv);
    }
    settle(to, ds, dk, dv);
    to.own_read();
    store_sums<width>(g.dk, item, item.offset + to.row, g.dk_scale, dk);
    store_sums<width>(g.dv, item, item.offset + to.row, 1.0f, dv);
  }
};

#define KERNEL(width, step, slots)                                                           \
  extern "C" __global__ void __launch_bounds__(TL_ATTENTION_WGMMA_THREADS, 1)                \
      attention_grad_key_wgmma_##width(const __grid_constant__ tl_attention_hopper_args a) { \
    run_tiles<GradKey<width, step, slots>, 40, 232>(a);                                      \
  }
TL_ATTENTION_GRAD_KEY_WGMMA(KERNEL)
