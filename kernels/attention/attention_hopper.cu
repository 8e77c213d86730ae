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
// registers: products then read half as much shared memory.
#include "attention_hopper.cuh"

template <int width, int block, int k_slots, int v_slots>
struct Forward {
  enum {
    QUERIES = 2 * OWN_ROWS * width,  // bytes
    SLOT = 2 * block * width,
    KEYS = QUERIES,
    VALUES = KEYS + k_slots * SLOT,
    STAGE = VALUES + v_slots * SLOT,  // O on its way out
    BARRIERS = STAGE + QUERIES,
    ITEM = BARRIERS + 256,
    Q_FULL = BARRIERS,
    Q_EMPTY = Q_FULL + 8,
    K_FULL = Q_EMPTY + 8,
    K_EMPTY = K_FULL + 8 * k_slots,
    V_FULL = K_EMPTY + 8 * k_slots,
    V_EMPTY = V_FULL + 8 * v_slots,
    BORDER = V_EMPTY + 8 * v_slots  // the end of a segment has arrived
  };

  // The blocks of a tile: `at` is the one that is weighed, part_last the last of its part.
  struct Walk {
    Item item;
    int at, last, part_last;
    bool merged;  // parts before this one have been kept
  };

  static __device__ __forceinline__ Walk walk(const tl_attention_args &g, const Item &item) {
    const int oldest = item.offset - g.window + 1, parts = g.split / block;
    Walk w = {item, oldest > 0 ? oldest / block : 0, (item.end() - 1) / block, 0, false};
    end_part(w, w.at / parts * parts + parts - 1);
    return w;
  }
  static __device__ __forceinline__ void end_part(Walk &w, int last) {
    w.part_last = last < w.last ? last : w.last;
  }

  // ---- the load warp ----

  struct Loader {
    const tl_attention_hopper_args &a;
    uint32_t base;
    Ring<1> q, border;
    Ring<k_slots> k;
    Ring<v_slots> v;

    __device__ __forceinline__ void item(const Item &item) {
      barrier_wait(base + Q_EMPTY, q.parity ^ 1);
      if (threadIdx.x == 0) {
        store_item(base + ITEM, item);
        if (item.head < 0) {
          barrier_arrive(base + Q_FULL);
        } else {
          barrier_expect(base + Q_FULL, QUERIES);
          load_rows<width, OWN_ROWS, block>(base, a.q, base + Q_FULL, item.start + item.offset,
                                            item.head);
        }
      }
      q.next();
    }
    __device__ __forceinline__ void keys(const Item &item, int at) {
      const uint32_t full = base + K_FULL + 8 * k.slot;
      barrier_wait(base + K_EMPTY + 8 * k.slot, k.parity ^ 1);
      if (threadIdx.x == 0) {
        barrier_expect(full, SLOT);
        load_rows<width, block, block>(base + KEYS + k.slot * SLOT, a.k, full,
                                       item.start + at * block, item.head / a.g.group);
      }
      k.next();
    }
    // Rows past the segment's end become zeros: what stands there may not be a number.
    __device__ __forceinline__ void values(const Item &item, int at) {
      const uint32_t full = base + V_FULL + 8 * v.slot, slot = base + VALUES + v.slot * SLOT;
      const int left = item.length - at * block;
      const uint32_t bar = left < block ? base + BORDER : full;
      barrier_wait(base + V_EMPTY + 8 * v.slot, v.parity ^ 1);
      if (threadIdx.x == 0) {
        barrier_expect(bar, SLOT);
        load_rows<width, block, block>(slot, a.v, bar, item.start + at * block,
                                       item.head / a.g.group);
      }
      if (left < block) {
        barrier_wait(bar, border.parity);
        border.next();
        clear_rows<width, block>(slot, left);
        fence_async();
        __syncwarp();
        if (threadIdx.x == 0) barrier_arrive(full);
      }
      v.next();
    }
  };

