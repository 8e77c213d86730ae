// cache_prompt_hopper.cu - attention_cached of bf16 for steps of many rows, as prompts have: tiles
// of up to 128 pairs of a row and a query head, by Hopper's copy engine and warpgroups.
//
//   tile     rows of one request that stand side by side, `tile` of them at most; all query heads
//            of a KV head. It begins where the request changes, and every `tile` rows.
//   pair     row * group + head: a row of the product
//   block    kv_block keys from position 0 on, and their values: a slot each
//
//   warps 0 .. 3, 4 .. 7    64 pairs each: scores, weights, sums
//   warp 8                  brings the queries of a tile, what is told of it, keys and values;
//                           warps 9 .. 11 only help to list tiles
//
// Scores of the next block, of this tile or the next one, are given out before the product with the
// values of this one, so weights are made while that runs.
//
// Keys stand in a page as products take them across: [channel][position], as do values: [position]
// [channel]. What a row does not see has the score -inf and the weight +0; values behind a tile's
// last position become zeros, so that what lies in a page by chance is not added up.
//
// The sums are those of cache_many.cuh; here a request is one part (no split) and there is no
// window, which the launcher looks at.
#include "cache_prompt_tiles.cuh"

enum { PIECE = 32 };  // keys of a block whose weights are made, or left out, together

// A thread's two pairs: l is one of the four sums, a what sums are multiplied by.
struct Pairs {
  float m[2], l[2], a[2];
  int position[2];
  int least, most;  // of the warp's
};

template <int block>
struct Reader {
  typedef Loader<block> L;

  const tl_cached_args &g;
  const Places &p;
  int warpgroup;
  int row[2], place[4];  // of the thread's pairs; elements from a tile's first to those it stores
  Ring<QUERIES> q;
  Ring<L::SLOTS> k, v;

  // ---- barriers ----

