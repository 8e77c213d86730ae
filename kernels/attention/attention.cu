// attention.cu - the forward pass of bf16 heads. attention.h says what, attention_args.h for whom.
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
    KEYS = ROWS * PITCH,  // queries stand before
    VALUES = KEYS + chunk * PITCH,
    TOTAL = VALUES + chunk * PITCH  // O of the parts before this one, [4 i + e][thread]
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

  // Scores of `count` keys from `first` on: into the maximum, then into weights.
  static __device__ __forceinline__ void soften(const tl_attention_args &g, const Keys<chunk> &at,
                                                const WarpRows &own, int row, Scores &s,
                                                State &state) {
    const int first = at.chunk, count = at.count(g);
    const Seen seen[2] = {keys_seen(g, row, first, count), keys_seen(g, row + 8, first, count)};
    const bool some = some_see(g, own, first, count);
    const bool all = count == chunk && all_see(g, own, first, count);
    if (at.measures()) {
      if (some && all) measure<false>(s, seen, state);
      if (some && !all) measure<true>(s, seen, state);
      if (at.ends_block(g)) raise(g, state);
    }
    if (!at.weighs(g)) return;
    if (some && all) weigh<false>(g, seen, s, state);
    if (some && !all) weigh<true>(g, seen, s, state);
  }

  static __device__ __forceinline__ void load_keys(const tl_attention_args &g, const Piece &p,
                                                   const Keys<chunk> &at, int kv_head,
                                                   const tl_attention_matrix &from, uint32_t to) {
    load_rows<width, chunk, THREADS>(from, int64_t(p.start) + at.chunk, kv_head, at.count(g), to);
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p, int head,
                                               unsigned char *shared) {
    const uint32_t base = shared_address(shared);
    const WarpRows own = warp_rows(p);
    const int row = own.first + threadIdx.x % 32 / 4, kv_head = head / g.group;
    Keys<chunk> at = Keys<chunk>::begin(g, p);
    State state;
    Total total = {
        {0.0f,  0.0f },
        {0.0f,  0.0f },
        {false, false}
    };
    int part_first = at.first;
    begin_part(state);
    __syncthreads();  // the piece before has been read
    load_rows<width, ROWS, THREADS>(g.q, int64_t(p.start) + p.offset, head, p.count, base);
    load_keys(g, p, at, kv_head, g.k, base + KEYS);
    copy_commit();
#pragma unroll 1
    while (!at.done()) {
      const Keys<chunk> now = at;
      const bool some = some_see(g, own, now.chunk, now.count(g));
      Scores s;
      if (now.weighs(g)) load_keys(g, p, now, kv_head, g.v, base + VALUES);
      copy_commit();
      copy_wait<1>();
      __syncthreads();  // keys are there
      if (some)
        multiply_along<width, chunk>(place_a<width>(base, own.first - p.offset),
                                     place_along<width>(base + KEYS), s);
      __syncthreads();  // keys have been read
      at.next(g);
      if (!at.done()) load_keys(g, p, at, kv_head, g.k, base + KEYS);
      copy_commit();
      soften(g, now, own, row, s, state);
      if (now.weighs(g)) {
        copy_wait<1>();
        __syncthreads();  // values are there
        if (some) add_values(place_across<width>(base + VALUES), s, own.last - now.chunk, state);
        __syncthreads();  // and have been read
      }
      if (!now.ends_part(g)) continue;
      const bool is_only = at.done() && part_first == at.first;
      end_part(g, row, part_first, now.block_end(g), is_only, at.done(), (float *)(shared + TOTAL),
               total, state);
      if (at.done()) break;
      begin_part(state);
      part_first = now.block_end(g);
    }
    if (own.first <= own.last) finish(g, p, head, row, total, state);
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

#define KERNEL(width, chunk, warps)                                                   \
  extern "C" __global__ void __launch_bounds__(32 * (warps), 1)                       \
      attention_bf16_##width##_##chunk(const __grid_constant__ tl_attention_args g) { \
    Forward<width, chunk, warps>::run(g);                                             \
  }
TL_ATTENTION_BF16(KERNEL)
