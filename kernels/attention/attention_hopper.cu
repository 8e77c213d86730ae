// attention_hopper.cu - the forward pass of bf16 heads by Hopper's copy engine and warpgroups.
// attention.h says what, attention_hopper_args.h for whom.
//
// Scores of the next block are given out before the product with the values of this one, across
// tiles too, and the two warpgroups take turns in giving out products, so that the softmax of one
// runs under the products of the other:
//
//   warpgroup 1   [scores j + 1, O j]  softmax j + 1         [scores j + 2, O j + 1]
//   warpgroup 2         softmax j      [scores j + 1, O j]   softmax j + 1
//
// The last product of a tile and the first scores of the next one share a turn; the division and
// the store of the old tile run under the other warpgroup's products. Queries are fragments in
// registers: products then read half as much shared memory. Above 192 channels there is room for
// none of this: each warpgroup ends one product before it begins the next, and the two find their
// own turns.
#include "attention_hopper_forward.cuh"

template <int width, int values, int block, int k_slots, int v_slots>
struct Forward : ForwardPlaces<width, values, block, k_slots, v_slots> {
  typedef ForwardPlaces<width, values, block, k_slots, v_slots> P;
  typedef typename P::Walk Walk;
  typedef float Output[values / 2];                      // a thread's share of 64 rows
  typedef uint32_t Queries[P::Q_STAYS ? 1 : width / 4];  // fragments, unless they stay

  // ---- the two warpgroups ----

  // A thread's two rows, of the part: l is one of the four sums, a what sums are multiplied by.
  // t is m * c again, the same bits, where it is needed.
  struct Rows {
    float m[2], l[2], a[2];
  };

