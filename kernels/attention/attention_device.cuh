/* attention_device.cuh - what the kernels of both arithmetics share: pieces, keys, outputs. */
#ifndef TL_ATTENTION_DEVICE_CUH
#define TL_ATTENTION_DEVICE_CUH

#include "../math.h"
#include "attention_args.h"

#define GPU static __device__ __forceinline__
#define TL_INFINITY __int_as_float(0x7f800000)

// ---- pieces: the rows of a tile that lie in one segment ----

// `count` rows, `offset` rows into a segment of `length` rows that begins at packed row `start`.
struct Piece {
  int start, length, offset, count;
};

// The last segment that begins at or before `row`, which some segment holds: it is that one.
GPU int segment_of(const tl_attention_args &g, int row) {
  int low = 0, high = g.segments;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (g.cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <class Visit>
GPU void for_pieces(const tl_attention_args &g, int first, int rows, Visit visit) {
  const int used = g.cu[g.segments], end = used - first < rows ? used : first + rows;
  if (first >= end) return;
  int row = first;
#pragma unroll 1
  for (int segment = segment_of(g, row); row < end; segment++) {
    const int start = g.cu[segment], stop = g.cu[segment + 1];
    if (stop <= row) continue;  // empty
    const int piece_end = stop < end ? stop : end;
    visit(Piece{start, stop - start, row - start, piece_end - row});
    row = piece_end;
  }
}

// Rows first .. first + rows - 1 that no segment holds: from `begin` to `end`.
struct Unused {
  int begin, end;
};

GPU Unused unused_rows(const tl_attention_args &g, int first, int rows) {
  const int used = g.cu[g.segments];
  return {used > first ? used : first, g.rows - first < rows ? g.rows : first + rows};
}

// ---- the keys of a tile of queries, chunk by chunk ----

// Blocks that are longer than a chunk are walked twice: for the largest score, then for weights.
template <int chunk_keys>
struct Keys {
  int first, end;  // keys that some row of the tile sees
  int block, chunk, second;

  GPU Keys begin(const tl_attention_args &g, const Piece &p) {
    Keys k;
    k.end = p.offset + p.count;
    k.first = p.offset - g.window + 1 > 0 ? p.offset - g.window + 1 : 0;
    k.block = k.first / g.kv_block * g.kv_block;
    k.second = 0;
    k.rewind();
    return k;
  }
  __device__ __forceinline__ void rewind() {
    chunk = first > block ? block + (first - block) / chunk_keys * chunk_keys : block;
  }
  __device__ __forceinline__ bool done() const { return block >= end; }
  __device__ __forceinline__ int block_end(const tl_attention_args &g) const {
    return end - block < g.kv_block ? end : block + g.kv_block;
  }
  __device__ __forceinline__ int count(const tl_attention_args &g) const {
    const int left = block_end(g) - chunk;
    return left < chunk_keys ? left : chunk_keys;
  }
  __device__ __forceinline__ bool measures() const { return !second; }
  __device__ __forceinline__ bool weighs(const tl_attention_args &g) const {
    return second || g.kv_block <= chunk_keys;
  }
  __device__ __forceinline__ bool ends_block(const tl_attention_args &g) const {
    return chunk + chunk_keys >= block_end(g);
  }
  __device__ __forceinline__ bool ends_part(const tl_attention_args &g) const {
    if (!weighs(g) || !ends_block(g)) return false;
    return end - block <= g.kv_block || (block + g.kv_block) % g.split == 0;
  }
  __device__ __forceinline__ void next(const tl_attention_args &g) {
    if (!ends_block(g)) {
      chunk += chunk_keys;
    } else if (!weighs(g)) {
      second = 1;
      rewind();
    } else {
      second = 0;
      if (end - block <= g.kv_block) {
        block = end;
        return;
      }
      block += g.kv_block;
      rewind();
    }
  }
};

// The keys of a chunk that a row sees: low .. high, counted from the chunk's first.
struct Seen {
  int low, high;
};

GPU Seen keys_seen(const tl_attention_args &g, int row, int chunk, int count) {
  const int last = row - chunk;
  return {row - g.window + 1 - chunk, last < count - 1 ? last : count - 1};
}

GPU Seen queries_seen(const tl_attention_args &g, int key, int chunk, int count) {
  const int last = key - chunk + g.window - 1;
  return {key - chunk, last < count - 1 ? last : count - 1};
}

GPU bool is_in(const Seen &s, int i) { return i >= s.low && i <= s.high; }

// ---- softmax ----

// What a sum that stands at level `old` is multiplied by at level `now`.
GPU float fading(float old, float now) { return old == now ? 1.0f : tl_exp2(old - now); }

GPU float weight(const tl_attention_args &g, float score, float level) {
  return tl_exp2(fmaf(score, g.factor, -level));
}

// (l0 + l1) + (l2 + l3), one of which each of four neighbouring lanes holds.
GPU float sum_of_four(float l) {
  l = l + __shfl_xor_sync(~0u, l, 1);
  return l + __shfl_xor_sync(~0u, l, 2);
}

// The state of a row: whether it has one, and its factors and those of the part that is merged.
struct Merge {
  float old_factor, new_factor;
  bool begun, sees;
};

// Moves (t, l) of a row from `total` and `part` to total; the numbers of O follow by merged().
GPU Merge merge(bool begun, bool sees, float &t, float &l, float part_t, float part_l) {
  Merge m = {1.0f, 1.0f, begun, sees};
  if (!sees) return m;
  if (begun) {
    const float u = t > part_t ? t : part_t;
    m.old_factor = fading(t, u);
    m.new_factor = fading(part_t, u);
    t = u;
    l = l * m.old_factor + part_l * m.new_factor;
  } else {
    t = part_t;
    l = part_l;
  }
  return m;
}

// Of a row that has begun; of others, the part is the total.
GPU float merged(const Merge &m, float total, float part) {
  return m.sees ? total * m.old_factor + part * m.new_factor : total;
}

// ---- inputs and outputs ----

template <class T>
GPU const T *row_of(const tl_attention_matrix &m, int64_t row, int head) {
  return (const T *)m.data + row * m.stride + int64_t(head) * m.width;
}

GPU float widened(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

// Two bf16, nearest even, `low` first in memory.
GPU uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

GPU void store_one(const tl_attention_output &out, int64_t at, float x) {
  if (out.bf16)
    ((uint16_t *)out.data)[at] = uint16_t(bf16_pair(x, 0.0f));
  else
    ((float *)out.data)[at] = x;
}

// Channels `channel` (even) and `channel` + 1 of a head.
GPU void store_two(const tl_attention_output &out, int64_t row, int head, int channel, float x,
                   float y) {
  const int64_t at = row * out.stride + int64_t(head) * out.width + channel;
  if (channel >= out.width) return;
  if (!out.pairs) {
    store_one(out, at, x);
    if (channel + 1 < out.width) store_one(out, at + 1, y);
  } else if (out.bf16) {
    *(uint32_t *)((uint16_t *)out.data + at) = bf16_pair(x, y);
  } else {
    *(float2 *)((float *)out.data + at) = make_float2(x, y);
  }
}

GPU void clear_rows(const tl_attention_output &out, const Unused &rows, int head, int threads) {
  for (int row = rows.begin; row < rows.end; row++)
    for (int c = threadIdx.x; c < out.width; c += threads)
      store_one(out, row * out.stride + int64_t(head) * out.width + c, 0.0f);
}

// ---- leaves ----

// After leaf `leaf`: adds the sums that wait for it, like a binary counter, and lets the result
// wait in turn unless it is the root. Each thread keeps its own `count` numbers (a multiple of 4)
// in a block's share of `stack`: [level][count / 4][thread][4].
template <int count, int threads>
GPU void fold(float *stack, int thread, int leaves_log, int leaf, float *sum) {
  float4 *wait = (float4 *)stack + thread;
  int level = 0;
#pragma unroll 1
  for (; leaf >> level & 1; level++, wait += count / 4 * threads)
#pragma unroll
    for (int i = 0; i < count / 4; i++) {
      const float4 other = wait[i * threads];
      sum[4 * i + 0] = other.x + sum[4 * i + 0];
      sum[4 * i + 1] = other.y + sum[4 * i + 1];
      sum[4 * i + 2] = other.z + sum[4 * i + 2];
      sum[4 * i + 3] = other.w + sum[4 * i + 3];
    }
  if (level == leaves_log) return;
#pragma unroll
  for (int i = 0; i < count / 4; i++)
    wait[i * threads] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
}

#endif
