// attention_grad_f32.cu - the backward pass of f32 heads: attention.h says what, attention_f32.cuh
// who works on which numbers.
//
//   query    s = q k, g = do v     dq += ds k               own rows: queries   stream: keys
//   key      s = k q, g = v do     dv += p do, dk += ds q   own rows: keys      stream: queries
#include "attention_f32.cuh"

GPU const float2 *sums_of(const tl_attention_args &g, int64_t row, int head) {
  return (const float2 *)g.sums + int64_t(head - g.first_head) * g.rows + row;
}

// ---- dq ----

template <int width, int chunk>
struct GradQuery {
  typedef float Scores[4][chunk / 16];

  static __device__ __forceinline__ void weigh(const tl_attention_args &g, const Scores &s,
                                               const Scores &grad, const float2 (&sums)[4],
                                               float *weights) {
#pragma unroll
    for (int i = 0; i < chunk / 16; i++) {
      float ds[4];
#pragma unroll
      for (int r = 0; r < 4; r++) ds[r] = weight(g, s[r][i], sums[r].x) * (grad[r][i] - sums[r].y);
      *(float4 *)(weights + column_of(i) * PITCH + threadIdx.x / 16 * 4) =
          make_float4(ds[0], ds[1], ds[2], ds[3]);
    }
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p, int head,
                                               float *shared) {
    float *weights = shared + TL_ATTENTION_F32_STAGE(width, chunk);
    const int y = threadIdx.x / 16 * 4, kv_head = head / g.group;
    const int64_t start = p.start, packed = start + p.offset;
    const Rows q = rows_of(g.q, packed, head, p.count), o = rows_of(g.grad, packed, head, p.count);
    const float2 *from = sums_of(g, packed, head);
    float2 sums[4];
#pragma unroll
    for (int r = 0; r < 4; r++) sums[r] = y + r < p.count ? from[y + r] : make_float2(0.0f, 0.0f);
    float dq[4][width / 16];
    clear<width>(dq);
    const int end = p.offset + p.count;
    int first = p.offset - g.window + 1 > 0 ? p.offset - g.window + 1 : 0;
#pragma unroll 1
    for (; first < end; first += chunk) {
      const int count = end - first < chunk ? end - first : chunk;
      const Rows k = rows_of(g.k, start + first, kv_head, count);
      Seen seen[4];
      Scores s, grad;
#pragma unroll
      for (int r = 0; r < 4; r++) seen[r] = keys_seen(g, p.offset + y + r, first, count);
      multiply_along<chunk>(q, k, shared, s);
      multiply_along<chunk>(o, rows_of(g.v, start + first, kv_head, count), shared, grad);
      weigh(g, s, grad, sums, weights);
      multiply_across<width>(k, weights, seen, shared, dq);
    }
    store_rows<width>(g.out, packed, head, p.count, g.scale, dq);
  }

  static __device__ __forceinline__ void run(const tl_attention_args &g) {
    extern __shared__ __align__(16) float shared[];
    const int head = g.first_head + int(blockIdx.x / g.tiles);
    const int first = int(g.tiles - 1 - blockIdx.x % g.tiles) * ROWS;  // long rows first
    for_pieces(g, first, ROWS, [&](const Piece &p) { piece(g, p, head, shared); });
    clear_rows(g.out, unused_rows(g, first, ROWS), head, THREADS);
  }
};

// ---- dk and dv ----

template <int width, int chunk>
struct GradKey {
  enum { LEVEL = ROWS * width };  // floats of dk or dv that wait
  typedef float Scores[4][chunk / 16];
  typedef float Sum[4][width / 16];

  // p to `weights`, ds to `grades`.
  static __device__ __forceinline__ void weigh(const tl_attention_args &g, const Scores &s,
                                               const Scores &grad, const float2 *sums, int count,
                                               float *weights, float *grades) {
#pragma unroll
    for (int i = 0; i < chunk / 16; i++) {
      const int j = column_of(i), place = j * PITCH + threadIdx.x / 16 * 4;
      const float2 sum = j < count ? sums[j] : make_float2(0.0f, 0.0f);
      float p[4], ds[4];
#pragma unroll
      for (int r = 0; r < 4; r++) {
        p[r] = weight(g, s[r][i], sum.x);
        ds[r] = p[r] * (grad[r][i] - sum.y);
      }
      *(float4 *)(weights + place) = make_float4(p[0], p[1], p[2], p[3]);
      *(float4 *)(grades + place) = make_float4(ds[0], ds[1], ds[2], ds[3]);
    }
  }