  static __device__ __forceinline__ void begin_part(Rows &r) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      r.m[e] = -TL_INFINITY;
      r.l[e] = 0.0f;
    }
  }

  // What the thread's row `own`, and the one 8 further, do not see of the keys from `key` on. The
  // warpgroup's 64 rows begin at `row`.
  static __device__ __forceinline__ void hide(const tl_attention_args &g, int key, int row, int own,
                                              float (&s)[block / 2]) {
    const int t = threadIdx.x % 4;
    const bool all_young = key > row + 63 - g.window;  // for every row
    if (key + block - 1 <= row && all_young) return;
    if (all_young) {
#pragma unroll
      for (int i = 0; i < block / 2; i++) {
        const int column = i / 4 * 8 + 2 * t + i % 2;
        if (column > own - key + (i & 2 ? 8 : 0)) s[i] = -TL_INFINITY;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < block / 2; i++) {
      const int column = i / 4 * 8 + 2 * t + i % 2, last = own - key + (i & 2 ? 8 : 0);
      if (column > last || column <= last - g.window) s[i] = -TL_INFINITY;
    }
  }

  // s becomes p.
  static __device__ __forceinline__ void soften(float factor, float (&s)[block / 2], Rows &r) {
    float x[2] = {s[0], s[2]}, level[2];
#pragma unroll
    for (int i = 0; i < block / 2; i++) x[i / 2 % 2] = fmaxf(x[i / 2 % 2], s[i]);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      x[e] = fmaxf(x[e], __shfl_xor_sync(~0u, x[e], 1));
      x[e] = fmaxf(x[e], __shfl_xor_sync(~0u, x[e], 2));
      const float m = fmaxf(r.m[e], x[e]), u = m * factor;
      r.a[e] = fading(r.m[e] * factor, u);
      r.m[e] = m;
      r.l[e] = r.l[e] * r.a[e];
      level[e] = u == -TL_INFINITY ? 0.0f : u;  // no key seen so far: all p are +0
    }
#pragma unroll
    for (int i = 0; i < block / 2; i++) {
      s[i] = tl_exp2(fmaf(s[i], factor, -level[i / 2 % 2]));
      r.l[i / 2 % 2] = r.l[i / 2 % 2] + s[i];
    }
  }

  // Merges the part (t, l, o) into the state of the parts before, which the last part takes back.
  static __device__ __forceinline__ void merge_part(float *kept, bool merged_before, bool is_last,
                                                    float (&t)[2], float (&l)[2], Output &o) {
    volatile float *place = kept + int64_t(blockIdx.x) * (values / 2 + 4) * READER_THREADS +
                            threadIdx.x % READER_THREADS;
    volatile float *state = place + values / 2 * READER_THREADS;
    Merge m[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const bool sees = t[e] != -TL_INFINITY || l[e] != 0.0f;
      float old_t = -TL_INFINITY, old_l = 0.0f;
      if (merged_before) {
        old_t = state[e * READER_THREADS];
        old_l = state[(2 + e) * READER_THREADS];
      }
      const bool begun = old_t != -TL_INFINITY || old_l != 0.0f;
      m[e] = merge(begun, sees, old_t, old_l, t[e], l[e]);
      t[e] = old_t;
      l[e] = old_l;
      if (is_last) continue;
      state[e * READER_THREADS] = old_t;
      state[(2 + e) * READER_THREADS] = old_l;
    }
#pragma unroll
    for (int i = 0; i < values / 2; i++)
      if (m[i / 2 % 2].begun) o[i] = merged(m[i / 2 % 2], place[i * READER_THREADS], o[i]);
    if (is_last) return;
#pragma unroll
    for (int i = 0; i < values / 2; i++) place[i * READER_THREADS] = o[i];
  }

  // o / l, IEEE. A rounded reciprocal and two corrections of the remainder give the rounded
  // quotient as long as nothing comes near the ends of the range (Markstein, 1990); else '/'.
  static __device__ __forceinline__ void divide(const float (&l)[2], Output &o) {
    const float r[2] = {1.0f / l[0], 1.0f / l[1]};
    float low[4], high[4];  // four chains: one would be the longest of all
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = high[i] = fabsf(l[i % 2]);
#pragma unroll
    for (int i = 0; i < values / 2; i++) {
      low[i % 4] = fminf(low[i % 4], fabsf(o[i]));
      high[i % 4] = fmaxf(high[i % 4], fabsf(o[i]));
    }
    const float least = fminf(fminf(low[0], low[1]), fminf(low[2], low[3]));
    const float most = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    if (least > 0x1p-60f && most < 0x1p60f) {
#pragma unroll
      for (int i = 0; i < values / 2; i++) {
        const float d = -l[i / 2 % 2], c = r[i / 2 % 2];
        const float q = o[i] * c, better = fmaf(fmaf(q, d, o[i]), c, q);
        o[i] = fmaf(fmaf(better, d, o[i]), c, better);
      }
      return;
    }
#pragma unroll 1
    for (int turn = 0; turn < values / 16; turn++) {  // 8 at a time, in a circle: short code
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = o[i] / l[i / 2 % 2];
#pragma unroll
      for (int i = 0; i < values / 2 - 8; i++) o[i] = o[i + 8];
#pragma unroll
      for (int i = 0; i < 8; i++) o[values / 2 - 8 + i] = x[i];
    }
  }

  // The warp's 16 rows, rounded, which begin at row `row` of the tile.
  static __device__ __forceinline__ void stage(uint32_t to, int row, const Output &o) {
    const int lane = threadIdx.x % 32, r = lane % 16;
#pragma unroll
    for (int k = 0; k < values / 16; k++) {
      const uint32_t piece = (2 * k + lane / 16) & 7;
      const float *x = o + 8 * k;
      store_matrices(to + (k / 4 * OWN_ROWS + row + r) * HALF_ROW + ((piece ^ (r & 7)) << 4),
                     bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                     bf16_pair(x[6], x[7]));
    }
  }

  struct Reader {
    const tl_attention_hopper_args &a;
    uint32_t base;
    int warpgroup, row;  // 0 or 1; the warp's first row of the tile
    Ring<1> q, out;
    Ring<k_slots> k;
    Ring<v_slots> v;

    __device__ __forceinline__ int lane_row() const { return row + threadIdx.x % 32 / 4; }
    __device__ __forceinline__ void read(uint32_t empty) const {
      if (threadIdx.x % 32 == 0) barrier_arrive(base + empty);
    }
    // The next tile and its queries, whose slot is free again at once if they are taken out.
    __device__ __forceinline__ Item item(Queries &queries) {
      barrier_wait(base + P::Q_FULL, q.parity);
      q.next();
      const Item item = load_item(base + P::ITEM);
      if constexpr (!P::Q_STAYS) {
        if (item.head >= 0) load_fragments<width, OWN_ROWS>(base, row, queries);
        barrier_arrive(base + P::Q_EMPTY);
      }
      return item;
    }
    // After the last scores of a tile, or none; where O takes their place, only after none.
    __device__ __forceinline__ void queries_read() const {
      if (P::Q_STAYS && (!P::ALONE || threadIdx.x % 128 < 32)) barrier_arrive(base + P::Q_EMPTY);
    }
    // Whether the tile has rows of this warpgroup: the last one of a segment may have none.
    __device__ __forceinline__ bool works_on(const Item &item) const {
      return item.head >= 0 && item.offset + 64 * warpgroup < item.length;
    }
    // Products are given out between these.
    __device__ __forceinline__ void turn() const {
      if constexpr (!P::ALONE) named_sync<READER_THREADS>(1 + warpgroup);
    }
    __device__ __forceinline__ void pass() const {
      if constexpr (!P::ALONE) named_arrive<READER_THREADS>(2 - warpgroup);
    }
    __device__ __forceinline__ void scores(const Queries &queries, float *s) {
      const uint32_t keys = base + P::KEYS + k.slot * P::K_SLOT;
      products_begin();
      if constexpr (P::Q_STAYS)
        ::multiply_along<width, OWN_ROWS, block>(s, base + 64 * HALF_ROW * warpgroup, keys);
      else
        ::multiply_along<width, block>(s, queries, keys);
      products_commit();
    }
    __device__ __forceinline__ void sums(const uint32_t *p, float *o) {
      ::multiply_across<values, block>(o, p, base + P::VALUES + v.slot * P::V_SLOT);
      products_commit();
    }
    __device__ __forceinline__ void keys_read() {
      read(P::K_EMPTY + 8 * k.slot);
      k.next();
    }
    __device__ __forceinline__ void values_read() {
      read(P::V_EMPTY + 8 * v.slot);
      v.next();
    }
    __device__ __forceinline__ void wait_keys() const {
      barrier_wait(base + P::K_FULL + 8 * k.slot, k.parity);
    }
    __device__ __forceinline__ void wait_values() const {
      barrier_wait(base + P::V_FULL + 8 * v.slot, v.parity);
    }
    __device__ __forceinline__ void weigh(const Walk &w, float (&s)[block / 2], Rows &r) const {
      const int row = w.item.offset + 64 * warpgroup;
      hide(a.g, w.at * block, row, w.item.offset + lane_row(), s);
      soften(a.g.factor, s, r);
    }

    // The next tile with rows of this warpgroup, or none. Slots of those before are given back and
    // their turns passed: a turn for each block, of which `taken` have been taken already, and one
    // behind the last tile.
    __device__ __forceinline__ Item skip(Item next, Queries &queries, int taken) {
      while (next.head >= 0 && !works_on(next)) {
        const Walk w = P::walk(a.g, next);
        queries_read();  // before the waits: the load warp waits for it ahead of the last values
        for (int at = w.at; at <= w.last; at++) {
          if (taken == 0) turn(), pass();
          taken = 0;
          wait_keys();
          keys_read();
          wait_values();
          values_read();
        }
        next = item(queries);
      }
      if (next.head < 0 && taken == 0) turn(), pass();
      return next;
    }

    // To the warp that writes; the place is free again long before the next tile ends.
    __device__ __forceinline__ void hand_over(const Item &item, const float (&t)[2],
                                              const float (&l)[2], const Output &o) {
      barrier_wait(base + P::OUT_EMPTY + 8 * warpgroup, out.parity ^ 1);
      stage(base + P::STAGE, row, o);
      if constexpr (P::ALONE) fence_async();  // the copy engine brings the next queries there
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (threadIdx.x % 4 == 0)
          store_shared_f32(base + P::OUT_SUMS + 8 * (lane_row() + 8 * e), make_float2(t[e], l[e]));
      tell(item);
    }
    __device__ __forceinline__ void tell(const Item &item) {
      if (threadIdx.x % 128 == 0) store_item(base + P::OUT_ITEM + 16 * warpgroup, item);
      barrier_arrive(base + P::OUT_FULL + 8 * warpgroup);
      out.next();
    }
    __device__ __forceinline__ void finish() {
      barrier_wait(base + P::OUT_EMPTY + 8 * warpgroup, out.parity ^ 1);
      tell({0, 0, 0, -1});
    }

    // A part ends: its state is (t, l, o), its tile is w.
    __device__ __forceinline__ void close(const Walk &w, Rows &r, Output &o) {
      const bool is_last = w.at == w.last;
      float t[2];
#pragma unroll
      for (int e = 0; e < 2; e++) {
        t[e] = r.m[e] * a.g.factor;
        r.l[e] = sum_of_four(r.l[e]);
      }
      if (w.merged() || !is_last) merge_part(a.kept, w.merged(), is_last, t, r.l, o);
      if (!is_last) return;
      divide(r.l, o);
      hand_over(w.item, t, r.l, o);
    }
  };

  static __device__ __forceinline__ void clear(Output &o) {
#pragma unroll
    for (int i = 0; i < values / 2; i++) o[i] = 0.0f;
  }

  static __device__ __forceinline__ void rescale(const Rows &r, Output &o) {
    if (!__any_sync(~0u, r.a[0] != 1.0f || r.a[1] != 1.0f)) return;  // times 1
#pragma unroll
    for (int i = 0; i < values / 2; i++) o[i] = o[i] * r.a[i / 2 % 2];
  }

  // The tiles from `item` on, up to one without rows of this warpgroup, which is returned: their
  // blocks follow each other without a gap.
  static __device__ __forceinline__ Item run_tiles(Reader &at, Item item, Queries &queries) {
    const tl_attention_args &g = at.a.g;
    uint32_t p[block / 4];
    float s[block / 2];
    Output o;
    Rows r;
    Walk w = P::walk(g, item);
    clear(o);
    begin_part(r);
    at.wait_keys();
    at.turn();
    at.scores(queries, s);
    at.pass();
    products_wait<0>();
    hold<block / 2>(s);
    at.keys_read();
    if (w.at == w.last) at.queries_read();
    at.weigh(w, s, r);
    round_sums<block>(s, p);
    while (true) {
      Walk next = w;
      next.at++;
      const bool part_ends = w.ends_part();
      if (w.at == w.last) {
        item = at.item(queries);
        if (!at.works_on(item)) break;
        next = P::walk(g, item);
      } else if (part_ends) {
        P::next_part(g, next, w.at);
      }
      at.wait_keys();
      at.turn();
      at.scores(queries, s);
      at.wait_values();
      at.sums(p, o);
      at.pass();
      products_wait<1>();
      hold<block / 2>(s);
      at.keys_read();
      if (next.at == next.last) at.queries_read();
      Rows before = r;
      if (part_ends) begin_part(r);
      at.weigh(next, s, r);
      products_wait<0>();
      hold<values / 2>(o);
      at.values_read();
      round_sums<block>(s, p);
      if (part_ends) {
        at.close(w, before, o);
        clear(o);
      } else {
        rescale(r, o);
      }
      w = next;
    }
    at.wait_values();
    at.turn();
    products_begin();
    at.sums(p, o);
    at.pass();
    products_wait<0>();
    hold<values / 2>(o);
    at.values_read();
    at.close(w, r, o);
    return item;
  }

  // One tile whose warpgroup works alone; the next one is returned.
  static __device__ __forceinline__ Item run_alone(Reader &at, const Item &item, Queries &queries) {
    const tl_attention_args &g = at.a.g;
    Output o;
    Rows r;
    Walk w = P::walk(g, item);
    clear(o);
    begin_part(r);
    while (true) {
      uint32_t p[block / 4];
      float s[block / 2];
      at.wait_keys();
      at.scores(queries, s);
      products_wait<0>();
      hold<block / 2>(s);
      at.keys_read();
      at.weigh(w, s, r);
      rescale(r, o);
      round_sums<block>(s, p);
      at.wait_values();
      products_begin();
      at.sums(p, o);
      products_wait<0>();
      hold<values / 2>(o);
      at.values_read();
      if (w.ends_part()) {
        const int ended = w.at;
        at.close(w, r, o);
        if (ended == w.last) break;
        clear(o);
        begin_part(r);
        P::next_part(g, w, ended);
      }
      w.at++;
    }
    return at.item(queries);
  }

  static __device__ __forceinline__ void work(Reader &at) {
    Queries queries;
    int taken = 0;
    Item item = at.item(queries);
    while (true) {
      item = at.skip(item, queries, taken);
      if (item.head < 0) break;
      if constexpr (P::ALONE)
        item = run_alone(at, item, queries);
      else
        item = run_tiles(at, item, queries);
      taken = 1;
    }
    at.finish();
  }

  static __device__ __forceinline__ void run(const tl_attention_hopper_args &a) {
    extern __shared__ unsigned char shared[];
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    P::make_barriers(base);
    if (warpgroup == 0) {
      registers_fewer<P::ALONE ? 40 : 24>();
      P::serve(a, base);
    } else {
      registers_more<P::ALONE ? 232 : 240>();
      const int warp = __shfl_sync(~0u, threadIdx.x / 32 - 4, 0);
      Reader at = {a, base, warpgroup - 1, 16 * warp};
      if (warpgroup == 2) at.pass();
      work(at);
      if (warpgroup == 1) at.turn();  // what is left from the start
    }
  }
};

#define KERNEL(name, width, values, block, k_slots, v_slots)                                 \
  extern "C" __global__ void __launch_bounds__(TL_ATTENTION_WGMMA_THREADS, 1)                \
      attention_wgmma_##name##_##block(const __grid_constant__ tl_attention_hopper_args a) { \
    Forward<width, values, block, k_slots, v_slots>::run(a);                                 \
  }
TL_ATTENTION_WGMMA(KERNEL)
