// attention.cu - the forward pass of bf16 heads: attention.h says what, attention_args.h which rows.
//
// Keys and values of a chunk lie in shared memory; scores, weights and O in registers. Copies of
// the values run under the scores, copies of the next keys under the values' product:
//
//   copies     values j      keys j + 1      values j + 1
//   products      scores j        weights, O j    scores j + 1
#include "attention_bf16.cuh"

template <int width, int chunk, int warps>
struct Forward {
  enum {
    PITCH = TL_ATTENTION_PITCH(width),
    ROWS = 16 * warps,
    THREADS = 32 * warps,
    KEYS = ROWS * PITCH, // queries stand before
    VALUES = KEYS + chunk * PITCH,
    TOTAL = VALUES + chunk * PITCH // O of the parts before this one, [4 i + e][thread]
  };
  typedef float Scores[chunk / 8][4];

  // A part of rows g and g + 8; l is one of the four sums.
  struct State {
    float o[width / 8][4];
    float m[2], t[2], l[2];
  };
  // The parts before it.
  struct Total {
    float t[2], l[2];
    bool begun[2];
  };

  static __device__ __forceinline__ void begin_part(State &s) {
    clear<width>(s.o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      s.m[r] = s.t[r] = -TL_INFINITY;
      s.l[r] = 0.0f;
    }
  }