  // The queries of one head.
  static __device__ __forceinline__ void add_head(const tl_attention_args &g, const Piece &p,
                                                  int head, float *shared, Sum &dk, Sum &dv) {
    float *weights = shared + TL_ATTENTION_F32_STAGE(width, chunk);
    float *grades = weights + chunk * PITCH;
    const int y = threadIdx.x / 16 * 4, kv_head = head / g.group;
    const int last_key = p.offset + p.count - 1;
    const int end = p.length - last_key < g.window ? p.length : last_key + g.window;
    const int64_t start = p.start, own = start + p.offset;
    // Where rows stand is found anew each time: at width 256 no register is left for it.
#pragma unroll 1
    for (int first = p.offset; first < end; first += chunk) {
      const int count = end - first < chunk ? end - first : chunk;
      Scores s, x;
      multiply_along<chunk>(rows_of(g.k, own, kv_head, p.count),
                            rows_of(g.q, start + first, head, count), shared, s);
      multiply_along<chunk>(rows_of(g.v, own, kv_head, p.count),
                            rows_of(g.grad, start + first, head, count), shared, x);
      weigh(g, s, x, sums_of(g, start + first, head), count, weights, grades);
      Seen seen[4];
#pragma unroll
      for (int r = 0; r < 4; r++) seen[r] = queries_seen(g, p.offset + y + r, first, count);
      multiply_across<width>(rows_of(g.grad, start + first, head, count), weights, seen, shared,
                             dv);
      multiply_across<width>(rows_of(g.q, start + first, head, count), grades, seen, shared, dk);
    }
  }

  static __device__ __forceinline__ void piece(const tl_attention_args &g, const Piece &p,
                                               int kv_head, float *shared, float *stack) {
    const int first_head = kv_head * g.group, leaves = 1 << g.leaves_log;
    const int64_t packed = int64_t(p.start) + p.offset;
    Sum dk, dv;
#pragma unroll 1
    for (int leaf = 0; leaf < leaves; leaf++) {
      clear<width>(dk);
      clear<width>(dv);
#pragma unroll 1
      for (int i = leaf * g.leaf_heads; i < (leaf + 1) * g.leaf_heads; i++)
        add_head(g, p, first_head + i, shared, dk, dv);
      if (leaves == 1) break;
      fold<width / 4, THREADS>(stack, threadIdx.x, g.leaves_log, leaf, &dk[0][0]);
      fold<width / 4, THREADS>(stack + g.leaves_log * LEVEL, threadIdx.x, g.leaves_log, leaf,
                               &dv[0][0]);
    }
    store_rows<width>(g.dk, packed, kv_head, p.count, g.dk_scale, dk);
    store_rows<width>(g.dv, packed, kv_head, p.count, 1.0f, dv);
  }

  static __device__ __forceinline__ void run(const tl_attention_args &g) {
    extern __shared__ __align__(16) float shared[];
    const int64_t all = g.tiles * (g.head_count / g.group);
    float *stack = g.stack + int64_t(blockIdx.x) * g.leaves_log * 2 * LEVEL;
#pragma unroll 1
    for (int64_t i = blockIdx.x; i < all; i += gridDim.x) {
      const int kv_head = g.first_head / g.group + int(i / g.tiles);
      const int first = int(i % g.tiles) * ROWS;  // many queries first
      for_pieces(g, first, ROWS, [&](const Piece &p) { piece(g, p, kv_head, shared, stack); });
      clear_rows(g.dk, unused_rows(g, first, ROWS), kv_head, THREADS);
      clear_rows(g.dv, unused_rows(g, first, ROWS), kv_head, THREADS);
    }
  }
};

#define KERNEL(width, chunk)                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                            \
      attention_grad_query_f32_##width(const __grid_constant__ tl_attention_args g) { \
    GradQuery<width, chunk>::run(g);                                                  \
  }                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                            \
      attention_grad_key_f32_##width(const __grid_constant__ tl_attention_args g) {   \
    GradKey<width, chunk>::run(g);                                                    \
  }
TL_ATTENTION_GRAD_F32(KERNEL)
