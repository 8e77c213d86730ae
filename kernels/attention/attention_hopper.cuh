/* attention_hopper.cuh - what Hopper's kernels of attention share: the walk over the list of tiles,
** rings of slots, boxes of a head, rows of no segment, and the store of sums.
**
**   load warp   waits until a slot is empty, has it filled, adds what the copy engine cannot
**   readers     wait until it is full, use it, arrive at `empty`: once for each warp, or each
**               thread where ordinary instructions have read what the next round overwrites
**
** A slot of a matrix: 64 channels are a half; a row of a half is 128 bytes, swizzled (hopper.cuh).
*/
#ifndef TL_ATTENTION_HOPPER_CUH
#define TL_ATTENTION_HOPPER_CUH

#include "../hopper.cuh"
#include "attention_device.cuh"
#include "attention_hopper_args.h"

enum {
  READERS = 8,  // warps of the two warpgroups
  READER_THREADS = 256,
  OWN_ROWS = TL_ATTENTION_TILE,
  HALF_ROW = 128,  // bytes
  BOX_ROWS = 64    // of hopper.cuh's factors across
};

// A tile and a head; there are no more where head is negative.
struct Item {
  int start, length, offset, head;
  // Own rows of the segment behind the tile's last one.
  __device__ __forceinline__ int end() const {
    return length - offset < OWN_ROWS ? length : offset + OWN_ROWS;
  }
};

// A place in a ring of slots.
template <int slots>
struct Ring {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    slot = slot + 1;
    if (slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

// The list of (tile, head) pairs as one load warp sees it: a KV head after the other, in it the
// tiles, in each its `group` heads. The counter is asked early: its answer takes a while.
struct Feed {
  int index, answer, pairs, first, group;

  // `heads` heads from `first` on.
  GPU Feed begin(const tl_attention_hopper_args &a, int first, int heads, int group) {
    Feed f = {int(blockIdx.x), 0, a.plan->count * heads, first, group};
    f.ask(a);
    return f;
  }
  __device__ __forceinline__ void ask(const tl_attention_hopper_args &a) {
    if (threadIdx.x == 0 && index < pairs) answer = int(gridDim.x) + atomicAdd(&a.plan->next, 1);
  }
  __device__ __forceinline__ Item take(const tl_attention_hopper_args &a) {
    if (index >= pairs) return {0, 0, 0, -1};
    const tl_attention_listed *tiles = (const tl_attention_listed *)(a.plan + 1);
    const int each = a.plan->count * group, run = index / each, rest = index - run * each;
    const int tile = rest / group, head = first + run * group + rest - tile * group;
    const tl_attention_listed found = tiles[tile];
    index = __shfl_sync(~0u, answer, 0);
    ask(a);
    return {found.start, found.length, found.offset, head};
  }
};

GPU void store_item(uint32_t to, const Item &item) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(item.start),
               "r"(item.length), "r"(item.offset), "r"(item.head)
               : "memory");
}
GPU Item load_item(uint32_t from) {
  Item item;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(item.start), "=r"(item.length), "=r"(item.offset), "=r"(item.head)
               : "r"(from)
               : "memory");
  return item;
}

// `rows` rows of a head, in boxes of `box` rows; the halves of `rows` rows follow each other.
template <int width, int rows, int box>
GPU void load_rows(uint32_t to, const tl_tensor_map &map, uint32_t bar, int row, int head) {
#pragma unroll
  for (int half = 0; half < width / 64; half++)
#pragma unroll
    for (int at = 0; at < rows; at += box)
      box_load(to + (half * rows + at) * HALF_ROW, &map, bar, half * 64, head, row + at);
}

// Zeros in rows `first` .. rows - 1 of a slot, by one warp, of which this is lane `lane`.
template <int width, int rows>
GPU void clear_rows(uint32_t slot, int first, int lane) {
  const uint32_t zeros[4] = {0, 0, 0, 0};
  for (int i = first * 8 + lane; i < rows * 8; i += 32)
#pragma unroll
    for (int half = 0; half < width / 64; half++)
      store_shared(slot + half * rows * HALF_ROW + i * 16, zeros);
}

// The warp's 16 rows from `row` on of a slot, as fragments of A.
template <int width, int rows>
GPU void load_fragments(uint32_t slot, int row, uint32_t (&a)[width / 4]) {
  const int lane = threadIdx.x % 32, r = lane % 16;
#pragma unroll
  for (int k = 0; k < width / 16; k++) {
    const uint32_t piece = (2 * k + lane / 16) & 7;
    load_matrices(slot + (k / 4 * rows + row + r) * HALF_ROW + ((piece ^ (r & 7)) << 4), a + 4 * k);
  }
}

// sum = chain over channels of the fragments with `rows` rows of a slot.
template <int width, int rows>
GPU void multiply_along(float *sum, const uint32_t *a, uint32_t slot) {
#pragma unroll
  for (int k = 0; k < width / 16; k++)
    product<rows, ALONG, ALONG>::run(
        sum, a + 4 * k, factor_at<ALONG>(slot + k / 4 * rows * HALF_ROW) + k % 4 * 2, k > 0);
}
// The same, with the warpgroup's 64 rows of a slot of `own` rows, which begin at `a`.
template <int width, int own, int rows>
GPU void multiply_along(float *sum, uint32_t a, uint32_t slot) {
#pragma unroll
  for (int k = 0; k < width / 16; k++)
    product<rows, ALONG, ALONG>::run(sum, factor_at<ALONG>(a + k / 4 * own * HALF_ROW) + k % 4 * 2,
                                     factor_at<ALONG>(slot + k / 4 * rows * HALF_ROW) + k % 4 * 2,
                                     k > 0);
}
// sum resumes the chain over `rows` rows of a slot; `weights` are fragments of A. The halves are
// further apart than factor_at says where they have more than 64 rows.
template <int width, int rows>
GPU void multiply_across(float *sum, const uint32_t *weights, uint32_t slot) {
  const uint64_t apart = uint64_t((rows - BOX_ROWS) * HALF_ROW / 16) << 16;
#pragma unroll
  for (int k = 0; k < rows / 16; k++)
    product<width, ALONG, ACROSS>::run(sum, weights + 4 * k,
                                       factor_at<ACROSS>(slot) + apart + k * 128, 1);
}

// What a product reads from registers outlives its end; in the source it is not used after its
// start.
template <int count>
GPU void outlive(const uint32_t (&a)[count]) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" ::"r"(a[i]) : "memory");
}

// Sums, rounded, as fragments of A.
template <int columns>
GPU void round_sums(const float (&s)[columns / 2], uint32_t (&a)[columns / 4]) {
#pragma unroll
  for (int i = 0; i < columns / 4; i++) a[i] = bf16_pair(s[2 * i], s[2 * i + 1]);
}

// Rows g and g + 8 of the warp's 16, which begin at row `row` of the segment.
template <int width>
GPU void store_sums(const tl_attention_output &out, const Item &item, int row, float factor,
                    const float (&sum)[width / 2]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int e = 0; e < 2; e++) {
    const int at = row + threadIdx.x % 32 / 4 + 8 * e;
    if (at >= item.length) continue;
#pragma unroll
    for (int i = 0; i < width / 8; i++)
      store_two(out, int64_t(item.start) + at, item.head, 8 * i + 2 * t,
                factor * sum[4 * i + 2 * e], factor * sum[4 * i + 2 * e + 1]);
  }
}

#endif
