/* cache_hopper_ring.cuh - how boxes of keys and values come to a block of cache_hopper.cu.
**
**   units    rows and KV heads, gridDim.x apart; of each, groups of BLOCKS blocks of keys
**   boxes    of a group: all of its keys, then all of its values; 64 positions each
**   ring     slots for `depth` boxes, from unit to unit; full: a box has come, empty: READERS warps
**            have read it
**
** A map reads 16, 32, 48 or 64 positions of a box, so that of a row's last box little is brought
** that the row does not see; the rest are zeros.
*/
#ifndef TL_CACHE_HOPPER_RING_CUH
#define TL_CACHE_HOPPER_RING_CUH

#include "../attention/attention_bf16.cuh"
#include "../hopper.cuh"
#include "cache_hopper_args.h"

enum {
  KEYS = TL_CACHED_HOPPER_KEYS,
  BLOCKS = TL_CACHED_HOPPER_BLOCKS,
  BOX = 64,  // positions, and channels
  BYTES = TL_CACHED_HOPPER_BOX,
  BOXES = BLOCKS * KEYS / BOX,  // of keys, of a group
  SLOTS = TL_CACHED_HOPPER_SLOTS,
  HEADS = 8,
  READERS = 4,
  SUMS = READERS,   // the warp that adds weights up
  ASKS = SUMS + 1,  // the warp that asks for boxes
  MEET = 32 * (READERS + 1)
};
enum { MAXIMA = 1, WEIGHTS, TOTALS, OWN };  // meetings, with the warp of sums but for the last

struct Shared {
  unsigned char rounded[BOXES][1024];  // of 64 keys, bf16: [head][key], as a factor of products
  unsigned char query[1024];           // [head][channel], the same
  float weight[BOXES * BOX][HEADS];    // by place_of_key
  float most[BLOCKS][READERS][HEADS];
  float fade[BLOCKS][HEADS];
  float l[HEADS];
  uint64_t full[SLOTS], empty[SLOTS];
  uint32_t written;  // boxes of the first unit that this step writes, a bit each
};
static_assert(sizeof(Shared) <= TL_CACHED_HOPPER_REST, "shared memory");

GPU int least(int a, int b) { return a < b ? a : b; }

struct Unit {
  int row, kv_head, request, last;
  int boxes;              // of keys; 0: no such row, request or position
  int pages, first_page;  // this lane's entry of 32, and which the first of them is
};

GPU Unit unit_of(const tl_cached_args &g, int index, int request, int position) {
  Unit u = {index / g.kv_heads, index % g.kv_heads, request, position, 0, 0, -32};
  const bool exists = u.request >= 0 && u.request < g.at.requests && u.last >= 0 &&
                      u.last >> g.at.shift < g.at.pages_max;
  u.last = exists ? u.last : -1;
  u.boxes = exists ? u.last / BOX + 1 : 0;
  return u;
}

// A row's request and position, read long before they are used.
struct Named {
  int request, position;
};
GPU Named name_of(const tl_cached_args &g, int row) {
  if (row >= g.at.rows) return {-1, -1};
  return {g.at.request[row], g.at.position[row]};
}

// The entries of the table around a position, one a lane.
GPU void look_up(const tl_cached_args &g, Unit &u, int position) {
  const int entry = position >> g.at.shift;
  if (entry >= u.first_page && entry < u.first_page + 32) return;
  u.first_page = entry;
  const int own = entry + threadIdx.x % 32;
  u.pages =
      own << g.at.shift <= u.last ? g.at.table[(int64_t)u.request * g.at.pages_max + own] : -1;
  if (u.pages < 0 || u.pages >= g.at.pages) u.pages = g.at.pages;
}

GPU int page_of_unit(const tl_cached_args &g, Unit &u, int position) {
  look_up(g, u, position);
  return __shfl_sync(~0u, u.pages, (position >> g.at.shift) - u.first_page);
}

// The ring, and a place in it: the parity is that of a barrier's phase that is waited for.
struct Ring {
  uint32_t boxes, full, empty;
  int depth;
};
struct Place {
  int slot;
  uint32_t parity;
};
GPU void move_on(const Ring &r, Place &p, int count) {
  p.slot += count;
  if (p.slot >= r.depth) p.slot -= r.depth, p.parity ^= 1;
}

// Asks for box `box` of keys or values of a unit. All lanes of a warp are here.
GPU void ask(const tl_cached_hopper_args &k, Unit &u, const Ring &r, int slot, int box,
             int values) {
  const tl_cached_args &g = k.a;
  const int position = box * BOX, page = page_of_unit(g, u, position);
  if (threadIdx.x % 32 != 0) return;
  const int place = (position & (g.at.page - 1)) / BOX, seen = u.last - position;
  const int which = seen < BOX - 1 ? seen / 16 : 3;
  const uint32_t to = r.boxes + slot * BYTES, bar = r.full + 8 * slot;
  barrier_expect(bar, BYTES);
  if (!values)
    box_load_soon(to, &k.keys[which], bar, 0, place, 0, page * g.kv_heads + u.kv_head,
                  soon_policy());
  else
    box_load_soon(to, &k.values[which], bar, 0, u.kv_head, 0, page * (g.at.page / BOX) + place,
                  soon_policy());
}

// How many boxes of the first unit find a free slot.
GPU int first_boxes(const Unit &u, const Ring &r) {
  return least(2 * least(u.boxes, BOXES), r.depth);
}

