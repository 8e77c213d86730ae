/* attention_hopper_forward.cuh - places and barriers of Hopper's forward kernels, and the warps of
** warpgroup 0, none of which multiplies:
**
**   warp 0      loads     queries, keys and values of the tiles, in the order of their use
**   warp 1      clears    rows of values behind a segment's end, while warp 0 loads on
**   warps 2, 3  write     the rows of warpgroups 1 and 2, which have begun their next tile
**
**   copy engine --> BORDER --> warp 1 --> V_FULL      values at a segment's end
**   warpgroup n --> OUT_FULL --> warp 1 + n --> OUT_EMPTY --> warpgroup n
**
** Where ordinary instructions have read or written what is handed over, every thread arrives.
*/
#ifndef TL_ATTENTION_HOPPER_FORWARD_CUH
#define TL_ATTENTION_HOPPER_FORWARD_CUH

#include "attention_hopper.cuh"

// `width` of q and k, `values` of v and the output; blocks of `block` keys.
template <int width, int values, int block, int k_slots, int v_slots>
struct ForwardPlaces {
  enum {
    QUERIES = 2 * OWN_ROWS * width,  // bytes
    K_SLOT = 2 * block * width,
    V_SLOT = 2 * block * values,
    KEYS = QUERIES,
    VALUES = KEYS + k_slots * K_SLOT,
    // What has no room in registers stays where it is.
    Q_STAYS = width + values > 320,  // in shared memory, as a factor of each product
    // Neither is there room for scores of the next block, nor for O on its way out: a warpgroup
    // ends one product after the other, and O takes the place of the tile's queries.
    ALONE = width > 192,
    BEHIND = VALUES + v_slots * V_SLOT,
    STAGE = ALONE ? 0 : BEHIND,  // O on its way out
    BARRIERS = ALONE ? BEHIND : STAGE + 2 * OWN_ROWS * values,
    Q_FULL = BARRIERS,
    Q_EMPTY = Q_FULL + 8,
    K_FULL = Q_EMPTY + 8,
    K_EMPTY = K_FULL + 8 * k_slots,
    V_FULL = K_EMPTY + 8 * k_slots,
    V_EMPTY = V_FULL + 8 * v_slots,
    BORDER = V_EMPTY + 8 * v_slots,  // the end of a segment has arrived
    BORDER_EMPTY = BORDER + 8,
    OUT_FULL = BORDER_EMPTY + 8,  // of warpgroup 1, then of 2
    OUT_EMPTY = OUT_FULL + 16,
    ITEM = BARRIERS + 256,    // the tile whose queries have arrived
    BORDER_SLOT = ITEM + 16,  // where the end arrives, and its rows
    OUT_ITEM = ITEM + 32,     // of warpgroup 1, then of 2
    OUT_SUMS = ITEM + 256     // t and l of each row
  };
  static_assert(OUT_EMPTY + 16 <= ITEM, "barriers have room");

  static __device__ __forceinline__ void make_barriers(uint32_t base) {
    if (threadIdx.x == 0) {
      barrier_make(base + Q_FULL, 1);
      barrier_make(base + Q_EMPTY, ALONE ? 64 : READER_THREADS);
      for (int i = 0; i < k_slots; i++) {
        barrier_make(base + K_FULL + 8 * i, 1);
        barrier_make(base + K_EMPTY + 8 * i, READERS);
      }
      for (int i = 0; i < v_slots; i++) {
        barrier_make(base + V_FULL + 8 * i, 1);
        barrier_make(base + V_EMPTY + 8 * i, READERS);
      }
      barrier_make(base + BORDER, 1);
      barrier_make(base + BORDER_EMPTY, 32);
      for (int i = 0; i < 2; i++) {
        barrier_make(base + OUT_FULL + 8 * i, READER_THREADS / 2);
        barrier_make(base + OUT_EMPTY + 8 * i, 32);
      }
      barriers_made();
      fence_async();
    }
    __syncthreads();
  }

