/* attention_hopper_grad_key.cuh - scores of keys (rows) and queries (columns), for the kernels of
** dk and dv: their sums in shared memory, their weights, and what does not see what.
*/
#ifndef TL_ATTENTION_HOPPER_GRAD_KEY_CUH
#define TL_ATTENTION_HOPPER_GRAD_KEY_CUH

#include "attention_hopper_grad.cuh"

// `step` queries at a time.
template <int step>
struct KeyScores {
  typedef float Scores[step / 2];

  // The queries that see one of the `rows` own keys end here; the first stands at the tile's
  // offset.
  static __device__ __forceinline__ int queries_end(const tl_attention_args &g, const Item &item,
                                                    int rows) {
    const int behind = item.offset + rows;
    const int last = (behind < item.length ? behind : item.length) - 1;
    return item.length - last < g.window ? item.length : last + g.window;
  }

  static_assert(step == 64, "a lane of the load warp has two queries");

  // lse and delta of two queries for each lane; +0 past the segment's end.
  static __device__ __forceinline__ void load_sums(const tl_attention_args &g, const Item &item,
                                                   int at, int head, uint32_t to) {
    const int row = at + 2 * int(threadIdx.x);
    const float2 *from =
        (const float2 *)g.sums + int64_t(head - g.first_head) * g.rows + item.start + row;
    float4 two = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (row < item.length) two.x = from[0].x, two.y = from[0].y;
    if (row + 1 < item.length) two.z = from[1].x, two.w = from[1].y;
    store_shared_f32(to + 16 * threadIdx.x, two);
  }

  // s becomes p; the sums of queries 8 i + 2 t and the next are (lse, delta, lse, delta).
  static __device__ __forceinline__ void weigh(const tl_attention_args &g, uint32_t sums,
                                               Scores &s) {
#pragma unroll
    for (int i = 0; i < step / 8; i++) {
      const float4 two = load_shared_f32x4(sums + 64 * i + threadIdx.x % 4 * 16);
#pragma unroll
      for (int e = 0; e < 4; e++) s[4 * i + e] = weight(g, s[4 * i + e], e % 2 ? two.z : two.x);
    }
  }

  // p becomes ds.
  static __device__ __forceinline__ void grade(uint32_t sums, const Scores &grad, Scores &s) {
#pragma unroll
    for (int i = 0; i < step / 8; i++) {
      const float4 two = load_shared_f32x4(sums + 64 * i + threadIdx.x % 4 * 16);
#pragma unroll
      for (int e = 0; e < 4; e++)
        s[4 * i + e] = s[4 * i + e] * (grad[4 * i + e] - (e % 2 ? two.w : two.y));
    }
  }

  // Queries from `at` on that do not see the thread's first key `own`, or the one 8 further: +0.
  static __device__ __forceinline__ void hide(const tl_attention_args &g, const Item &item, int own,
                                              int at, Scores &s) {
    const int t = threadIdx.x % 4, left = item.length - at;
#pragma unroll
    for (int i = 0; i < step / 2; i++) {
      const int column = i / 4 * 8 + 2 * t + i % 2, first = own - at + (i & 2 ? 8 : 0);
      if (column < first || column - first >= g.window || column >= left) s[i] = 0.0f;
    }
  }
};

#endif
