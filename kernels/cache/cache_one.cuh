/* cache_one.cuh - attention of one row over pages, 16 query heads of a KV head at a time.
**
** Warps share the keys of a block for the scores and the channels for O:
**
**   scores [head][key] f32   warp 0 | warp 1 | warp 2 | warp 3        of each chunk
**   weights [head][key] bf16 8 threads a head; thread 2 r of them has l_r
**   O in registers           warp 0: channels 0 .. w/4 - 1 | warp 1 | ..
*/
#ifndef TL_CACHE_ONE_CUH
#define TL_CACHE_ONE_CUH

#include "cache_tiles.cuh"

struct OneRow {
  int request, position, kv_head, done;  // done: heads of the KV head before these
};

// `pairs`: heads that shared memory has room for.
template <int width, int chunk, int slots, int pairs>
struct One {
  enum { THREADS = TL_CACHED_THREADS, OWN = width / 4, TILES = OWN / 8, PITCH = 2 * width + 16 };
  typedef Ring<width, chunk, slots, THREADS> Tiles;

  // Shared memory beside the ring.
  struct Room {
    uint32_t queries, weights;  // addresses
    float *score, *fade, *level, *sum;
    int score_pitch, weight_pitch;  // floats, bytes
  };
  // What the eight threads of a head know of its part.
  struct Level {
    float m, t, l;
  };
  typedef float Sums[TILES][4];
  // The parts before, for heads g and g + 8.
  struct Total {
    Sums o;
    float t[2], l[2];
    bool begun;
  };

  GPU Room room_of(const tl_cached_args &g, unsigned char *shared) {
    unsigned char *at = shared + slots * TL_CACHED_TILE(width, chunk);
    const int block = (g.kv_block + chunk - 1) / chunk * chunk;
    Room r;
    r.queries = shared_address(at);
    at += TL_CACHED_QUERIES(width, pairs);
    r.fade = (float *)at, r.level = r.fade + 16, r.sum = r.level + 16;
    at += TL_CACHED_STATE;
    r.score = (float *)at, r.score_pitch = block + 4;
    r.weights = shared_address(at + TL_CACHED_SCORES(block));
    r.weight_pitch = 2 * block + 16;
    return r;
  }

  GPU void load_queries(const tl_cached_args &g, int64_t row, const OneRow &one, const Room &room) {
    const int head = one.kv_head * g.group + one.done, count = g.group - one.done;
    const uint16_t *q = (const uint16_t *)g.q + (row * g.heads + head) * g.width;
    for (int i = threadIdx.x; i < 16 * width / 8; i += THREADS) {
      const int h = i / (width / 8), c = i % (width / 8) * 8;
      gather(room.queries + h * PITCH + c * 2, q + h * g.width + c, h < count ? g.width - c : 0);
    }
  }