  // The blocks of a tile: `at` is the one that is weighed. `part` is the last of its part, or its
  // complement where parts before this one have been kept: a register less than a flag takes.
  struct Walk {
    Item item;
    int at, last, part;
    __device__ __forceinline__ bool merged() const { return part < 0; }
    __device__ __forceinline__ bool ends_part() const { return at == (part < 0 ? ~part : part); }
  };

  static __device__ __forceinline__ Walk walk(const tl_attention_args &g, const Item &item) {
    const int oldest = item.offset - g.window + 1, parts = g.split / block;
    Walk w = {item, oldest > 0 ? oldest / block : 0, (item.end() - 1) / block, 0};
    w.part = least(w.last, w.last < parts ? w.last : w.at / parts * parts + parts - 1);
    return w;
  }
  // The part behind the one that ends at block `at`.
  static __device__ __forceinline__ void next_part(const tl_attention_args &g, Walk &w, int at) {
    w.part = ~least(w.last, at + g.split / block);
  }
  static __device__ __forceinline__ int least(int a, int b) { return a < b ? a : b; }

  // ---- warp 0 ----

  struct Loader {
    const tl_attention_hopper_args &a;
    uint32_t base;
    Ring<1> q, border;
    Ring<k_slots> k;
    Ring<v_slots> v;

    __device__ __forceinline__ void item(const Item &item) {
      barrier_wait(base + Q_EMPTY, q.parity ^ 1);
      if (threadIdx.x == 0) {
        store_item(base + ITEM, item);
        if (item.head < 0) {
          barrier_arrive(base + Q_FULL);
        } else {
          barrier_expect(base + Q_FULL, QUERIES);
          load_rows<width, OWN_ROWS, block>(base, a.q, base + Q_FULL, item.start + item.offset,
                                            item.head);
        }
      }
      q.next();
    }
    __device__ __forceinline__ void keys(const Item &item, int at) {
      const uint32_t full = base + K_FULL + 8 * k.slot;
      barrier_wait(base + K_EMPTY + 8 * k.slot, k.parity ^ 1);
      if (threadIdx.x == 0) {
        barrier_expect(full, K_SLOT);
        load_rows<width, block, block>(base + KEYS + k.slot * K_SLOT, a.k, full,
                                       item.start + at * block, item.head / a.g.group);
      }
      k.next();
    }
    // Tells warp 1 that slot `slot` gets `rows` rows; slot -1: there are no more.
    __device__ __forceinline__ void tell(int slot, int rows) {
      barrier_wait(base + BORDER_EMPTY, border.parity ^ 1);
      border.next();
      if (threadIdx.x != 0) return;
      store_item(base + BORDER_SLOT, {slot, rows, 0, 0});
      if (slot < 0) barrier_arrive(base + BORDER);
    }
    __device__ __forceinline__ void values_of(const Item &item, int at) {
      const uint32_t full = base + V_FULL + 8 * v.slot, slot = base + VALUES + v.slot * V_SLOT;
      const int left = item.length - at * block;
      const uint32_t bar = left < block ? base + BORDER : full;
      barrier_wait(base + V_EMPTY + 8 * v.slot, v.parity ^ 1);
      if (left < block) tell(v.slot, left);
      if (threadIdx.x == 0) {
        barrier_expect(bar, V_SLOT);
        load_rows<values, block, block>(slot, a.v, bar, item.start + at * block,
                                        item.head / a.g.group);
      }
      v.next();
    }
  };