  // In the order of use: keys run a block ahead of values.
  static __device__ __forceinline__ void load(const tl_attention_hopper_args &a, uint32_t base) {
    Loader to = {a, base};
    Feed feed = Feed::begin(a, 0, a.g.heads, a.g.group);
    Item item = feed.take(a);
    to.item(item);
    if (item.head < 0) return;
    Walk w = walk(a.g, item);
    to.keys(item, w.at);
    while (true) {
      for (; w.at < w.last; w.at++) {
        to.keys(w.item, w.at + 1);
        to.values(w.item, w.at);
      }
      item = feed.take(a);
      to.item(item);
      if (item.head < 0) break;
      const Walk next = walk(a.g, item);
      to.keys(item, next.at);
      to.values(w.item, w.last);
      w = next;
    }
    to.values(w.item, w.last);
  }

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

  // The warpgroup's 64 rows begin at `row`, the thread's first row is `own`.
  static __device__ __forceinline__ void hide(const tl_attention_args &g, const Walk &w, int row,
                                              int own, float (&s)[block / 2]) {
    const int key = w.at * block;
    if (key + block - 1 <= row && key >= row + 63 - g.window + 1) return;
    const int t = threadIdx.x % 4;
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
                                                    float (&t)[2], float (&l)[2],
                                                    float (&o)[width / 2]) {
    volatile float *place = kept + int64_t(blockIdx.x) * (width / 2 + 4) * READER_THREADS +
                            threadIdx.x % READER_THREADS;
    volatile float *state = place + width / 2 * READER_THREADS;
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
    for (int i = 0; i < width / 2; i++)
      if (m[i / 2 % 2].begun) o[i] = merged(m[i / 2 % 2], place[i * READER_THREADS], o[i]);
    if (is_last) return;
#pragma unroll
    for (int i = 0; i < width / 2; i++) place[i * READER_THREADS] = o[i];
  }

  // o / l, IEEE. A rounded reciprocal and two corrections of the remainder give the rounded
  // quotient as long as nothing comes near the ends of the range (Markstein, 1990); else '/'.
  static __device__ __forceinline__ void divide(const float (&l)[2], float (&o)[width / 2]) {
    const float r[2] = {1.0f / l[0], 1.0f / l[1]};
    float low = fminf(fabsf(l[0]), fabsf(l[1])), high = fmaxf(fabsf(l[0]), fabsf(l[1]));
#pragma unroll
    for (int i = 0; i < width / 2; i++) {
      low = fminf(low, fabsf(o[i]));
      high = fmaxf(high, fabsf(o[i]));
    }
    if (low > 0x1p-60f && high < 0x1p60f) {
#pragma unroll
      for (int i = 0; i < width / 2; i++) {
        const float d = -l[i / 2 % 2], c = r[i / 2 % 2];
        const float q = o[i] * c, better = fmaf(fmaf(q, d, o[i]), c, q);
        o[i] = fmaf(fmaf(better, d, o[i]), c, better);
      }
      return;
    }
#pragma unroll 1
    for (int turn = 0; turn < width / 16; turn++) {  // 8 at a time, in a circle: short code
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = o[i] / l[i / 2 % 2];
#pragma unroll
      for (int i = 0; i < width / 2 - 8; i++) o[i] = o[i + 8];
#pragma unroll
      for (int i = 0; i < 8; i++) o[width / 2 - 8 + i] = x[i];
    }
  }

  // The warp's 16 rows, which begin at row `row` of the tile, by way of shared memory.
  static __device__ __forceinline__ void store(const tl_attention_output &out, const Item &item,
                                               uint32_t stage, int row,
                                               const float (&o)[width / 2]) {
    const int lane = threadIdx.x % 32, r = lane % 16;
    __syncwarp();  // the rows before have been read
#pragma unroll
    for (int k = 0; k < width / 16; k++) {
      const uint32_t piece = (2 * k + lane / 16) & 7;
      const float *x = o + 8 * k;
      store_matrices(stage + (k / 4 * OWN_ROWS + row + r) * HALF_ROW + ((piece ^ (r & 7)) << 4),
                     bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                     bf16_pair(x[6], x[7]));
    }
    __syncwarp();
    uint4 v[width / 16];
    constexpr int pieces = width / 8;
#pragma unroll
    for (int i = 0; i < width / 16; i++) {
      const int place = i * 32 + lane, q = place / pieces, c = place % pieces;
      const uint32_t at = stage + (c / 8 * OWN_ROWS + row + q) * HALF_ROW;
      const float4 bits = load_shared_f32x4(at + ((c % 8 ^ (q & 7)) << 4));
      v[i] = *(const uint4 *)&bits;
    }
    const int left = item.length - item.offset - row;
    uint16_t *to = (uint16_t *)out.data + int64_t(item.head) * out.width +
                   (int64_t(item.start) + item.offset + row) * out.stride;
#pragma unroll
    for (int i = 0; i < width / 16; i++) {
      const int place = i * 32 + lane, q = place / pieces, c = place % pieces * 8;
      if (q < left && c < out.width) *(uint4 *)(to + q * out.stride + c) = v[i];
    }
  }

