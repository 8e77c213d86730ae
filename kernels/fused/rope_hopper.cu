/* rope_hopper.cu - q, k and v of few rows on sm_90a, turned and written to where attention reads
** them: linear, rope_rows and cache_write in one kernel.
**
**   head of 64 channels     pairs 0 .. 31 (a)            their others, 32 .. 63 (b)
**                           | own pairs |                | the same |
**   tile                    [ a: columns / 2 ][ b: columns / 2 ]      one box of 4 dims
**
** So a and b of a pair are sums of the same thread, columns / 4 numbers apart, and whole heads are
** not needed: as many blocks as gemm_hopper_few.cuh would have, of which this is one. q goes to
** rows, k and v to pages. Channels of k lie far apart there, an element a store, so tiles of k are
** narrower: more blocks share these stores. Rounding is that of the operators by themselves: sums
** become bf16 before they are turned.
*/
#include "../gemm/gemm_hopper_few.cuh"
#include "../cache/cache_device.cuh"
#include "../math.h"
#include "fused_args.h"

enum { HEAD = 64, PAIRS = 32, Q = 0, K = 1, V = 2 };

template <int rows, int columns>
struct Turned {
  typedef Few<rows, columns, 0> Block;
  static constexpr int readers = Block::groups * 128, own_pairs = columns / 2;
  static constexpr int pieces = columns / 16;  // of 8 columns in a half of the tile

  struct Tile {
    int part, head, pair, row;  // part: Q, K or V; pair: the first one
  };

  // Blocks that come first have the last tiles: those of k and v end later than those of q.
  static __device__ __forceinline__ int index(void) { return gridDim.x - 1 - blockIdx.x; }

  static __device__ __forceinline__ int part_of(const tl_rope_hopper_args &k) {
    const int tile = index() / k.product.row_tiles;
    int part = Q;
    while (part < V && tile >= k.product.first_tile[part + 1]) part++;
    return part;
  }

  static __device__ __forceinline__ Tile tile_of(const tl_rope_hopper_args &k) {
    const tl_gemm_hopper_few_args &g = k.product;
    const int tile = index() / g.row_tiles, row = (index() - tile * g.row_tiles) * rows;
    const int part = part_of(k), own = tile - g.first_tile[part];
    return {part, own / (HEAD / columns), own % (HEAD / columns) * own_pairs, row};
  }

  static __device__ __forceinline__ void bring_weights(const Block &f,
                                                       const tl_gemm_hopper_few_args &g,
                                                       const Tile &t) {
    typename Block::Round turn = {0, 1};
    for (int k = 0; k < g.slots * DEPTH; k += Block::depth, f.next(turn)) {
      const uint32_t bar = f.full + 8 * turn.slot;
      const uint32_t at = f.ring + turn.slot * Block::slot_bytes + Block::halves * Block::x_bytes;
      barrier_wait(f.empty + 8 * turn.slot, turn.parity);
      barrier_expect(bar, Block::halves * Block::weight_bytes);
#pragma unroll
      for (int h = 0; h < Block::halves; h++)
        box_load_soon(at + h * Block::weight_bytes, &g.b[t.part], bar, k + h * DEPTH, t.pair, 0,
                      t.head, soon_policy());
    }
  }

  static __device__ __forceinline__ void bring_x(const Block &f, const tl_gemm_hopper_few_args &g,
                                                 const Tile &t) {
    typename Block::Round turn = {0, 1};
    for (int k = 0; k < g.slots * DEPTH; k += Block::depth)
      f.template load<false>(g, turn, {0, 0, t.row}, 0, k);
  }

  // Of the two rows of a thread.
  struct Spot {
    int row[2], page[2], place[2];
    float4 angle[2][pieces];  // cosine and sine of two neighbouring pairs
  };