  // Keys run a block ahead of values.
  static __device__ __forceinline__ void load_tiles(Loader &to, Feed &feed) {
    const tl_attention_hopper_args &a = to.a;
    Item item = feed.take(a);
    to.item(item);
    if (item.head < 0) return;
    Walk w = walk(a.g, item);
    to.keys(item, w.at);
    while (true) {
      for (; w.at < w.last; w.at++) {
        to.keys(w.item, w.at + 1);
        to.values_of(w.item, w.at);
      }
      item = feed.take(a);
      to.item(item);
      if (item.head < 0) break;
      const Walk next = walk(a.g, item);
      to.keys(item, next.at);
      to.values_of(w.item, w.last);
      w = next;
    }
    to.values_of(w.item, w.last);
  }
  // The same where a tile's queries go only after its last values have come. The first keys do not
  // wait for that.
  static __device__ __forceinline__ void load_alone(Loader &to, Feed &feed) {
    const tl_attention_hopper_args &a = to.a;
    while (true) {
      const Item item = feed.take(a);
      Walk w = walk(a.g, item);
      if (item.head >= 0) to.keys(item, w.at);
      to.item(item);
      if (item.head < 0) return;
      for (; w.at < w.last; w.at++) {
        to.keys(item, w.at + 1);
        to.values_of(item, w.at);
      }
      to.values_of(item, w.last);
    }
  }
  static __device__ __forceinline__ void load(const tl_attention_hopper_args &a, uint32_t base) {
    Loader to = {a, base};
    Feed feed = Feed::begin(a, 0, a.g.heads, a.g.group);
    if constexpr (ALONE)
      load_alone(to, feed);
    else
      load_tiles(to, feed);
    to.tell(-1, 0);
  }

  // ---- warp 1 ----

  // Rows past the segment's end become zeros: what stands there may not be a number.
  static __device__ __forceinline__ void clear_ends(uint32_t base) {
    Ring<1> border;
    while (true) {
      barrier_wait(base + BORDER, border.parity);
      border.next();
      const Item told = load_item(base + BORDER_SLOT);  // slot, rows
      if (told.start < 0) return;
      ::clear_rows<values, block>(base + VALUES + told.start * V_SLOT, told.length,
                                  threadIdx.x % 32);
      fence_async();
      barrier_arrive(base + BORDER_EMPTY);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(base + V_FULL + 8 * told.start);
    }
  }

  // ---- warps 2 and 3 ----

  // Rows of a tile from row `first` of its 128 on, up to 64 of them.
  static __device__ __forceinline__ void write_rows(const tl_attention_hopper_args &a,
                                                    uint32_t base, const Item &item, int first) {
    constexpr int pieces = values / 8;
    const int lane = threadIdx.x % 32, behind = item.length - item.offset - first;
    const int rows = least(behind, 64), width_out = a.g.out.width;
    const int64_t row = int64_t(item.start) + item.offset + first;
    uint16_t *to = (uint16_t *)a.g.out.data + int64_t(item.head) * width_out + row * a.g.out.stride;
#pragma unroll 2
    for (int i = lane; i < rows * pieces; i += 32) {
      const int r = i / pieces, c = i % pieces;
      const uint32_t at = base + STAGE + (c / 8 * OWN_ROWS + first + r) * HALF_ROW;
      const float4 bits = load_shared_f32x4(at + ((c % 8 ^ (r & 7)) << 4));
      if (8 * c < width_out) *(float4 *)(to + r * a.g.out.stride + 8 * c) = bits;
    }
    for (int r = lane; r < rows; r += 32) {
      const float2 sums = load_shared_f32x2(base + OUT_SUMS + 8 * (first + r));
      a.g.lse[(row + r) * a.g.heads + item.head] = sums.x + tl_log2(sums.y);
    }
  }

  // What warpgroup `of` (0 or 1) hands over.
  static __device__ __forceinline__ void write(const tl_attention_hopper_args &a, uint32_t base,
                                               int of) {
    Ring<1> out;
    while (true) {
      barrier_wait(base + OUT_FULL + 8 * of, out.parity);
      out.next();
      const Item item = load_item(base + OUT_ITEM + 16 * of);
      if (item.head < 0) return;
      write_rows(a, base, item, 64 * of);
      barrier_arrive(base + OUT_EMPTY + 8 * of);
      if constexpr (ALONE) barrier_arrive(base + Q_EMPTY);
    }
  }

  static __device__ __forceinline__ void serve(const tl_attention_hopper_args &a, uint32_t base) {
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == 0)
      load(a, base);
    else if (warp == 1)
      clear_ends(base);
    else
      write(a, base, warp - 2);
  }
};

#endif