  // A part ends: its state is (t, l, o), its tile is w.
  static __device__ __forceinline__ void close(const tl_attention_hopper_args &a, const Walk &w,
                                               uint32_t stage, int row, Rows &r,
                                               float (&o)[width / 2]) {
    const bool is_last = w.at == w.last;
    float t[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      t[e] = r.m[e] * a.g.factor;
      r.l[e] = sum_of_four(r.l[e]);
    }
    if (w.merged || !is_last) merge_part(a.kept, w.merged, is_last, t, r.l, o);
    if (!is_last) return;
    divide(r.l, o);
    store(a.g.out, w.item, stage, row, o);
    if (threadIdx.x % 4 != 0) return;
    const int at = w.item.offset + row + threadIdx.x % 32 / 4;
#pragma unroll
    for (int e = 0; e < 2; e++)
      if (at + 8 * e < w.item.length)
        a.g.lse[(int64_t(w.item.start) + at + 8 * e) * a.g.heads + w.item.head] =
            t[e] + tl_log2(r.l[e]);
  }

  struct Reader {
    const tl_attention_hopper_args &a;
    uint32_t base;
    int warpgroup, row;  // 0 or 1; the warp's first row of the tile
    Ring<1> q;
    Ring<k_slots> k;
    Ring<v_slots> v;

    __device__ __forceinline__ int lane_row() const { return row + threadIdx.x % 32 / 4; }
    __device__ __forceinline__ void read(uint32_t empty) const {
      if (threadIdx.x % 32 == 0) barrier_arrive(base + empty);
    }
    // The next tile and its queries, whose slot is free again at once.
    __device__ __forceinline__ Item item(uint32_t (&fragments)[width / 4]) {
      barrier_wait(base + Q_FULL, q.parity);
      q.next();
      const Item item = load_item(base + ITEM);
      if (item.head >= 0) load_fragments<width, OWN_ROWS>(base, row, fragments);
      __syncwarp();
      read(Q_EMPTY);
      return item;
    }
    __device__ __forceinline__ void scores(const uint32_t *queries, float *s) {
      products_begin();
      ::multiply_along<width, block>(s, queries, base + KEYS + k.slot * SLOT);
      products_commit();
    }
    __device__ __forceinline__ void values(const uint32_t *p, float *o) {
      ::multiply_across<width, block>(o, p, base + VALUES + v.slot * SLOT);
      products_commit();
    }
    __device__ __forceinline__ void keys_read() {
      read(K_EMPTY + 8 * k.slot);
      k.next();
    }
    __device__ __forceinline__ void values_read() {
      read(V_EMPTY + 8 * v.slot);
      v.next();
    }
    __device__ __forceinline__ void wait_keys() const {
      barrier_wait(base + K_FULL + 8 * k.slot, k.parity);
    }
    __device__ __forceinline__ void wait_values() const {
      barrier_wait(base + V_FULL + 8 * v.slot, v.parity);
    }
    __device__ __forceinline__ void weigh(const Walk &w, float (&s)[block / 2], Rows &r) const {
      hide(a.g, w, w.item.offset + 64 * warpgroup, w.item.offset + lane_row(), s);
      soften(a.g.factor, s, r);
    }
  };

  static __device__ __forceinline__ void clear(float (&o)[width / 2]) {
#pragma unroll
    for (int i = 0; i < width / 2; i++) o[i] = 0.0f;
  }

