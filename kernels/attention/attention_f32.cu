// attention_f32.cu - the forward pass of f32 heads: attention.h says what, attention_f32.cuh who
// works on which numbers. Of a row 4 y + r, thread 16 y + 4 r + t keeps the partial sum l_t.
#include "attention_f32.cuh"

template <int width, int chunk>
struct Forward {
  typedef float Scores[4][chunk / 16];

  struct State {
    float o[4][width / 16];
    float m[4], t[4];
    float l;  // of one row, one of its four sums
  };
  // The parts before it, of rows 4 y + r.
  struct Total {
    float t[4], l[4];
    bool begun[4];
  };

  static __device__ __forceinline__ void begin_part(State &s) {
    clear<width>(s.o);
#pragma unroll
    for (int r = 0; r < 4; r++) s.m[r] = s.t[r] = -TL_INFINITY;
    s.l = 0.0f;
  }

  static __device__ __forceinline__ void measure(const Scores &s, const Seen (&seen)[4],
                                                 State &state) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
      for (int i = 0; i < chunk / 16; i++)
        if (is_in(seen[r], column_of(i))) state.m[r] = fmaxf(state.m[r], s[r][i]);
#pragma unroll
      for (int step = 1; step < 16; step *= 2)
        state.m[r] = fmaxf(state.m[r], __shfl_xor_sync(~0u, state.m[r], step));
    }
  }

  // After all keys of a block were measured.
  static __device__ __forceinline__ void raise(const tl_attention_args &g, State &s) {
    const int own = threadIdx.x % 16 / 4;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const float u = s.m[r] * g.factor, a = fading(s.t[r], u);
      s.t[r] = u;
      if (r == own) s.l = s.l * a;
#pragma unroll
      for (int i = 0; i < width / 16; i++) s.o[r][i] = s.o[r][i] * a;
    }
  }

  static __device__ __forceinline__ void weigh(const tl_attention_args &g, const Scores &s,
                                               const Seen (&seen)[4], float *weights,
                                               State &state) {
    const int y = threadIdx.x / 16 * 4, own = threadIdx.x % 16 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < chunk / 16; i++) {
      const int j = column_of(i);
      float p[4];
#pragma unroll
      for (int r = 0; r < 4; r++) p[r] = is_in(seen[r], j) ? weight(g, s[r][i], state.t[r]) : 0.0f;
      *(float4 *)(weights + j * PITCH + y) = make_float4(p[0], p[1], p[2], p[3]);
    }
    __syncwarp();
#pragma unroll 4
    for (int j = 2 * t; j < chunk; j += 8) {
      state.l = state.l + weights[j * PITCH + y + own];
      state.l = state.l + weights[(j + 1) * PITCH + y + own];
    }
  }

  // Merges a part into the total, which the last part takes back into `s`.
  static __device__ __forceinline__ void end_part(const tl_attention_args &g, int row, int first,
                                                  int end, bool is_last, float *kept, Total &total,
                                                  State &s) {
    const float l = sum_of_four(s.l);
    kept += threadIdx.x;
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const bool sees = row + r >= first && row + r - g.window + 1 < end;
      const float part_l = __shfl_sync(~0u, l, threadIdx.x % 32 / 16 * 16 + 4 * r);
      const Merge m = merge(total.begun[r], sees, total.t[r], total.l[r], s.t[r], part_l);
      total.begun[r] = total.begun[r] || sees;
#pragma unroll
      for (int i = 0; i < width / 16; i++) {
        float *place = kept + (r * (width / 16) + i) * THREADS;
        if (m.begun) s.o[r][i] = merged(m, *place, s.o[r][i]);
        if (!is_last) *place = s.o[r][i];
      }
    }
  }

  static __device__ __forceinline__ void finish(const tl_attention_args &g, const Piece &p,
                                                int head, const Total &total, State &s) {
    const int y = threadIdx.x / 16 * 4;
    const int64_t packed = int64_t(p.start) + p.offset;
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
      for (int i = 0; i < width / 16; i++) s.o[r][i] = s.o[r][i] / total.l[r];
      if (threadIdx.x % 16 == 0 && y + r < p.count)
        g.lse[(packed + y + r) * g.heads + head] = total.t[r] + tl_log2(total.l[r]);
    }
    store_rows<width>(g.out, packed, head, p.count, 1.0f, s.o);
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p, int head,
                                               float *shared) {
    float *weights = shared + TL_ATTENTION_F32_STAGE(width, chunk), *kept = weights + chunk * PITCH;
    const int row = p.offset + threadIdx.x / 16 * 4, kv_head = head / g.group;
    const Rows queries = rows_of(g.q, int64_t(p.start) + p.offset, head, p.count);
    Keys<chunk> at = Keys<chunk>::begin(g, p);
    State state;
    Total total = {};
    int part_first = at.first;
    begin_part(state);
#pragma unroll 1
    while (!at.done()) {
      const int first = at.chunk, count = at.count(g);
      Seen seen[4];
      Scores s;
#pragma unroll
      for (int r = 0; r < 4; r++) seen[r] = keys_seen(g, row + r, first, count);
      multiply_along<chunk>(queries, rows_of(g.k, int64_t(p.start) + first, kv_head, count), shared,
                            s);
      if (at.measures()) {
        measure(s, seen, state);
        if (at.ends_block(g)) raise(g, state);
      }
      if (at.weighs(g)) {
        weigh(g, s, seen, weights, state);
        multiply_across<width>(rows_of(g.v, int64_t(p.start) + first, kv_head, count), weights,
                               seen, shared, state.o);
      }
      const bool ends_part = at.ends_part(g);
      const int part_end = at.block_end(g);
      at.next(g);
      if (!ends_part) continue;
      end_part(g, row, part_first, part_end, at.done(), kept, total, state);
      if (at.done()) break;
      begin_part(state);
      part_first = part_end;
    }
    finish(g, p, head, total, state);
  }

  static __device__ __forceinline__ void run(const tl_attention_args &g) {
    extern __shared__ __align__(16) float shared[];
    const int head = int(blockIdx.x / g.tiles);
    const int first = int(g.tiles - 1 - blockIdx.x % g.tiles) * ROWS;  // long rows first
    for_pieces(g, first, ROWS, [&](const Piece &p) { piece(g, p, head, shared); });
    const Unused unused = unused_rows(g, first, ROWS);
    clear_rows(g.out, unused, head, THREADS);
    for (int row = unused.begin + threadIdx.x; row < unused.end; row += THREADS)
      g.lse[int64_t(row) * g.heads + head] = -TL_INFINITY;
  }
};

#define KERNEL(width, chunk)                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                           \
      attention_f32_##width##_##chunk(const __grid_constant__ tl_attention_args g) { \
    Forward<width, chunk>::run(g);                                                   \
  }
TL_ATTENTION_F32(KERNEL)
