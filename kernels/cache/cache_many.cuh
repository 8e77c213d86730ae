/* cache_many.cuh - attention of rows of one request over its pages, as in a chunk of a prompt.
**
** Pairs of a row and a query head stand below each other, 16 of them a warp; what a pair sees ends
** at its row's own position:
**
**   pair      0 .. H/G - 1    H/G .. 2 H/G - 1   ..
**   row       0               1                  ..
**
** Blocks of keys are no longer than a chunk here: scores and weights of a block stay in registers,
** as in attention.cu.
*/
#ifndef TL_CACHE_MANY_CUH
#define TL_CACHE_MANY_CUH

#include "cache_tiles.cuh"

template <int width, int chunk, int slots>
struct Many {
  enum { THREADS = TL_CACHED_THREADS, PITCH = 2 * width + 16, PAIRS = TL_CACHED_VECTORS };
  typedef Ring<width, chunk, slots, THREADS> Tiles;
  typedef float Scores[chunk / 8][4];

  struct State {
    float o[width / 8][4];
    float m[2], t[2], l[2];
  };
  struct Total {
    float t[2], l[2];
    bool begun[2];
  };
  // The pairs of this thread and their warp.
  struct Own {
    int position[2];  // of pairs g and g + 8; -1: there is no such pair
    int first, last;  // positions that some pair of the warp sees
  };

