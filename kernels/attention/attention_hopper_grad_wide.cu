// attention_hopper_grad_wide.cu - dk and dv of bf16 heads of more than 128 channels.
//
// Sums of both fill more registers than a thread has, so one warpgroup has those of dv and the
// other those of dk, for the same 64 keys: both make the scores, which is a product more than
// attention_hopper_grad_key.cu needs.
//
//   warpgroup 1   s 1        p 1    dv 1  s 2        p 2    dv 2 ..
//   warpgroup 2   s 1  g 1   ds 1   dk 1  s 2  g 2   ds 2   dk 2 ..
//
// The two halves of a tile of 128 keys follow each other.
#include "attention_hopper_grad_key.cuh"

enum { HALF_TILE = 64 };  // keys

template <int width, int step, int slots>
struct GradWide {
  typedef Places<width, step, slots, 8 * step, HALF_TILE> P;
  typedef KeyScores<step> K;
  typedef typename K::Scores Scores;
  typedef float Sum[width / 2];

  // ---- the load warp ----

  static __device__ __forceinline__ void load_half(const tl_attention_hopper_args &a,
                                                   typename P::Loader &to, const Item &item) {
    const tl_attention_args &g = a.g;
    const int end = K::queries_end(g, item, HALF_TILE);
    to.item(item, a.k, a.v);
    for (int head = item.head * g.group; head < (item.head + 1) * g.group; head++)
      for (int at = item.offset; at < end; at += step)
        to.stream(item, at, head, true, a.q, a.grad, [&] {
          K::load_sums(g, item, at, head, to.base + P::SUMS + to.ring.slot * 8 * step);
        });
  }

  static __device__ __forceinline__ void load(const tl_attention_hopper_args &a, uint32_t base) {
    typename P::Loader to = {base};
    Feed feed = Feed::begin(a, a.g.first_head / a.g.group, a.g.head_count / a.g.group, 1);
    while (true) {
      Item item = feed.take(a);
      if (item.head < 0) break;
      load_half(a, to, item);
      item.offset += HALF_TILE;
      if (item.offset < item.length) load_half(a, to, item);
    }
    to.item({0, 0, 0, -1}, a.k, a.v);
  }

  // ---- the two warpgroups ----

  // Queries from `at` on of one head: the sums of dv where `values` is set, else of dk.
  template <bool values>
  static __device__ __forceinline__ void work(const tl_attention_args &g, typename P::Reader &to,
                                              const Item &item, int at,
                                              uint32_t (&fragments)[step / 4], Sum &sum) {
    const int own = item.offset + to.row % HALF_TILE + threadIdx.x % 32 / 4;
    const bool border =
        at < item.offset + 63 || at + step > item.length || at + 63 - item.offset >= g.window;
    const uint32_t sums = to.base + P::SUMS + to.ring.slot * 8 * step;
    Scores s;
    to.wait();
    products_begin();
    multiply_along<width, HALF_TILE, step>(s, to.base, to.slot());
    products_commit();
    products_wait<0>();
    hold<step / 2>(s);
    outlive(fragments);
    to.slot_read();
    if constexpr (values) {
      K::weigh(g, sums, s);
    } else {
      Scores x;
      products_begin();
      multiply_along<width, HALF_TILE, step>(x, to.base + P::OWN, to.slot() + P::PART);
      products_commit();
      K::weigh(g, sums, s);
      if (border) K::hide(g, item, own, at, s);
      products_wait<0>();
      hold<step / 2>(x);
      K::grade(sums, x, s);
    }
    if (border) K::hide(g, item, own, at, s);
    round_sums<step>(s, fragments);
    products_begin();
    multiply_across<width, step>(sum, fragments, to.slot() + (values ? P::PART : 0));
    products_commit();
    to.next();
  }

  // All products have ended, and the slot of the last one has been read.
  static __device__ __forceinline__ void settle(typename P::Reader &to,
                                                const uint32_t (&fragments)[step / 4], Sum &sum) {
    products_wait<0>();
    hold<width / 2>(sum);
    outlive(fragments);
    to.slot_read();
    to.before = -1;
  }

  template <bool values>
  static __device__ __forceinline__ void half(const tl_attention_hopper_args &a,
                                              typename P::Reader &to, const Item &item) {
    const tl_attention_args &g = a.g;
    const int end = K::queries_end(g, item, HALF_TILE);
    uint32_t fragments[step / 4] = {};
    Sum sum;
    clear(sum);
    for (int head = 1; head <= g.group; head++) {
      for (int at = item.offset; at < end; at += step)
        work<values>(g, to, item, at, fragments, sum);
      if (g.leaves_log == 0 || head % g.leaf_heads != 0) continue;
      settle(to, fragments, sum);
      fold<width / 2, READER_THREADS>(
          g.stack + int64_t(blockIdx.x) * g.leaves_log * width * READER_THREADS,
          threadIdx.x % READER_THREADS, g.leaves_log, head / g.leaf_heads - 1, sum);
      if (head < g.group) clear(sum);
    }
    settle(to, fragments, sum);
    to.own_read();
    store_sums<width>(values ? g.dv : g.dk, item, item.offset + to.row % HALF_TILE,
                      values ? 1.0f : g.dk_scale, sum);
  }

  static __device__ __forceinline__ void tile(const tl_attention_hopper_args &a,
                                              typename P::Reader &to, const Item &item) {
    if (to.warpgroup == 0)
      half<true>(a, to, item);
    else
      half<false>(a, to, item);
  }
};

#define KERNEL(width, step, slots)                                                           \
  extern "C" __global__ void __launch_bounds__(TL_ATTENTION_WGMMA_THREADS, 1)                \
      attention_grad_key_wgmma_##width(const __grid_constant__ tl_attention_hopper_args a) { \
    run_tiles<GradWide<width, step, slots>, 24, 240>(a);                                     \
  }
TL_ATTENTION_GRAD_WIDE_WGMMA(KERNEL)