  template <bool border>
  static __device__ __forceinline__ void measure(const Scores &s, const Seen (&seen)[2],
                                                 State &state) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < chunk / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float m = fmaxf(state.m[e / 2], s[i][e]);
        if (!border || is_in(seen[e / 2], 8 * i + 2 * t + e % 2)) state.m[e / 2] = m;
      }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      state.m[r] = fmaxf(state.m[r], __shfl_xor_sync(~0u, state.m[r], 1));
      state.m[r] = fmaxf(state.m[r], __shfl_xor_sync(~0u, state.m[r], 2));
    }
  }

  // After all keys of a block were measured.
  static __device__ __forceinline__ void raise(const tl_attention_args &g, State &s) {
    float a[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float u = s.m[r] * g.factor;
      a[r] = fading(s.t[r], u);
      s.t[r] = u;
      s.l[r] = s.l[r] * a[r];
    }
    if (__all_sync(~0u, a[0] == 1.0f && a[1] == 1.0f)) return;  // times 1
#pragma unroll
    for (int i = 0; i < width / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) s.o[i][e] = s.o[i][e] * a[e / 2];
  }

  template <bool border>
  static __device__ __forceinline__ void weigh(const tl_attention_args &g, const Seen (&seen)[2],
                                               Scores &s, State &state) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < chunk / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        float p = weight(g, s[i][e], state.t[e / 2]);
        if (border && !is_in(seen[e / 2], 8 * i + 2 * t + e % 2)) p = 0.0f;
        state.l[e / 2] = state.l[e / 2] + p;
        s[i][e] = p;
      }
  }

  static __device__ __forceinline__ void add_values(uint32_t values, const Scores &p, int last,
                                                    State &state) {
#pragma unroll
    for (int i = 0; i < chunk / 16; i++) {
      if (16 * i > last) break;  // no row of the warp sees these
      uint32_t a[4];
      round_weights<chunk>(p, i, a);
      multiply_across<width>(a, values + i * 16 * PITCH, state.o);
    }
  }

  // Merges a part into the total, which the last part takes back into `s`. The two loops stay
  // apart (volatile): together they need more registers than there are.
  static __device__ __forceinline__ void end_part(const tl_attention_args &g, int row, int first,
                                                  int end, bool is_only, bool is_last,
                                                  volatile float *kept, Total &total, State &s) {
    Merge m[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = row + 8 * r;
      const float l = sum_of_four(s.l[r]);
      const bool sees = i >= first && i - g.window + 1 < end;
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
      }
    if (!is_last) return;
#pragma unroll
    for (int i = 0; i < width / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        s.o[i][e] = kept[(4 * i + e) * THREADS];
      }
  }

  static __device__ __forceinline__ void finish(const tl_attention_args &g, const Piece &p,
                                                int head, int row, const Total &total, State &s) {
    const int warp_row = threadIdx.x / 32 * 16;
    const int64_t packed = int64_t(p.start) + p.offset + warp_row;
#pragma unroll
    for (int i = 0; i < width / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) s.o[i][e] = s.o[i][e] / total.l[e / 2];
    store_rows<width>(g.out, packed, head, p.count - warp_row, 1.0f, s.o);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int i = row + 8 * r;
      if (threadIdx.x % 4 == 0 && i < p.offset + p.count)
        g.lse[(int64_t(p.start) + i) * g.heads + head] = total.t[r] + tl_log2(total.l[r]);
    }
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p, int head,
                                               unsigned char *shared) {
    const uint32_t base = shared_address(shared);
    const int warp_row = threadIdx.x / 32 * 16, row = p.offset + warp_row + threadIdx.x % 32 / 4;
    const int kv_head = head / g.group;
    const uint32_t a = place_a<width>(base, warp_row);
    const uint32_t keys = place_along<width>(base + KEYS);
    const uint32_t values = place_across<width>(base + VALUES);
    // Rows of this warp: warp_first .. warp_last; past the piece there are none.
    const int warp_first = p.offset + warp_row;
    const int warp_last = warp_row + 16 < p.count ? warp_first + 15 : p.offset + p.count - 1;
    Keys<chunk> at = Keys<chunk>::begin(g, p);
    State state;
    Total total = {{0.0f, 0.0f}, {0.0f, 0.0f}, {false, false}};
    int part_first = at.first;
    begin_part(state);
    __syncthreads();  // the piece before has been read
    load_rows<width, ROWS, THREADS>(g.q, p.start + p.offset, head, p.count, base);
    load_rows<width, chunk, THREADS>(g.k, p.start + at.chunk, kv_head, at.count(g), base + KEYS);
    copy_commit();
#pragma unroll 1
    while (!at.done()) {
      const int count = at.count(g), first = at.chunk;
      const bool weighs = at.weighs(g), measures = at.measures();
      const bool ends_block = at.ends_block(g), ends_part = at.ends_part(g);
      const int part_end = at.block_end(g);
      if (weighs)
        load_rows<width, chunk, THREADS>(g.v, p.start + first, kv_head, count, base + VALUES);
      copy_commit();
      copy_wait<1>();
      __syncthreads();  // keys are there
      const Seen seen[2] = {keys_seen(g, row, first, count), keys_seen(g, row + 8, first, count)};
      const int last = warp_last - first < count - 1 ? warp_last - first : count - 1;
      const bool active = warp_first <= warp_last && last >= 0 &&
                          warp_first - g.window + 1 <= first + count - 1;
      const bool full = count == chunk && warp_first >= first + chunk - 1 &&
                        warp_first + 15 - g.window + 1 <= first;
      Scores s;
      if (active) multiply_along<width, chunk>(a, keys, s);
      __syncthreads();  // keys have been read
      at.next(g);
      if (!at.done())
        load_rows<width, chunk, THREADS>(g.k, p.start + at.chunk, kv_head, at.count(g),
                                         base + KEYS);
      copy_commit();
      if (measures) {
        if (active && full) measure<false>(s, seen, state);
        if (active && !full) measure<true>(s, seen, state);
        if (ends_block) raise(g, state);
      }
      if (weighs) {
        if (active && full) weigh<false>(g, seen, s, state);
        if (active && !full) weigh<true>(g, seen, s, state);
        copy_wait<1>();
        __syncthreads();  // values are there
        if (active) add_values(values, s, last, state);
        __syncthreads();  // and have been read
      }
      if (ends_part) {
        const bool is_only = at.done() && part_first == at.first;
        end_part(g, row, part_first, part_end, is_only, at.done(), (float *)(shared + TOTAL), total,
                 state);
        if (at.done()) break;
        begin_part(state);
        part_first = part_end;
      }
    }
    if (warp_first <= warp_last) finish(g, p, head, row, total, state);
  }

  static __device__ __forceinline__ void run(const tl_attention_args &g) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int head = int(blockIdx.x / g.tiles);
    const int first = int(g.tiles - 1 - blockIdx.x % g.tiles) * ROWS;  // long rows first
    for_pieces(g, first, ROWS, [&](const Piece &p) { piece(g, p, head, shared); });
    const Unused unused = unused_rows(g, first, ROWS);
    clear_rows(g.out, unused, head, THREADS);
    for (int row = unused.begin + threadIdx.x; row < unused.end; row += THREADS)
      g.lse[int64_t(row) * g.heads + head] = -TL_INFINITY;
  }
};

#define KERNEL(width, chunk, warps)                                                             \
  extern "C" __global__ void __launch_bounds__(32 * (warps))                                    \
      attention_bf16_##width##_##chunk(const __grid_constant__ tl_attention_args g) {           \
    Forward<width, chunk, warps>::run(g);                                                       \
  }
TL_ATTENTION_BF16(KERNEL)