  // Scores of the chunk that begins at `at` of the block.
  GPU void measure(const Room &room, uint32_t keys, int at) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int first = warp * (chunk / 4);
    float s[chunk / 32][4];
    multiply_keys<width, chunk, chunk / 4>(place_a<width>(room.queries, 0),
                                           place_of_lane(keys, 2 * chunk + 16) + first * 2, s);
    float *to = room.score + at + first + 2 * t;
#pragma unroll
    for (int i = 0; i < chunk / 32; i++) {
      *(float2 *)(to + g * room.score_pitch + 8 * i) = make_float2(s[i][0], s[i][1]);
      *(float2 *)(to + (g + 8) * room.score_pitch + 8 * i) = make_float2(s[i][2], s[i][3]);
    }
  }

  // Scores low .. high - 1 of the block become weights; those beside them, in steps of 16, +0.
  GPU void soften(const tl_cached_args &g, const Room &room, int low, int high, Level &s) {
    const int head = threadIdx.x / 8, own = threadIdx.x % 8;
    const float *score = room.score + head * room.score_pitch;
    const int begin = low / 16 * 16, end = (high + 15) / 16 * 16;
    for (int j = begin + own; j < high; j += 8)
      if (j >= low) s.m = fmaxf(s.m, score[j]);
#pragma unroll
    for (int step = 1; step < 8; step *= 2) s.m = fmaxf(s.m, __shfl_xor_sync(~0u, s.m, step));
    const float u = s.m * g.factor, a = fading(s.t, u);
    s.t = u;
    s.l = s.l * a;
    if (own == 0) room.fade[head] = a;
#pragma unroll 4
    for (int j = begin + own; j < end; j += 8) {
      const bool seen = j >= low && j < high;
      const float p = seen ? tl_exp2(fmaf(score[j], g.factor, -u)) : 0.0f;
      const float odd = __shfl_down_sync(~0u, p, 1);
      s.l = s.l + p;
      s.l = s.l + odd;
      const uint32_t to = room.weights + head * room.weight_pitch + 2 * j;
      if (own % 2 == 0)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(bf16_pair(p, odd)) : "memory");
    }
  }

  // O resumes over the values of a chunk; steps low .. high - 1 of the block.
  GPU void add_values(const Room &room, uint32_t values, int at, int low, int high, Sums &o) {
    const int warp = threadIdx.x / 32;
    const uint32_t from = place_of_lane(values, TL_ATTENTION_PITCH(width)) + warp * OWN * 2;
    const uint32_t weights = place_of_lane(room.weights, room.weight_pitch);
    const int begin = low > at ? low : at, end = high < at + chunk ? high : at + chunk;
#pragma unroll 2
    for (int j = begin / 16 * 16; j < end; j += 16) {
      uint32_t a[4];
      load_matrices(weights + j * 2, a);
#pragma unroll
      for (int i = 0; i < TILES / 2; i++) {
        uint32_t b[4];
        load_matrices_across(from + (j - at) * TL_ATTENTION_PITCH(width) + i * 32, b);
        step(o[2 * i], a, b);
        step(o[2 * i + 1], a, b + 2);
      }
    }
  }

  GPU void fade(const Room &room, Sums &o) {
    const int g = threadIdx.x % 32 / 4;
    const float a[2] = {room.fade[g], room.fade[g + 8]};
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) o[i][e] = o[i][e] * a[e / 2];
  }

  GPU void end_part(const Room &room, const Level &s, Sums &o, Total &total) {
    const int g = threadIdx.x % 32 / 4, own = threadIdx.x % 8;
    float l = s.l;  // of l_r, r = own / 2
    l = l + __shfl_xor_sync(~0u, l, 2);
    l = l + __shfl_xor_sync(~0u, l, 4);
    if (own == 0) room.level[threadIdx.x / 8] = s.t, room.sum[threadIdx.x / 8] = l;
    tiles_meet<THREADS>();
    Merge m[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
      m[r] = merge(total.begun, true, total.t[r], total.l[r], room.level[g + 8 * r],
                   room.sum[g + 8 * r]);
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        total.o[i][e] = total.begun ? merged(m[e / 2], total.o[i][e], o[i][e]) : o[i][e];
        o[i][e] = 0.0f;
      }
    total.begun = true;
    tiles_meet<THREADS>();  // level and sum have been read
  }

  GPU void store(const tl_cached_args &g, int64_t row, const OneRow &one, const Total &total) {
    const int lane = threadIdx.x % 32, count = g.group - one.done;
    const int64_t first = row * g.heads + one.kv_head * g.group + one.done;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int head = lane / 4 + e / 2 * 8;
        const int channel = threadIdx.x / 32 * OWN + 8 * i + lane % 4 * 2 + e % 2;
        if (head >= count || channel >= g.value_width) continue;
        const float y = total.o[i][e] / total.l[e / 2];
        const int64_t at = (first + head) * g.value_width + channel;
        if (g.o_is_bf16)
          ((uint16_t *)g.o)[at] = uint16_t(bf16_pair(y, 0.0f));
        else
          ((float *)g.o)[at] = y;
      }
  }

  GPU Stretch stretch_of(const tl_cached_args &g, const OneRow &one) {
    const int oldest = one.position - g.window + 1;
    return {one.request, one.kv_head, oldest > 0 ? oldest : 0, one.position, false, 0};
  }

  // What a row may begin with before keys and values of this step are there: pages, and the first
  // tiles, where earlier steps fill them. False: there are no such tiles.
  GPU bool begin(const tl_cached_args &g, const OneRow &one, unsigned char *shared, Stretch &s,
                 Tiles &ring) {
    s = stretch_of(g, one);
    s.knows = g.pages_are_shared && one.position >> g.at.shift < 32;
    if (s.knows) s.own = Pages::from(g, s, 0).own;
    const int block = s.first / g.kv_block * g.kv_block;
    if (block + (slots - 1) * chunk + g.at.rows > one.position) return false;
    ring = Tiles::begin(g, s, shared_address(shared));
    return true;
  }

  GPU void run(const tl_cached_args &g, int64_t row, const OneRow &one, unsigned char *shared) {
    const Stretch s = stretch_of(g, one);
    tiles_meet<THREADS>();  // heads before these are through
    run(g, row, one, shared, s, Tiles::begin(g, s, shared_address(shared)));
  }

  GPU void run(const tl_cached_args &g, int64_t row, const OneRow &one, unsigned char *shared,
               const Stretch &s, Tiles ring) {
    const Room room = room_of(g, shared);
    Level level = {-TL_INFINITY, -TL_INFINITY, 0.0f};
    Sums o = {};
    Total total = {};
    Tile<chunk> now = Tile<chunk>::begin(g, s);
    load_queries(g, row, one, room);
#pragma unroll 1
    while (!now.done(s)) {
      const Tile<chunk> tile = now;
      const int low = s.first > tile.block ? s.first - tile.block : 0;
      const int high = tile.end(g, s) - tile.block;
      const uint32_t at = ring.take(g, s);
      now.next(g, s);
      if (!tile.values) {
        measure(room, at, tile.at - tile.block);
        if (!tile.ends(g, s)) continue;
        tiles_meet<THREADS>();  // all scores are there
        soften(g, room, low, high, level);
        continue;
      }
      if (tile.begins(s)) fade(room, o);
      add_values(room, at, tile.at - tile.block, low, high, o);
      if (!tile.ends(g, s)) continue;
      if (!now.done(s) && (tile.block + g.kv_block) % g.split != 0) continue;
      end_part(room, level, o, total);
      level = {-TL_INFINITY, -TL_INFINITY, 0.0f};
    }
    copy_wait<0>();
    store(g, row, one, total);
  }
};

GPU void fill_row(const tl_cached_args &g, int64_t row, int kv_head, uint32_t bits) {
  const int count = g.group * g.value_width;
  const int64_t first = row * g.heads * g.value_width + (int64_t)kv_head * count;
  for (int i = threadIdx.x; i < count; i += TL_CACHED_THREADS) {
    if (g.o_is_bf16)
      ((uint16_t *)g.o)[first + i] = uint16_t(bits >> 16);
    else
      ((uint32_t *)g.o)[first + i] = bits;
  }
}

template <int width, int chunk, int slots, int pairs>
GPU void attend_row(const tl_cached_args &g, int row, int request, int position, int kv_head,
                    unsigned char *shared) {
  if (request < 0) return fill_row(g, row, kv_head, 0);
  if (!is_place(g.at, request, position)) return fill_row(g, row, kv_head, 0x7fffffffu);
  for (int done = 0; done < g.group; done += 16)
    One<width, chunk, slots, pairs>::run(g, row, {request, position, kv_head, done}, shared);
}

#endif