  GPU Own own_of(const tl_cached_args &g, int row, int count) {
    Own own;
    own.first = 0x7fffffff, own.last = -1;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int pair = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
      const int position = pair < count * g.group ? g.at.position[row + pair / g.group] : -1;
      const int oldest = position - g.window + 1;
      own.position[r] = position;
      if (position < 0) continue;
      own.last = position > own.last ? position : own.last;
      own.first = oldest < own.first ? oldest : own.first;
    }
    own.first = __reduce_min_sync(~0u, own.first);
    own.last = __reduce_max_sync(~0u, own.last);
    return own;
  }

  GPU Stretch stretch_of(const tl_cached_args &g, int row, int count, int request, int kv_head) {
    int least = 0x7fffffff, most = 0;
    for (int i = 0; i < count; i++) {
      const int position = g.at.position[row + i];
      least = position < least ? position : least;
      most = position > most ? position : most;
    }
    const int oldest = least - g.window + 1;
    return {request, kv_head, oldest > 0 ? oldest : 0, most};
  }

  GPU void load_queries(const tl_cached_args &g, int64_t row, int count, int kv_head, uint32_t to) {
    for (int i = threadIdx.x; i < PAIRS * width / 8; i += THREADS) {
      const int pair = i / (width / 8), c = i % (width / 8) * 8, there = pair < count * g.group;
      const int64_t head = (row + pair / g.group) * g.heads + kv_head * g.group + pair % g.group;
      const uint16_t *q = (const uint16_t *)g.q + (there ? head * g.width + c : 0);
      gather(to + pair * PITCH + c * 2, q, there ? g.width - c : 0);
    }
  }

  GPU void begin_part(State &s) {
    clear<width>(s.o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      s.m[r] = s.t[r] = -TL_INFINITY;
      s.l[r] = 0.0f;
    }
  }

  // Scores become weights, and O fades.
  GPU void soften(const tl_cached_args &g, const Seen (&seen)[2], Scores &s, State &state) {
    const int t = threadIdx.x % 4;
    float a[2];
#pragma unroll
    for (int i = 0; i < chunk / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (is_in(seen[e / 2], 8 * i + 2 * t + e % 2))
          state.m[e / 2] = fmaxf(state.m[e / 2], s[i][e]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      state.m[r] = fmaxf(state.m[r], __shfl_xor_sync(~0u, state.m[r], 1));
      state.m[r] = fmaxf(state.m[r], __shfl_xor_sync(~0u, state.m[r], 2));
      const float u = state.m[r] * g.factor;
      a[r] = fading(state.t[r], u);
      state.t[r] = u;
      state.l[r] = state.l[r] * a[r];
    }
#pragma unroll
    for (int i = 0; i < chunk / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const bool is_seen = is_in(seen[e / 2], 8 * i + 2 * t + e % 2);
        const float p = is_seen ? weight(g, s[i][e], state.t[e / 2]) : 0.0f;
        state.l[e / 2] = state.l[e / 2] + p;
        s[i][e] = p;
      }
    if (__all_sync(~0u, a[0] == 1.0f && a[1] == 1.0f)) return;  // times 1
#pragma unroll
    for (int i = 0; i < width / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) state.o[i][e] = state.o[i][e] * a[e / 2];
  }

  GPU float weight(const tl_cached_args &g, float score, float level) {
    return tl_exp2(fmaf(score, g.factor, -level));
  }

  // As End of attention.cu: merges a part into the total, whose O waits in `kept`.
  GPU void end_part(const tl_cached_args &g, const Own &own, int first, int end, bool is_only,
                    bool is_last, volatile float *kept, Total &total, State &s) {
    Merge m[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float l = sum_of_four(s.l[r]);
      const bool sees = own.position[r] >= first && own.position[r] - g.window + 1 < end;
      m[r] = merge(total.begun[r], sees, total.t[r], total.l[r], s.t[r], l);
      total.begun[r] = total.begun[r] || sees;
    }
    if (is_only) return;
    kept += threadIdx.x;
#pragma unroll
    for (int i = 0; i < width / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float o = s.o[i][e];
        if (m[e / 2].begun) o = merged(m[e / 2], kept[(4 * i + e) * THREADS], o);
        kept[(4 * i + e) * THREADS] = o;
        if (is_last) s.o[i][e] = o;
      }
  }

  GPU void store(const tl_cached_args &g, int row, int count, int kv_head, const Total &total,
                 const State &s) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int pair = threadIdx.x / 32 * 16 + lane / 4 + 8 * r;
      if (pair >= count * g.group) continue;
      const int64_t head =
          int64_t(row + pair / g.group) * g.heads + kv_head * g.group + pair % g.group;
      const tl_attention_output out = {g.o, g.value_width, g.value_width, g.o_is_bf16,
                                       g.value_width % 2 == 0};
#pragma unroll
      for (int i = 0; i < width / 8; i++)
        store_two(out, head, 0, 8 * i + lane % 4 * 2, s.o[i][2 * r] / total.l[r],
                  s.o[i][2 * r + 1] / total.l[r]);
    }
  }

  GPU void run(const tl_cached_args &g, int row, int count, int request, int kv_head,
               unsigned char *shared) {
    const Own own = own_of(g, row, count);
    const Stretch s = stretch_of(g, row, count, request, kv_head);
    const uint32_t queries = shared_address(shared) + slots * TL_CACHED_TILE(width, chunk);
    float *kept = (float *)(shared + TL_CACHED_SHARED(width, chunk, slots, PAIRS, chunk));
    State state;
    Total total = {};
    Scores scores;
    int part_first = s.first;
    begin_part(state);
    Tile<chunk> now = Tile<chunk>::begin(g, s);
    Tiles ring = Tiles::begin(g, s, shared_address(shared));
    load_queries(g, row, count, kv_head, queries);
#pragma unroll 1
    while (!now.done(s)) {
      const uint32_t keys = ring.take(g, s);
      const int first = now.at, end = now.end(g, s);
      const bool some = own.last >= first && own.first < end;
      if (some) {
        const Seen seen[2] = {seen_of(g, own.position[0], first, end),
                              seen_of(g, own.position[1], first, end)};
        multiply_keys<width, chunk, chunk>(place_a<width>(queries, threadIdx.x / 32 * 16),
                                           place_of_lane(keys, 2 * chunk + 16), scores);
        soften(g, seen, scores, state);
      }
      now.next(g, s);  // to the values
      const uint32_t values = ring.take(g, s);
      now.next(g, s);
#pragma unroll
      for (int i = 0; i < chunk / 16; i++) {
        if (!some || first + 16 * i > own.last) break;
        uint32_t a[4];
        round_weights<chunk>(scores, i, a);
        multiply_across<width>(a, place_of_lane(values, PITCH) + i * 16 * PITCH, state.o);
      }
      const int border = first / g.kv_block * g.kv_block + g.kv_block;
      if (!now.done(s) && border % g.split != 0) continue;
      end_part(g, own, part_first, border, now.done(s) && part_first == s.first, now.done(s), kept,
               total, state);
      if (now.done(s)) break;
      begin_part(state);
      part_first = border;
    }
    copy_wait<0>();
    store(g, row, count, kv_head, total, state);
  }

  GPU Seen seen_of(const tl_cached_args &g, int position, int first, int end) {
    const int last = position < end ? position : end - 1;
    return {position - g.window + 1 - first, last - first};
  }
};

#endif
