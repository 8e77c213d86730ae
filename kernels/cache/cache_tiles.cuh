/* cache_tiles.cuh - keys and values of pages on their way to shared memory.
**
**   keys     [channel][position]    as a page has them: a product takes them transposed
**   values   [position][channel]    the same
**
** A ring of tiles is filled ahead, in the order in which they are used: keys of a chunk of
** positions, values of the chunk, .. Values of positions outside first .. last are zeros, so that
** what lies in a page by chance is never added up.
**
**   block     | 0 .. 127            | 128 .. 255          | ..
**   chunks    | 0 .. 127            | 128 .. 255          |    a longer block has several
**   tiles     keys, .., values, ..    keys, .., values, ..
*/
#ifndef TL_CACHE_TILES_CUH
#define TL_CACHE_TILES_CUH

#include "../attention/attention_bf16.cuh"
#include "cache_device.cuh"

/* What a block of threads reads of a request. */
struct Stretch {
  int request, kv_head;
  int first, last;  // positions that some row sees
  bool knows;       // all pages fit the lanes of a warp: `own` is the page of this lane's entry
  int own;
};

/* A place in the order of tiles. */
template <int chunk>
struct Tile {
  int block, at;  // positions
  int values;

  GPU Tile begin(const tl_cached_args &g, const Stretch &s) {
    Tile t = {s.first / g.kv_block * g.kv_block, 0, 0};
    t.rewind(s);
    return t;
  }
  __device__ __forceinline__ void rewind(const Stretch &s) {
    at = s.first > block ? block + (s.first - block) / chunk * chunk : block;
  }
  __device__ __forceinline__ bool done(const Stretch &s) const { return block > s.last; }
  __device__ __forceinline__ int end(const tl_cached_args &g, const Stretch &s) const {
    return s.last - block < g.kv_block ? s.last + 1 : block + g.kv_block;
  }
  __device__ __forceinline__ bool begins(const Stretch &s) const {
    return at <= (s.first > block ? s.first : block);
  }
  __device__ __forceinline__ bool ends(const tl_cached_args &g, const Stretch &s) const {
    return at + chunk >= end(g, s);
  }
  __device__ __forceinline__ void next(const tl_cached_args &g, const Stretch &s) {
    if (!ends(g, s)) {
      at += chunk;
      return;
    }
    if (values) {
      if (s.last - block < g.kv_block) {
        block = s.last + 1;  // done
        return;
      }
      block += g.kv_block;
    }
    values = !values;
    rewind(s);
  }
};

/* The pages of a chunk, an entry a lane: one read of the table, then shuffles. */
struct Pages {
  int own, first;

  GPU Pages from(const tl_cached_args &g, const Stretch &s, int first) {
    Pages p = {-1, first};
    const int entry = p.first + threadIdx.x % 32;
    if (entry << g.at.shift <= s.last)
      p.own = g.at.table[(int64_t)s.request * g.at.pages_max + entry];
    if (p.own >= g.at.pages) p.own = -1;
    return p;
  }
  GPU Pages of(const tl_cached_args &g, const Stretch &s, int at) {
    if (s.knows) return {s.own, 0};
    return from(g, s, at >> g.at.shift);
  }
  /* All lanes ask. */
  __device__ __forceinline__ int find(const tl_cached_args &g, int position) const {
    return __shfl_sync(~0u, own, (position >> g.at.shift) - first);
  }
};

/* 8 elements of a channel one by one: positions from `position` on. */
GPU void gather_positions(const tl_cached_args &g, const Stretch &s, int position, int channel,
                          uint32_t to) {
  uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int p = position + i;
    if (p < s.first || p > s.last || channel >= g.width) continue;
    const int64_t page = page_of(g.at, s.request, p);
    if (page < 0) continue;
    const uint16_t *from = (const uint16_t *)g.keys +
                           ((page * g.kv_heads + s.kv_head) * g.width + channel) * g.at.page;
    words[i / 2] |= uint32_t(from[page_place(g.at, p)]) << (i % 2 * 16);
  }
  store_shared(to, words);
}

/* Positions past the last one are read where their page has them: what they give is not used. */
template <int width, int chunk, int threads>
GPU void load_keys(const tl_cached_args &g, const Stretch &s, int at, uint32_t to) {
  constexpr int all = width * chunk / 8;
  if (!g.pages_are_shared) {
#pragma unroll 1
    for (int i = threadIdx.x; i < all; i += threads)
      gather_positions(g, s, at + i / width * 8, i % width,
                       to + i % width * (2 * chunk + 16) + i / width * 16);
    return;
  }
  // neighbours take what lies side by side: pieces of a page, then its channels, then pages
  const int side = (1 << g.at.shift < chunk ? g.at.shift : chunk == 128 ? 7 : 6) - 3;
  const Pages pages = Pages::of(g, s, at);
#pragma unroll(width < 256 ? 4 : 1)
  for (int round = 0; round < all / threads; round++) {
    const int i = round * threads + threadIdx.x, channel = (i >> side) % width;
    const int piece = ((i >> side) / width << side) + (i & ((1 << side) - 1));
    const int position = at + 8 * piece, page = pages.find(g, position);
    const bool there = page >= 0 && position <= s.last && channel < g.width;
    const int64_t row = ((int64_t)page * g.kv_heads + s.kv_head) * g.width + channel;
    const uint16_t *from =
        (const uint16_t *)g.keys + (row << g.at.shift) + (position & (g.at.page - 1));
    copy_async(to + channel * (2 * chunk + 16) + piece * 16, there ? from : g.keys, there ? 16 : 0);
  }
}