  __device__ __forceinline__ void wait_tile() const {
    barrier_wait(shared_address(&p.state->q_full[q.slot]), q.parity);
  }
  __device__ __forceinline__ void wait_keys() const {
    barrier_wait(shared_address(&p.state->k_full[k.slot]), k.parity);
  }
  __device__ __forceinline__ void wait_values() const {
    barrier_wait(shared_address(&p.state->v_full[v.slot]), v.parity);
  }
  __device__ __forceinline__ void has_read(uint64_t *empty) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(empty));
  }
  __device__ __forceinline__ void keys_read() {
    has_read(&p.state->k_empty[k.slot]);
    k.next();
  }
  __device__ __forceinline__ void values_read() {
    has_read(&p.state->v_empty[v.slot]);
    v.next();
  }
  // All four warps are here.
  __device__ __forceinline__ void meet() const {
    if (warpgroup == 0)
      named_sync<128>(1);
    else
      named_sync<128>(2);
  }

  // ---- a block ----

  // Scores of the tile in slot `slot` are on their way.
  __device__ __forceinline__ void scores(int slot, float *s) const {
    const uint32_t queries = uniform(p.queries + (slot * PAIRS + 64 * warpgroup) * HALF_ROW);
    const uint64_t a = factor_at<ALONG>(queries);
    const uint64_t b = factor_at<ACROSS>(uniform(p.keys + k.slot * L::SLOT));
    products_begin();
#pragma unroll
    for (int c = 0; c < BOX / 16; c++)
      product<block, ALONG, ACROSS>::run(s, a + c * factor_step<ALONG>, b + c * factor_step<ACROSS>,
                                         c > 0);
    products_commit();
  }

  __device__ __forceinline__ void sums(const uint32_t *w, float *o) const {
    const uint64_t b = factor_at<ACROSS>(uniform(p.values + v.slot * L::SLOT));
#pragma unroll
    for (int j = 0; j < block / 16; j++)
      product<BOX, ALONG, ACROSS>::run(o, w + 4 * j, b + j * factor_step<ACROSS>, 1);
    products_commit();
  }

  // Values are there; those of positions from `seen` on become zeros. Both warpgroups do that.
  __device__ __forceinline__ void take_values(int seen) const {
    wait_values();
    if (seen >= block) return;
    const uint32_t zeros[4] = {0, 0, 0, 0};
    for (int i = seen * 8 + threadIdx.x % 128; i < block * 8; i += 128)
      store_shared(p.values + v.slot * L::SLOT + i * 16, zeros);
    fence_async();
    meet();
  }

  // Scores of the keys from `first` on become weights.
  __device__ __forceinline__ void weigh(int first, float (&s)[block / 2], Pairs &r) const {
    const int seen = r.most - first, t = threadIdx.x % 4;
    float x[2] = {-TL_INFINITY, -TL_INFINITY}, level[2];
    if (r.least - first < block - 1) {
      const int limit[2] = {r.position[0] - first - 2 * t, r.position[1] - first - 2 * t};
#pragma unroll
      for (int i = 0; i < block / 2; i++)
        if (i / 4 * 8 + i % 2 > limit[i / 2 % 2]) s[i] = -TL_INFINITY;
    }
#pragma unroll
    for (int piece = 0; piece < block / PIECE; piece++) {
      if (piece * PIECE > seen) break;
#pragma unroll
      for (int i = 0; i < PIECE / 2; i++)
        x[i / 2 % 2] = fmaxf(x[i / 2 % 2], s[piece * PIECE / 2 + i]);
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
      x[e] = fmaxf(x[e], __shfl_xor_sync(~0u, x[e], 1));
      x[e] = fmaxf(x[e], __shfl_xor_sync(~0u, x[e], 2));
      const float m = fmaxf(r.m[e], x[e]), u = m * g.factor;
      r.a[e] = fading(r.m[e] * g.factor, u);
      r.m[e] = m;
      r.l[e] = r.l[e] * r.a[e];
      level[e] = u == -TL_INFINITY ? 0.0f : u;  // no key seen so far: all weights are +0
    }
#pragma unroll
    for (int piece = 0; piece < block / PIECE; piece++) {
      float *own = s + piece * PIECE / 2;
      if (piece * PIECE <= seen) {
#pragma unroll
        for (int i = 0; i < PIECE / 2; i++) {
          own[i] = tl_exp2(fmaf(own[i], g.factor, -level[i / 2 % 2]));
          r.l[i / 2 % 2] = r.l[i / 2 % 2] + own[i];
        }
      } else {
#pragma unroll
        for (int i = 0; i < PIECE / 2; i++) own[i] = 0.0f;
      }
    }
  }

  static __device__ __forceinline__ void fade(const Pairs &r, float (&o)[BOX / 2]) {
    if (!__any_sync(~0u, r.a[0] != 1.0f || r.a[1] != 1.0f)) return;  // times 1
#pragma unroll
    for (int i = 0; i < BOX / 2; i++) o[i] = o[i] * r.a[i / 2 % 2];
  }

  // ---- a tile ----

  __device__ __forceinline__ bool works_on(const Told &told) const {
    return told.request >= 0 && 64 * warpgroup < told.count * g.group;
  }

  __device__ __forceinline__ void begin(const Told &told, Pairs &r) const {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      r.position[e] = told.position[row[e] < told.count ? row[e] : 0];
      r.m[e] = -TL_INFINITY;
      r.l[e] = 0.0f;
    }
    const int a = r.position[0], b = r.position[1];
    r.least = __reduce_min_sync(~0u, a < b ? a : b);
    r.most = __reduce_max_sync(~0u, a < b ? b : a);
  }

  static __device__ __forceinline__ void clear(float (&o)[BOX / 2]) {
#pragma unroll
    for (int i = 0; i < BOX / 2; i++) o[i] = 0.0f;
  }

  // o / l, IEEE. A rounded reciprocal and two corrections of the remainder give the rounded
  // quotient as long as nothing comes near the ends of the range (Markstein, 1990); else '/'.
  static __device__ __forceinline__ void divide(const float (&l)[2], float (&o)[BOX / 2]) {
    const float c[2] = {1.0f / l[0], 1.0f / l[1]};
    float low[4], high[4];  // four chains: one would be long
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = high[i] = l[i % 2];
#pragma unroll
    for (int i = 0; i < BOX / 2; i++) {
      low[i % 4] = fminf(low[i % 4], fabsf(o[i]));
      high[i % 4] = fmaxf(high[i % 4], fabsf(o[i]));
    }
    const float least = fminf(fminf(low[0], low[1]), fminf(low[2], low[3]));
    const float most = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3]));
    if (least > 0x1p-60f && most < 0x1p60f) {
#pragma unroll
      for (int i = 0; i < BOX / 2; i++) {
        const float d = -l[i / 2 % 2], r = c[i / 2 % 2];
        const float q = o[i] * r, better = fmaf(fmaf(q, d, o[i]), r, q);
        o[i] = fmaf(fmaf(better, d, o[i]), r, better);
      }
    } else {
#pragma unroll
      for (int i = 0; i < BOX / 2; i++) o[i] = o[i] / l[i / 2 % 2];
    }
  }

  // o / l of the pairs that there are; rounded ones by way of the place of their queries.
  __device__ __forceinline__ void store(const Told &told, int slot, const float (&l)[2],
                                        float (&o)[BOX / 2]) const {
    const int lane = threadIdx.x % 32, pairs = told.count * g.group;
    const int first = threadIdx.x / 32 * 16;  // the warp's pairs
    const int64_t heads = int64_t(told.row) * g.heads + told.kv_head * g.group;
    divide(l, o);
    if (!g.o_is_bf16) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int pair = first + lane / 4 + 8 * e;
        float *to = (float *)g.o + (heads + row[e] * (g.heads - g.group) + pair) * BOX;
        if (pair >= pairs) continue;
#pragma unroll
        for (int i = 0; i < BOX / 8; i++)
          *(float2 *)(to + 8 * i + lane % 4 * 2) =
              make_float2(o[4 * i + 2 * e], o[4 * i + 2 * e + 1]);
      }
      return;
    }
    const uint32_t at = p.queries + (slot * PAIRS + first) * HALF_ROW;
    meet();  // no product reads queries any more