  static __device__ __forceinline__ void rescale(const Rows &r, float (&o)[width / 2]) {
    if (!__any_sync(~0u, r.a[0] != 1.0f || r.a[1] != 1.0f)) return;  // times 1
#pragma unroll
    for (int i = 0; i < width / 2; i++) o[i] = o[i] * r.a[i / 2 % 2];
  }

  static __device__ __forceinline__ void work(Reader &at) {
    const tl_attention_hopper_args &a = at.a;
    uint32_t queries[width / 4], p[block / 4];
    float o[width / 2], s[block / 2];
    Rows r;
    Item item = at.item(queries);
    if (item.head < 0) return;
    Walk w = walk(a.g, item);
    clear(o);
    begin_part(r);
    at.wait_keys();
    at.scores(queries, s);
    products_wait<0>();
    hold<block / 2>(s);
    at.keys_read();
    at.weigh(w, s, r);
    round_sums<block>(s, p);
    while (true) {
      Walk next = w;
      next.at++;
      const bool part_ends = w.at == w.part_last;
      if (w.at == w.last) {
        item = at.item(queries);
        if (item.head < 0) break;
        next = walk(a.g, item);
      } else if (part_ends) {
        next.merged = true;
        end_part(next, w.at + a.g.split / block);
      }
      at.wait_keys();
      named_sync<READER_THREADS>(1 + at.warpgroup);
      at.scores(queries, s);
      at.wait_values();
      at.values(p, o);
      named_arrive<READER_THREADS>(2 - at.warpgroup);
      products_wait<1>();
      hold<block / 2>(s);
      at.keys_read();
      Rows before = r;
      if (part_ends) begin_part(r);
      at.weigh(next, s, r);
      products_wait<0>();
      hold<width / 2>(o);
      at.values_read();
      round_sums<block>(s, p);
      if (part_ends) {
        close(a, w, at.base + STAGE, at.row, before, o);
        clear(o);
      } else {
        rescale(r, o);
      }
      w = next;
    }
    at.wait_values();
    products_begin();
    at.values(p, o);
    products_wait<0>();
    hold<width / 2>(o);
    close(a, w, at.base + STAGE, at.row, r, o);
  }

  static __device__ __forceinline__ void make_barriers(uint32_t base) {
    if (threadIdx.x == 0) {
      barrier_make(base + Q_FULL, 1);
      barrier_make(base + Q_EMPTY, READERS);
      for (int i = 0; i < k_slots; i++) {
        barrier_make(base + K_FULL + 8 * i, 1);
        barrier_make(base + K_EMPTY + 8 * i, READERS);
      }
      for (int i = 0; i < v_slots; i++) {
        barrier_make(base + V_FULL + 8 * i, 1);
        barrier_make(base + V_EMPTY + 8 * i, READERS);
      }
      barrier_make(base + BORDER, 1);
      barriers_made();
      fence_async();
    }
    __syncthreads();
  }

  static __device__ __forceinline__ void run(const tl_attention_hopper_args &a) {
    extern __shared__ unsigned char shared[];
    const uint32_t base = (shared_address(shared) + 1023) & ~1023u;
    const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
    make_barriers(base);
    if (warpgroup == 0) {
      registers_fewer<24>();
      if (threadIdx.x < 32) load(a, base);
    } else {
      registers_more<240>();
      const int warp = __shfl_sync(~0u, threadIdx.x / 32 - 4, 0);
      Reader at = {a, base, warpgroup - 1, 16 * warp};
      if (warpgroup == 2) named_arrive<READER_THREADS>(1);
      work(at);
      if (warpgroup == 1) named_sync<READER_THREADS>(1);  // what is left from the start
    }
  }
};

#define KERNEL(width, block, k_slots, v_slots)                                                \
  extern "C" __global__ void __launch_bounds__(TL_ATTENTION_WGMMA_THREADS, 1)                 \
      attention_wgmma_##width##_##block(const __grid_constant__ tl_attention_hopper_args a) { \
    Forward<width, block, k_slots, v_slots>::run(a);                                          \
  }
TL_ATTENTION_WGMMA(KERNEL)