template <int width, int chunk, int threads>
GPU void gather_values(const tl_cached_args &g, const Stretch &s, int at, uint32_t to) {
  constexpr int pieces = width / 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < chunk * pieces; i += threads) {
    const int position = at + i / pieces, channel = i % pieces * 8;
    const bool is_seen = position >= s.first && position <= s.last;
    const int64_t page = is_seen ? page_of(g.at, s.request, position) : -1;
    const int64_t row = (page * g.at.page + page_place(g.at, position)) * g.kv_heads + s.kv_head;
    gather(to + i / pieces * TL_ATTENTION_PITCH(width) + channel * 2,
           (const uint16_t *)g.values + row * g.value_width + channel,
           page < 0 ? 0 : g.value_width - channel);
  }
}

template <int width, int chunk, int threads>
GPU void load_values(const tl_cached_args &g, const Stretch &s, int at, uint32_t to) {
  constexpr int pieces = width / 8, all = chunk * pieces;
  if (!g.pages_are_shared) return gather_values<width, chunk, threads>(g, s, at, to);
  const Pages pages = Pages::of(g, s, at);
#pragma unroll(width < 256 ? 4 : 1)
  for (int round = 0; round < all / threads; round++) {
    const int i = round * threads + threadIdx.x;
    const int position = at + i / pieces, channel = i % pieces * 8;
    const int page = pages.find(g, position);
    const bool there =
        page >= 0 && position >= s.first && position <= s.last && channel < g.value_width;
    const int64_t row =
        (((int64_t)page << g.at.shift) + (position & (g.at.page - 1))) * g.kv_heads + s.kv_head;
    const uint16_t *from = (const uint16_t *)g.values + row * g.value_width + channel;
    copy_async(to + i / pieces * TL_ATTENTION_PITCH(width) + channel * 2, there ? from : g.values,
               there ? 16 : 0);
  }
}

/* The threads that share tiles; others of their block may be at something else. */
template <int threads>
GPU void tiles_meet(void) {
  asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

/* The ring: `slots` - 1 tiles are on their way while one is used. */
template <int width, int chunk, int slots, int threads>
struct Ring {
  uint32_t base;
  Tile<chunk> ahead;
  int filled, used;

  GPU Ring begin(const tl_cached_args &g, const Stretch &s, uint32_t base) {
    Ring r = {base, Tile<chunk>::begin(g, s), 0, 0};
#pragma unroll 1
    for (int i = 0; i < slots - 1; i++) r.fill(g, s);
    return r;
  }
  __device__ __forceinline__ void fill(const tl_cached_args &g, const Stretch &s) {
    if (!ahead.done(s)) {
      const uint32_t to = base + filled % slots * TL_CACHED_TILE(width, chunk);
      if (ahead.values)
        load_values<width, chunk, threads>(g, s, ahead.at, to);
      else
        load_keys<width, chunk, threads>(g, s, ahead.at, to);
      ahead.next(g, s);
      filled++;
    }
    copy_commit();
  }
  /* The next tile, for all threads; the one before it has been used by all, its slot is filled. */
  __device__ __forceinline__ uint32_t take(const tl_cached_args &g, const Stretch &s) {
    copy_wait<slots - 2>();
    tiles_meet<threads>();
    const uint32_t at = base + used % slots * TL_CACHED_TILE(width, chunk);
    used++;
    fill(g, s);
    return at;
  }
};

/* acc = chains over all channels of the 16 rows at `a` with `columns` keys at `b`. */
template <int width, int chunk, int columns>
GPU void multiply_keys(uint32_t a, uint32_t b, float (&acc)[columns / 8][4]) {
#pragma unroll
  for (int i = 0; i < columns / 8; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) acc[i][e] = 0.0f;
#pragma unroll 4
  for (int k = 0; k < width / 16; k++) {
    uint32_t x[4];
    load_matrices(a + k * 32, x);
#pragma unroll
    for (int i = 0; i < columns / 16; i++) {
      uint32_t y[4];
      load_matrices_across(b + k * 16 * (2 * chunk + 16) + i * 32, y);
      step(acc[2 * i], x, y);
      step(acc[2 * i + 1], x, y + 2);
    }
  }
}

/* Where a lane reads of 16 rows that are taken transposed, `pitch` bytes apart. */
GPU uint32_t place_of_lane(uint32_t tile, int pitch) {
  const int lane = threadIdx.x % 32;
  return tile + lane % 16 * pitch + lane / 16 * 16;
}

#endif