#pragma unroll
    for (int i = 0; i < BOX / 16; i++) {
      const float *x = o + 8 * i;
      const int r = lane % 16;
      store_matrices(at + r * HALF_ROW + (((2 * i + lane / 16) ^ (r & 7)) << 4),
                     bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                     bf16_pair(x[6], x[7]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int r = 4 * i + lane / 8;
      const float4 bits = load_shared_f32x4(at + r * HALF_ROW + ((lane % 8 ^ (r & 7)) << 4));
      if (first + r < pairs) *(float4 *)((uint16_t *)g.o + heads * BOX + place[i]) = bits;
    }
    fence_async();
  }

  __device__ __forceinline__ void close(const Told &told, int slot, const Pairs &r,
                                        float (&o)[BOX / 2]) const {
    const float l[2] = {sum_of_four(r.l[0]), sum_of_four(r.l[1])};
    store(told, slot, l, o);
    has_read(&p.state->q_empty[slot]);
  }

  // Tiles from this one on, up to one that is not worked on, which is the next one afterwards.
  __device__ __forceinline__ void tiles() {
    uint32_t w[block / 4];
    float s[block / 2], o[BOX / 2];
    Pairs r;
    int slot = q.slot, first = 0;
    const Told *told = &p.state->told[slot];
    begin(*told, r);
    clear(o);
    wait_keys();
    scores(slot, s);
    products_wait<0>();
    hold<block / 2>(s);
    keys_read();
    weigh(0, s, r);
    round_sums<block>(s, w);
    while (true) {
      const int last = told->last;
      const bool ends = first + block > last;
      if (ends) {
        q.next();
        wait_tile();
        if (!works_on(p.state->told[q.slot])) break;
      }
      wait_keys();
      take_values(last + 1 - first);
      scores(q.slot, s);
      sums(w, o);
      products_wait<1>();
      hold<block / 2>(s);
      keys_read();
      const Pairs before = r;
      first = ends ? 0 : first + block;
      if (ends) begin(p.state->told[q.slot], r);
      weigh(first, s, r);
      products_wait<0>();
      hold<BOX / 2>(o);
      values_read();
      round_sums<block>(s, w);
      if (ends) {
        close(*told, slot, before, o);
        clear(o);
        slot = q.slot;
        told = &p.state->told[slot];
      } else {
        fade(r, o);
      }
    }
    take_values(told->last + 1 - first);
    products_begin();
    sums(w, o);
    products_wait<0>();
    hold<BOX / 2>(o);
    values_read();
    close(*told, slot, r, o);
  }

  // A row that is none: +0; one whose request or position there is not: NaN.
  __device__ __forceinline__ void fill(const Told &told) const {
    const uint32_t bits = told.request == NONE ? 0 : 0x7fffffffu;
    const int count = g.group * BOX;
#pragma unroll 1
    for (int i = threadIdx.x; i < told.count * count; i += READER_THREADS) {
      const int row = i / count;
      const int64_t heads = int64_t(told.row + row) * g.heads + told.kv_head * g.group;
      const int64_t at = heads * BOX + i - row * count;
      if (g.o_is_bf16)
        ((uint16_t *)g.o)[at] = uint16_t(bits >> 16);
      else
        ((uint32_t *)g.o)[at] = bits;
    }
  }

  // A tile that has no pairs for this warpgroup.
  __device__ __forceinline__ void skip(const Told &told) {
#pragma unroll 1
    for (int first = 0; told.request >= 0 && first <= told.last; first += block) {
      wait_keys();
      keys_read();
      wait_values();
      values_read();
    }
    if (told.request < 0) fill(told);
    has_read(&p.state->q_empty[q.slot]);
    q.next();
  }

  static __device__ __forceinline__ void run(const tl_cached_prompt_args &k, const Places &p) {
    Reader reader = {k.a, p, __shfl_sync(~0u, int(threadIdx.x / 128), 0)};
    const int first = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 2; e++) reader.row[e] = (first + lane / 4 + 8 * e) / k.a.group;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int pair = first + 4 * i + lane / 8, row = pair / k.a.group;
      reader.place[i] = (row * (k.a.heads - k.a.group) + pair) * BOX + lane % 8 * 8;
    }
    while (true) {
      reader.wait_tile();
      const Told &told = p.state->told[reader.q.slot];
      if (told.request == END) return;
      if (reader.works_on(told))
        reader.tiles();
      else
        reader.skip(told);
    }
  }
};