// Those of them that are in `which`: a bit for 64 positions. A multiprocessor's only block asks by
// all warps. Where there are more, all of them would ask for values as early as for keys, and wait
// longer for keys: there one warp asks, box after box.
GPU void ask_first(const tl_cached_hopper_args &k, Unit &u, const Ring &r, uint32_t which) {
  const int keys = least(u.boxes, BOXES);
  which &= (1u << keys) - 1;
  which = (which | which << keys) & ((1u << first_boxes(u, r)) - 1);
  static_assert(TL_CACHED_HOPPER_THREADS == 6 * 32, "a bit for every sixth box");
  if (k.spread)
    which &= 0x41041041u << threadIdx.x / 32;
  else if (threadIdx.x / 32 != ASKS)
    return;
#pragma unroll 1
  for (; which != 0; which &= which - 1) {
    const int i = __ffs(which) - 1, values = i >= keys;
    ask(k, u, r, i, i - values * keys, values);
  }
}

// Asks for all boxes of this block's units but the `asked` first ones.
GPU void ask_all(const tl_cached_hopper_args &k, Unit u, const Ring &r, int units, int asked) {
  const tl_cached_args &g = k.a;
  Place p = {0, 1};
#pragma unroll 1
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    Unit next = {};
    bool knows_next = false;
#pragma unroll 1
    for (int first = 0; first < u.boxes; first += BOXES) {
      const int count = least(u.boxes - first, BOXES);
#pragma unroll 1
      for (int i = 0; i < 2 * count; i++, move_on(r, p, 1)) {
        if (i == count && !knows_next) {  // the next unit's pages come while this one's boxes do
          const Named name = name_of(g, (unit + gridDim.x) / g.kv_heads);
          next = unit_of(g, unit + gridDim.x, name.request, name.position);
          if (next.boxes > 0) look_up(g, next, 0);
          knows_next = true;
        }
        if (asked > 0) {
          asked--;
          continue;
        }
        barrier_wait(r.empty + 8 * p.slot, p.parity);
        const int values = i >= count;
        ask(k, u, r, p.slot, first + i - values * count, values);
      }
    }
    if (!knows_next) {
      const Named name = name_of(g, (unit + gridDim.x) / g.kv_heads);
      next = unit_of(g, unit + gridDim.x, name.request, name.position);
    }
    u = next;
  }
}

// The box that a row writes; -1: none.
GPU int box_written(const tl_cached_args &g, const Named &row) {
  if (row.request < 0 || row.request >= g.at.requests || row.position < 0) return -1;
  const int entry = row.position >> g.at.shift;
  if (entry >= g.at.pages_max) return -1;
  const int page = g.at.table[(int64_t)row.request * g.at.pages_max + entry];
  return page * (g.at.page / BOX) + (row.position & (g.at.page - 1)) / BOX;
}

// Which of the first unit's boxes some row of this step writes: all threads look through the rows.
// `rows`: the thread's first two.
GPU uint32_t find_written(const tl_cached_args &g, const Unit &u, const Named (&rows)[2],
                          Shared &shared) {
  const int lane = threadIdx.x % 32, position = lane * BOX;
  int own[2] = {box_written(g, rows[0]), box_written(g, rows[1])};
  const int page = __shfl_sync(~0u, u.pages, position >> g.at.shift);
  const bool is_there = lane < BOXES && position <= u.last && page < g.at.pages;
  const int box = is_there ? page * (g.at.page / BOX) + (position & (g.at.page - 1)) / BOX : -2;
  uint32_t hits = 0;
#pragma unroll 1
  for (int row = threadIdx.x - lane;; row += 2 * TL_CACHED_HOPPER_THREADS) {
#pragma unroll
    for (int i = 0; i < BOXES; i++) {
      const int one = __shfl_sync(~0u, box, i);
      hits |= uint32_t(own[0] == one || own[1] == one) << i;
    }
    if (row + 2 * TL_CACHED_HOPPER_THREADS >= g.at.rows) break;
#pragma unroll
    for (int i = 0; i < 2; i++)
      own[i] = box_written(g, name_of(g, row + lane + (2 + i) * TL_CACHED_HOPPER_THREADS));
  }
  hits = __reduce_or_sync(~0u, hits);
  if (lane == 0 && hits != 0) atomicOr(&shared.written, hits);
  __syncthreads();
  return shared.written;
}

// `count` boxes of the ring from a place on: what lane i knows of the i-th one, or of the last.
struct Slots {
  int slot;
  uint32_t parity, box;
};
GPU Slots slots_at(const Ring &r, const Place &p, int count) {
  const int own = p.slot + least(threadIdx.x % 32, count - 1);
  const bool wraps = own >= r.depth;
  const int slot = wraps ? own - r.depth : own;
  return {slot, p.parity ^ uint32_t(wraps), r.boxes + slot * BYTES};
}
// They have come.
GPU void wait_for(const Ring &r, const Slots &s) {
  barrier_wait(r.full + 8 * s.slot, s.parity);
  __syncwarp();
}
// The warp has read them.
GPU void give_back(const Ring &r, const Slots &s, int count) {
  __syncwarp();
  if (threadIdx.x % 32 < count) barrier_arrive(r.empty + 8 * s.slot);
}
GPU uint32_t box_at(const Slots &s, int i) { return __shfl_sync(~0u, s.box, i); }

#endif