  static __device__ __forceinline__ void find(const tl_rope_write_args &r, const Tile &t,
                                              Spot &spot) {
    const tl_cache_places &at = r.write.at;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = t.row + threadIdx.x / 32 * 16 + lane / 4 + 8 * e;
      spot.row[e] = row < at.rows ? row : -1;
      spot.page[e] = spot.place[e] = -1;
      if (row >= at.rows) continue;
      const int position = at.position[row];
      if (t.part != Q) {
        const int request = at.request[row];
        if (request >= 0 && is_place(at, request, position))
          spot.page[e] = page_of(at, request, position);
        spot.place[e] = page_place(at, position);
      }
      if (t.part == V) continue;
      const tl_rope_args &turn = t.part == Q ? r.q : r.k;
      const bool known = position >= 0 && position < turn.positions;
      const float nan = __uint_as_float(TL_NAN_BITS);
#pragma unroll
      for (int j = 0; j < pieces; j++) {
        const int pair = t.pair + j * 8 + lane % 4 * 2;
        spot.angle[e][j] = make_float4(nan, nan, nan, nan);
        if (known)
          spot.angle[e][j] =
              *(const float4 *)((const float *)turn.table.data + (position * PAIRS + pair) * 2);
      }
    }
  }

  // What two sums are in memory.
  static __device__ __forceinline__ float2 rounded(float low, float high) {
    const uint32_t pair = bf16_pair(low, high);
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }

  // Turns a and b of two neighbouring pairs.
  static __device__ __forceinline__ void turn(const float4 &angle, float sign, float2 &a,
                                              float2 &b) {
    const float2 x = a, y = b;
    const float low = sign * angle.y, high = sign * angle.w;
    a = make_float2(fmaf(x.x, angle.x, -(y.x * low)), fmaf(x.y, angle.z, -(y.y * high)));
    b = make_float2(fmaf(y.x, angle.x, x.x * low), fmaf(y.y, angle.z, x.y * high));
  }

  // Where the first channel of a row's sums goes, and how far channels lie apart there.
  static __device__ __forceinline__ uint16_t *first_of(const tl_rope_write_args &r, const Tile &t,
                                                       const Spot &spot, int e) {
    const tl_cache_write_args &w = r.write;
    const int channel = t.pair + threadIdx.x % 4 * 2;
    if (t.part == Q)
      return (uint16_t *)r.q.y.data + (spot.row[e] * r.q.heads + t.head) * HEAD + channel;
    if (t.part == K)
      return (uint16_t *)w.keys +
             ((int64_t(spot.page[e]) * w.kv_heads + t.head) * HEAD + channel) * w.at.page +
             spot.place[e];
    const int64_t at = int64_t(spot.page[e]) * w.at.page + spot.place[e];
    return (uint16_t *)w.values + (at * w.kv_heads + t.head) * HEAD + channel;
  }

  // `apart`: channels are a page apart, and stores single elements.
  template <bool apart>
  static __device__ __forceinline__ void store(uint16_t *to, int channel, int page,
                                               const float2 &v) {
    const uint32_t pair = bf16_pair(v.x, v.y);
    if constexpr (apart)
      to[channel * page] = uint16_t(pair), to[(channel + 1) * page] = uint16_t(pair >> 16);
    else
      *(uint32_t *)(to + channel) = pair;
  }

  // All rows and pieces of a thread without a branch between them.
  template <bool turned, bool apart>
  static __device__ __forceinline__ void finish(const tl_rope_write_args &r, const Tile &t,
                                                const Spot &spot, const float *sum) {
    const float sign = t.part == Q ? r.q.sign : r.k.sign;
    const int page = r.write.at.page;
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const bool there = spot.row[e] >= 0 && (t.part == Q || spot.page[e] >= 0);
      uint16_t *to = first_of(r, t, spot, e);
      float2 a[pieces], b[pieces];
#pragma unroll
      for (int j = 0; j < pieces; j++) {
        const float *low = sum + j * 4 + 2 * e, *high = low + pieces * 4;
        a[j] = rounded(low[0], low[1]), b[j] = rounded(high[0], high[1]);
        if (turned) turn(spot.angle[e][j], sign, a[j], b[j]);
      }
      if (!there) continue;
#pragma unroll
      for (int j = 0; j < pieces; j++) {
        store<apart>(to, j * 8, page, a[j]);
        store<apart>(to, j * 8 + PAIRS, page, b[j]);
      }
    }
  }

  static __device__ __forceinline__ void run(const tl_rope_hopper_args &k) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const tl_gemm_hopper_few_args &g = k.product;
    const Tile t = tile_of(k);
    Block f;
    f.open(shared, g.ring);
    __syncthreads();
    next_begin();
    if (threadIdx.x >= readers + 32) {
      if (threadIdx.x > readers + 32) return;
      map_prefetch(&g.a);
      earlier_wait();
      bring_x(f, g, t);
    } else if (threadIdx.x >= readers) {
      if (threadIdx.x > readers) return;
      map_prefetch(&g.b[t.part]);
      if (!g.ahead) earlier_wait();
      bring_weights(f, g, t);
    } else {
      typename Block::Round turn = {0, 0};
      float sum[Block::sums];
      Spot spot;
      if (!k.rope.ahead) earlier_wait();
      find(k.rope, t, spot);
      if (k.rope.ahead) earlier_wait();
      f.chain(turn, uniform(threadIdx.x / 128), (g.slots + Block::halves - 1) / Block::halves, sum);
      if (t.part == Q)
        finish<true, false>(k.rope, t, spot, sum);
      else if (t.part == K)
        finish<true, true>(k.rope, t, spot, sum);
      else
        finish<false, false>(k.rope, t, spot, sum);
    }
  }
};

#define TURNED(rows, columns, k_columns)                                              \
  extern "C" __global__ void __launch_bounds__((rows) / 64 * 128 + 64, 1)             \
      rope_hopper_##rows##_##columns(const __grid_constant__ tl_rope_hopper_args k) { \
    if (Turned<rows, columns>::part_of(k) == K)                                       \
      Turned<rows, k_columns>::run(k);                                                \
    else                                                                              \
      Turned<rows, columns>::run(k);                                                  \
  }
TL_ROPE_HOPPER(TURNED)
