// attention_grad_key.cu - dk and dv of bf16 heads: attention_grad.cu has the overview.
//
// A block owns keys of one KV head and takes the queries of its query heads one after the other:
//
//   leaf 0           | leaf 1           |       a leaf's sums are complete after its last chunk
//   head 0 | head 1  | head 2 | head 3  |
//   chunks | chunks  | chunks | chunks  |       from the segment's step of 16 that has key 0 on
#include "attention_bf16.cuh"

// 8 bytes to shared memory, or zeros.
GPU void copy_eight(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

template <int width, int chunk, int warps, bool dk_too, bool dv_too>
struct GradKey {
  enum {
    PITCH = TL_ATTENTION_PITCH(width),
    ROWS = 16 * warps,
    THREADS = 32 * warps,
    TILE = ROWS * PITCH,  // keys, then values
    STREAM = 2 * TILE,    // twice: queries, do, and (lse, delta) of each
    HALF = chunk * PITCH,
    SLOT = 2 * HALF + 8 * chunk,
    LEVEL = ROWS * width  // floats of dk or dv that wait
  };
  typedef float Scores[chunk / 8][4];
  typedef float Sum[width / 8][4];

  // A chunk of queries of one query head.
  struct Chunk {
    int head, first;
  };

  static __device__ __forceinline__ void load(const tl_attention_args &g, const Piece &p,
                                              const Chunk &at, int end, uint32_t to) {
    const int count = end - at.first < chunk ? end - at.first : chunk;
    const int64_t row = int64_t(p.start) + at.first;
    load_rows<width, chunk, THREADS>(g.q, row, at.head, count, to);
    load_rows<width, chunk, THREADS>(g.grad, row, at.head, count, to + HALF);
    const float2 *sums = (const float2 *)g.sums + int64_t(at.head - g.first_head) * g.rows + row;
    for (int i = threadIdx.x; i < chunk; i += THREADS)
      copy_eight(to + 2 * HALF + 8 * i, i < count ? sums + i : sums, i < count ? 8 : 0);
  }

  // s becomes p.
  template <bool border>
  static __device__ __forceinline__ void weigh(const tl_attention_args &g, const Seen (&seen)[2],
                                               const float4 *sums, Scores &s) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < chunk / 8; i++) {
      const float4 two = sums[4 * i + t];  // lse, delta of queries 8 i + 2 t and the next
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float p = weight(g, s[i][e], e % 2 ? two.z : two.x);
        const bool sees = !border || is_in(seen[e / 2], 8 * i + 2 * t + e % 2);
        s[i][e] = sees ? p : 0.0f;
      }
    }
  }

  // p becomes ds.
  template <bool border>
  static __device__ __forceinline__ void grade(const Seen (&seen)[2], const float4 *sums,
                                               const Scores &grad, Scores &p) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < chunk / 8; i++) {
      const float4 two = sums[4 * i + t];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float ds = p[i][e] * (grad[i][e] - (e % 2 ? two.w : two.y));
        const bool sees = !border || is_in(seen[e / 2], 8 * i + 2 * t + e % 2);
        p[i][e] = sees ? ds : 0.0f;
      }
    }
  }

  static __device__ __forceinline__ void add(const Scores &weights, uint32_t rows, Sum &sum) {
#pragma unroll
    for (int i = 0; i < chunk / 16; i++) {
      uint32_t a[4];
      round_weights<chunk>(weights, i, a);
      multiply_across<width>(a, rows + i * 16 * PITCH, sum);
    }
  }

  // `count` queries from `first` on, which lie in `slot`.
  static __device__ __forceinline__ void work(const tl_attention_args &g, const WarpRows &keys,
                                              int first, int count, uint32_t own, uint32_t slot,
                                              const float4 *sums, Sum &dk, Sum &dv) {
    const int row = keys.first + threadIdx.x % 32 / 4;
    const Seen seen[2] = {queries_seen(g, row, first, count),
                          queries_seen(g, row + 8, first, count)};
    const bool full =
        count == chunk && first >= keys.first + 15 && first + chunk - 1 - keys.first < g.window;
    Scores p;
    multiply_along<width, chunk>(own, place_along<width>(slot), p);
    if (full)
      weigh<false>(g, seen, sums, p);
    else
      weigh<true>(g, seen, sums, p);
    if (dv_too) add(p, place_across<width>(slot + HALF), dv);
    if (!dk_too) return;
    Scores grad;
    multiply_along<width, chunk>(own + TILE, place_along<width>(slot + HALF), grad);
    if (full)
      grade<false>(seen, sums, grad, p);
    else
      grade<true>(seen, sums, grad, p);
    add(p, place_across<width>(slot), dk);
  }

  // The queries that see one of the keys end here.
  static __device__ __forceinline__ int queries_end(const tl_attention_args &g, const Piece &p) {
    const int last = p.offset + p.count - 1;
    return p.length - last < g.window ? p.length : last + g.window;
  }

  static __device__ __forceinline__ void end_leaf(const tl_attention_args &g, int leaf,
                                                  float *stack, bool is_last, Sum &dk, Sum &dv) {
    if (g.leaves_log == 0) return;
    if (dk_too) fold<width / 2, THREADS>(stack, threadIdx.x, g.leaves_log, leaf, &dk[0][0]);
    if (dv_too)
      fold<width / 2, THREADS>(stack + g.leaves_log * LEVEL, threadIdx.x, g.leaves_log, leaf,
                               &dv[0][0]);
    if (is_last) return;
    clear<width>(dk);
    clear<width>(dv);
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p,
                                               int kv_head, unsigned char *shared, float *stack) {
    const uint32_t base = shared_address(shared);
    const WarpRows keys = warp_rows(p);
    const int warp_row = keys.first - p.offset, begin = p.offset / 16 * 16, end = queries_end(g, p);
    const int heads_end = (kv_head + 1) * g.group;
    const uint32_t own = place_a<width>(base, warp_row);
    const int64_t packed = int64_t(p.start) + p.offset;
    Chunk at = {kv_head * g.group, begin};
    Sum dk, dv;
    int slot = 0;
    clear<width>(dk);
    clear<width>(dv);
    __syncthreads();  // the piece before has been read
    load_rows<width, ROWS, THREADS>(g.k, packed, kv_head, p.count, base);
    if (dk_too) load_rows<width, ROWS, THREADS>(g.v, packed, kv_head, p.count, base + TILE);
    load(g, p, at, end, base + STREAM);
    copy_commit();
#pragma unroll 1
    while (at.head < heads_end) {
      Chunk next = {at.head, at.first + chunk};
      if (end - at.first <= chunk) next = {at.head + 1, begin};
      if (next.head < heads_end) load(g, p, next, end, base + STREAM + (slot ^ 1) * SLOT);
      copy_commit();
      copy_wait<1>();
      __syncthreads();  // this chunk is there
      const int count = end - at.first < chunk ? end - at.first : chunk;
      if (keys.first <= keys.last && at.first + count - 1 >= keys.first &&
          at.first - keys.last < g.window) {
        const int place = STREAM + slot * SLOT;
        work(g, keys, at.first, count, own, base + place,
             (const float4 *)(shared + place + 2 * HALF), dk, dv);
      }
      if (next.head != at.head && next.head % g.leaf_heads == 0)
        end_leaf(g, (at.head - kv_head * g.group) / g.leaf_heads, stack, next.head == heads_end, dk,
                 dv);
      __syncthreads();  // and has been read
      at = next;
      slot ^= 1;
    }
    if (dk_too)
      store_rows<width>(g.dk, packed + warp_row, kv_head, p.count - warp_row, g.dk_scale, dk);
    if (dv_too) store_rows<width>(g.dv, packed + warp_row, kv_head, p.count - warp_row, 1.0f, dv);
  }

  static __device__ __forceinline__ void run(const tl_attention_args &g) {
    extern __shared__ __align__(16) unsigned char shared[];
    const int64_t all = g.tiles * (g.head_count / g.group);
    float *stack =
        g.stack + int64_t(blockIdx.y * gridDim.x + blockIdx.x) * g.leaves_log * 2 * LEVEL;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < all; i += gridDim.x) {
      const int kv_head = g.first_head / g.group + int(i / g.tiles);
      const int first = int(i % g.tiles) * ROWS;  // many queries first
      for_pieces(g, first, ROWS, [&](const Piece &p) { piece(g, p, kv_head, shared, stack); });
      if (dk_too) clear_rows(g.dk, unused_rows(g, first, ROWS), kv_head, THREADS);
      if (dv_too) clear_rows(g.dv, unused_rows(g, first, ROWS), kv_head, THREADS);
    }
  }
};

template <int width, int chunk, int warps>
GPU void grad_key(const tl_attention_args &g) {
  if constexpr (width <= TL_ATTENTION_BOTH_MAX)
    GradKey<width, chunk, warps, true, true>::run(g);
  else if (blockIdx.y == 0)
    GradKey<width, chunk, warps, true, width <= TL_ATTENTION_BOTH_MAX>::run(g);
  else
    GradKey<width, chunk, warps, width <= TL_ATTENTION_BOTH_MAX, true>::run(g);
}

#define KERNEL(width, chunk, warps)                                                  \
  extern "C" __global__ void __launch_bounds__(32 * (warps), 1)                      \
      attention_grad_key_bf16_##width(const __grid_constant__ tl_attention_args g) { \
    grad_key<width, chunk, warps>(g);                                                \
  }
TL_ATTENTION_GRAD_KEY_BF16(KERNEL)
