// attention_grad.cu - the backward pass of bf16 heads: attention.h says what, attention_args.h
// which rows. All of a chunk of the stream lies in shared memory, twice: the next one is copied
// while this one is worked on.
//
//   query    s = q k, g = do v     dq += ds k               own rows: queries   stream: keys
//   key      s = k q, g = v do     dv += p do, dk += ds q   own rows: keys      stream: queries
#include "attention_bf16.cuh"

// ---- lse and delta ----

// Eight channels from `first` on; missing ones are +0.
GPU void load_eight(const tl_attention_matrix &m, int64_t row, int head, int first, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = 0.0f;
  if (m.bf16 && m.aligned && first < m.width) {
    const uint4 bits = *(const uint4 *)(row_of<uint16_t>(m, row, head) + first);
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = widened(uint16_t(words[i / 2] >> (i % 2 * 16)));
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (first + i >= m.width) break;
    x[i] = m.bf16 ? widened(row_of<uint16_t>(m, row, head)[first + i])
                  : row_of<float>(m, row, head)[first + i];
  }
}

// The row rule by 32 lanes or fewer a row, 8 channels each: neighbours meet in registers first,
// then by shuffles.
GPU float delta_of(const tl_attention_args &g, int64_t row, int head, int lane, int lanes) {
  float x[8], y[8];
  load_eight(g.grad, row, head, lane * 8, x);
  load_eight(g.o, row, head, lane * 8, y);
#pragma unroll
  for (int i = 0; i < 8; i++) x[i] = fmaf(x[i], y[i], 0.0f);
#pragma unroll
  for (int half = 4; half > 0; half /= 2)
#pragma unroll
    for (int i = 0; i < half; i++) x[i] = x[2 * i] + x[2 * i + 1];
  for (int step = 1; step < lanes; step *= 2) x[0] = x[0] + __shfl_xor_sync(~0u, x[0], step);
  return x[0] + 0.0f;
}

// 256 threads; a group of `lanes` for each row and head.
extern "C" __global__ void __launch_bounds__(256)
    attention_grad_sums(const __grid_constant__ tl_attention_args g) {
  int lanes = 1;
  while (lanes * 8 < g.o.width) lanes *= 2;
  const int64_t all = int64_t(g.rows) * g.head_count;
  const int64_t index = (int64_t(blockIdx.x) * 256 + threadIdx.x) / lanes;
  const int64_t item = index < all ? index : all - 1;
  const int64_t row = item / g.head_count;
  const int head = int(item - row * g.head_count);
  const float delta = delta_of(g, row, g.first_head + head, threadIdx.x % lanes, lanes);
  if (index < all && threadIdx.x % lanes == 0)
    ((float2 *)g.sums)[int64_t(head) * g.rows + row] =
        make_float2(g.lse[row * g.heads + g.first_head + head], delta);
}

GPU const float2 *sums_of(const tl_attention_args &g, int64_t row, int head) {
  return (const float2 *)g.sums + int64_t(head - g.first_head) * g.rows + row;
}

// ---- dq ----

template <int width, int chunk, int warps>
struct GradQuery {
  enum {
    PITCH = TL_ATTENTION_PITCH(width),
    ROWS = 16 * warps,
    THREADS = 32 * warps,
    GRAD = ROWS * PITCH,  // queries stand before
    STREAM = 2 * GRAD,    // twice: keys, values
    HALF = chunk * PITCH
  };
  typedef float Scores[chunk / 8][4];
  typedef float Sum[width / 8][4];

  static __device__ __forceinline__ void load(const tl_attention_args &g, const Piece &p,
                                              int kv_head, int first, uint32_t to) {
    const int left = p.offset + p.count - first, count = left < chunk ? left : chunk;
    load_rows<width, chunk, THREADS>(g.k, int64_t(p.start) + first, kv_head, count, to);
    load_rows<width, chunk, THREADS>(g.v, int64_t(p.start) + first, kv_head, count, to + HALF);
  }