template <int block>
GPU void attend(const tl_cached_prompt_args &k) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Places p = places_of(shared, k.a.at.rows);
  next_begin();
  if (threadIdx.x < Loader<block>::SLOTS) {
    barrier_make(shared_address(&p.state->k_full[threadIdx.x]), 1);
    barrier_make(shared_address(&p.state->k_empty[threadIdx.x]), READERS);
    barrier_make(shared_address(&p.state->v_full[threadIdx.x]), 1);
    barrier_make(shared_address(&p.state->v_empty[threadIdx.x]), READERS);
  }
  if (threadIdx.x < QUERIES) {
    barrier_make(shared_address(&p.state->q_full[threadIdx.x]), 1);
    barrier_make(shared_address(&p.state->q_empty[threadIdx.x]), READERS);
  }
  barriers_made();
  if (threadIdx.x == 0) map_prefetch(&k.q), map_prefetch(&k.keys), map_prefetch(&k.values);
  if (!k.a.ahead) earlier_wait();
  list_tiles(k.a, p);
  if (threadIdx.x >= READER_THREADS) {
    registers_fewer<56>();
    if (threadIdx.x < READER_THREADS + 32)
      Loader<block>::run(k, p);
    else if (k.a.ahead)
      earlier_wait();
  } else {
    registers_more<224>();
    if (k.a.ahead) earlier_wait();
    Reader<block>::run(k, p);
  }
}

#define KERNEL(block)                                                                       \
  extern "C" __global__ void __launch_bounds__(TL_CACHED_PROMPT_THREADS, 1)                 \
      attention_cached_prompt_64_##block(const __grid_constant__ tl_cached_prompt_args k) { \
    attend<block>(k);                                                                       \
  }
KERNEL(64)
KERNEL(128)