  // s becomes ds.
  template <bool border>
  static __device__ __forceinline__ void weigh(const tl_attention_args &g, const Seen (&seen)[2],
                                               const float2 (&sums)[2], Scores &s,
                                               const Scores &grad) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < chunk / 8; i++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float ds = weight(g, s[i][e], sums[e / 2].x) * (grad[i][e] - sums[e / 2].y);
        const bool sees = !border || is_in(seen[e / 2], 8 * i + 2 * t + e % 2);
        s[i][e] = sees ? ds : 0.0f;
      }
  }

  // `count` keys from `first` on, which lie in `slot`.
  static __device__ __forceinline__ void work(const tl_attention_args &g, const WarpRows &own,
                                              int first, int count, uint32_t a, uint32_t slot,
                                              const float2 (&sums)[2], Sum &dq) {
    const int row = own.first + threadIdx.x % 32 / 4;
    const Seen seen[2] = {keys_seen(g, row, first, count), keys_seen(g, row + 8, first, count)};
    Scores s, grad;
    multiply_along<width, chunk>(a, place_along<width>(slot), s);
    multiply_along<width, chunk>(a + GRAD, place_along<width>(slot + HALF), grad);
    if (count == chunk && all_see(g, own, first, count))
      weigh<false>(g, seen, sums, s, grad);
    else
      weigh<true>(g, seen, sums, s, grad);
#pragma unroll
    for (int i = 0; i < chunk / 16; i++) {
      if (16 * i > own.last - first) break;  // no row of the warp sees these
      uint32_t ds[4];
      round_weights<chunk>(s, i, ds);
      multiply_across<width>(ds, place_across<width>(slot) + i * 16 * PITCH, dq);
    }
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p, int head,
                                               unsigned char *shared) {
    const uint32_t base = shared_address(shared);
    const WarpRows own = warp_rows(p);
    const int warp_row = own.first - p.offset, lane_row = warp_row + threadIdx.x % 32 / 4;
    const int kv_head = head / g.group, end = p.offset + p.count;
    const int64_t packed = int64_t(p.start) + p.offset;
    const float2 *from = sums_of(g, packed + lane_row, head);
    const float2 none = make_float2(0.0f, 0.0f);
    const float2 sums[2] = {lane_row < p.count ? from[0] : none,
                            lane_row + 8 < p.count ? from[8] : none};
    int first = p.offset - g.window + 1 > 0 ? (p.offset - g.window + 1) / 16 * 16 : 0;
    int slot = STREAM;
    Sum dq;
    clear<width>(dq);
    __syncthreads();  // the piece before has been read
    load_rows<width, ROWS, THREADS>(g.q, packed, head, p.count, base);
    load_rows<width, ROWS, THREADS>(g.grad, packed, head, p.count, base + GRAD);
    load(g, p, kv_head, first, base + slot);
    copy_commit();
#pragma unroll 1
    for (; first < end; first += chunk) {
      const int other = 2 * STREAM + 2 * HALF - slot;
      if (end - first > chunk) load(g, p, kv_head, first + chunk, base + other);
      copy_commit();
      copy_wait<1>();
      __syncthreads();  // this chunk is there
      const int count = end - first < chunk ? end - first : chunk;
      if (some_see(g, own, first, count))
        work(g, own, first, count, place_a<width>(base, warp_row), base + slot, sums, dq);
      __syncthreads();  // and has been read
      slot = other;
    }
    store_rows<width>(g.out, packed + warp_row, head, p.count - warp_row, g.scale, dq);
  }

  static __device__ __forceinline__ void run(const tl_attention_args &g) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int head = g.first_head + int(blockIdx.x / g.tiles);
    const int first = int(g.tiles - 1 - blockIdx.x % g.tiles) * ROWS;  // long rows first
    for_pieces(g, first, ROWS, [&](const Piece &p) { piece(g, p, head, shared); });
    clear_rows(g.out, unused_rows(g, first, ROWS), head, THREADS);
  }
};

#define KERNEL(width, chunk, warps)                                                    \
  extern "C" __global__ void __launch_bounds__(32 * (warps), 1)                        \
      attention_grad_query_bf16_##width(const __grid_constant__ tl_attention_args g) { \
    GradQuery<width, chunk, warps>::run(g);                                            \
  }
TL_ATTENTION_GRAD_QUERY_BF16(KERNEL)
