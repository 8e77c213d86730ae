/* cache_prompt_tiles.cuh - the tiles of cache_prompt_hopper.cu: which there are, and how what they
** read comes to a block of threads.
**
**   rows     0 1 2 3 4 5 6 7 8 9 ..
**   request  7 7 7 7 7 2 2 2 - -         tiles of at most 4 rows: 0, 4, 5, 8; the last is of no row
**
** Every block of threads lists all tiles for itself, from the places of the step's rows, and takes
** its share of them: one from each round, forth and back, so that neighbours, whose work is alike,
** do not always come to the same one.
*/
#ifndef TL_CACHE_PROMPT_TILES_CUH
#define TL_CACHE_PROMPT_TILES_CUH

#include "../attention/attention_bf16.cuh"
#include "../attention/attention_hopper.cuh"
#include "cache_device.cuh"
#include "cache_prompt_args.h"

enum {
  PAIRS = TL_CACHED_PROMPT_PAIRS,
  QUERIES = TL_CACHED_PROMPT_QUERIES,  // slots
  BOX = 64,                            // positions, and channels
  WARPS = TL_CACHED_PROMPT_THREADS / 32
};
enum { NONE = -1, MISSING = -2, END = -3 };  // in place of a request: no row, not there, no tile

// What is told of a tile, beside its queries.
struct Told {
  int request, row, count, kv_head;
  int last;             // position that some row of it sees
  int position[PAIRS];  // of its rows
};

struct State {
  Told told[QUERIES];
  uint64_t q_full[QUERIES], q_empty[QUERIES];
  uint64_t k_full[8], k_empty[8], v_full[8], v_empty[8];
  int tiles;
};
static_assert(sizeof(State) <= TL_CACHED_PROMPT_STATE, "shared memory");

// Shared memory behind queries and slots.
struct Places {
  uint32_t queries, keys, values;
  State *state;
  uint32_t *starts, *before;  // a bit a row: a tile begins there; how many do before a word
  uint16_t *list;             // rows that tiles begin at, then the number of rows
};

GPU Places places_of(unsigned char *shared, int rows) {
  const uint32_t queries = shared_address(shared), keys = queries + QUERIES * PAIRS * HALF_ROW;
  unsigned char *at = shared + QUERIES * PAIRS * HALF_ROW + TL_CACHED_PROMPT_BYTES;
  const int words = (rows + 31) / 32;
  uint32_t *starts = (uint32_t *)(at + TL_CACHED_PROMPT_STATE);
  return {queries, keys,           keys + TL_CACHED_PROMPT_BYTES / 2, (State *)at,
          starts,  starts + words, (uint16_t *)(starts + 2 * words)};
}

// ---- the list of tiles ----

// A row's request if row and place exist. Nothing waits for anything but the two numbers.
GPU int request_of(const tl_cached_args &g, int request, int position) {
  const bool exists = is_place(g.at, request, position);
  return request < 0 ? NONE : exists ? request : MISSING;
}

// All threads are here. All numbers are asked for at once.
GPU void list_tiles(const tl_cached_args &g, const Places &p) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, words = (g.at.rows + 31) / 32;
  constexpr int at_once = 6;
#pragma unroll 1
  for (int word = warp; word < words; word += at_once * WARPS) {
    int request[at_once][2], position[at_once][2];
#pragma unroll
    for (int i = 0; i < at_once; i++)
#pragma unroll
      for (int e = 0; e < 2; e++) {  // of a row and the one before
        const int row = 32 * (word + i * WARPS) + lane - e;
        const int read = row < 0 ? 0 : row < g.at.rows ? row : g.at.rows - 1;
        request[i][e] = g.at.request[read], position[i][e] = g.at.position[read];
      }
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const int row = 32 * (word + i * WARPS) + lane;
      const bool differs = request_of(g, request[i][0], position[i][0]) !=
                           request_of(g, request[i][1], position[i][1]);
      const bool begins = row < g.at.rows && (differs || row % g.tile == 0);
      const uint32_t bits = __ballot_sync(~0u, begins);
      if (lane == 0 && word + i * WARPS < words) p.starts[word + i * WARPS] = bits;
    }
  }
  __syncthreads();
  if (warp == 0) {
    int sum = 0;
    for (int first = 0; first < words; first += 32) {
      const int own = first + lane < words ? __popc(p.starts[first + lane]) : 0;
      int up_to = own;
#pragma unroll
      for (int i = 1; i < 32; i *= 2) {
        const int other = __shfl_up_sync(~0u, up_to, i);
        if (lane >= i) up_to += other;
      }
      if (first + lane < words) p.before[first + lane] = sum + up_to - own;
      sum += __shfl_sync(~0u, up_to, 31);
    }
    if (lane == 0) {
      p.state->tiles = sum;
      p.list[sum] = uint16_t(g.at.rows);
    }
  }
  __syncthreads();
  for (int word = warp; word < words; word += WARPS) {
    const uint32_t bits = p.starts[word];
    const int place = p.before[word] + __popc(bits & ((1u << lane) - 1));
    if (bits >> lane & 1) p.list[place] = uint16_t(32 * word + lane);
  }
  __syncthreads();
}

// ---- the warp that loads ----

template <int block>
struct Loader {
  enum {
    SLOT = block * HALF_ROW,
    SLOTS = TL_CACHED_PROMPT_BYTES / 2 / SLOT,  // of keys; as many of values
    BOXES = block / BOX,
    BOX_BYTES = BOX * HALF_ROW
  };
  static_assert(SLOTS <= 8, "barriers");

  // Of a tile whose turn it is, or the next one's, asked for early.
  struct Tile {
    int row, count, kv_head, request;  // request: as it is named
    int position[PAIRS / 32];          // of rows lane, lane + 32, ..; -1: there is none
    int page;                          // entry `lane` of the request's table
  };

  const tl_cached_prompt_args &k;
  const Places &p;
  Ring<QUERIES> q;
  Ring<SLOTS> kv;
  Tile own;  // of 32 tiles of this block of threads, one a lane: the first four numbers
  int request, last;
  int page, first_entry;  // this lane's entry of 32 of the table, and which the first of them is

  // Tile `index` of this block of threads; its request is END where there is none.
  __device__ __forceinline__ Tile fetch(int index) {
    const tl_cached_args &g = k.a;
    const int lane = threadIdx.x % 32, tiles = p.state->tiles;
    if (index % 32 == 0) {
      const int round = index + lane, blocks = gridDim.x, turn = blockIdx.x;
      const int unit = round * blocks + (round % 2 ? blocks - 1 - turn : turn);
      const bool there = unit < tiles * g.kv_heads;
      own.kv_head = there ? unit / tiles : 0;
      const int tile = there ? unit - own.kv_head * tiles : 0;
      own.row = p.list[tile];
      own.count = p.list[tile + 1] - own.row;
      own.request = there ? g.at.request[own.row] : END;
    }
    Tile t;
    t.row = __shfl_sync(~0u, own.row, index % 32);
    t.count = __shfl_sync(~0u, own.count, index % 32);
    t.kv_head = __shfl_sync(~0u, own.kv_head, index % 32);
    t.request = __shfl_sync(~0u, own.request, index % 32);
#pragma unroll
    for (int i = 0; i < PAIRS / 32; i++)
      t.position[i] = lane + 32 * i < t.count ? g.at.position[t.row + lane + 32 * i] : -1;
    const bool exists = t.request >= 0 && t.request < g.at.requests && lane < g.at.pages_max;
    t.page = exists ? g.at.table[(int64_t)t.request * g.at.pages_max + lane] : -1;
    return t;
  }

  // All lanes of the warp ask.
  __device__ __forceinline__ int page_at(int position) {
    const tl_cached_args &g = k.a;
    const int entry = position >> g.at.shift;
    if (entry >= first_entry + 32) {
      first_entry = entry;
      const int at = entry + threadIdx.x % 32;
      page = at < g.at.pages_max ? g.at.table[(int64_t)request * g.at.pages_max + at] : -1;
    }
    const int found = __shfl_sync(~0u, page, entry - first_entry);
    return found < 0 || found > g.at.pages ? g.at.pages : found;  // none: read as zeros
  }

  // The boxes of a block's keys and values that some row sees.
  __device__ __forceinline__ void bring(int first, int kv_head) {
    const tl_cached_args &g = k.a;
    const int count = (last - first) / BOX + 1, boxes = count < BOXES ? count : BOXES;
    const uint32_t keys = p.keys + kv.slot * SLOT, values = p.values + kv.slot * SLOT;
    const uint32_t k_full = shared_address(&p.state->k_full[kv.slot]);
    const uint32_t v_full = shared_address(&p.state->v_full[kv.slot]);
    const bool asks = threadIdx.x % 32 == 0;
    int pages[BOXES], place[BOXES];
#pragma unroll
    for (int i = 0; i < BOXES; i++) {
      const int position = first + (i < boxes ? i : 0) * BOX;
      pages[i] = page_at(position);
      place[i] = (position & (g.at.page - 1)) / BOX;
    }
    barrier_wait(shared_address(&p.state->k_empty[kv.slot]), kv.parity ^ 1);
    if (asks) {
      barrier_expect(k_full, boxes * BOX_BYTES);
#pragma unroll
      for (int i = 0; i < BOXES; i++)
        if (i < boxes)
          box_load(keys + i * BOX_BYTES, &k.keys, k_full, 0, place[i], 0,
                   pages[i] * g.kv_heads + kv_head);
    }
    __syncwarp();
    barrier_wait(shared_address(&p.state->v_empty[kv.slot]), kv.parity ^ 1);
    if (asks) {
      barrier_expect(v_full, boxes * BOX_BYTES);
#pragma unroll
      for (int i = 0; i < BOXES; i++)
        if (i < boxes)
          box_load(values + i * BOX_BYTES, &k.values, v_full, 0, kv_head, 0,
                   pages[i] * (g.at.page / BOX) + place[i]);
    }
    __syncwarp();
    kv.next();
  }

  // Tells of a tile, and asks for its queries. Its rows are of one request, or are all none.
  __device__ __forceinline__ void tell(const Tile &t) {
    const tl_cached_args &g = k.a;
    const int lane = threadIdx.x % 32;
    request = request_of(g, t.request, __shfl_sync(~0u, t.position[0], 0));
    last = -1;
#pragma unroll
    for (int i = 0; i < PAIRS / 32; i++) last = t.position[i] > last ? t.position[i] : last;
    last = __reduce_max_sync(~0u, last);
    page = t.page, first_entry = 0;
    barrier_wait(shared_address(&p.state->q_empty[q.slot]), q.parity ^ 1);
    Told &told = p.state->told[q.slot];
#pragma unroll
    for (int i = 0; i < PAIRS / 32; i++) told.position[lane + 32 * i] = t.position[i];
    if (lane == 0) {
      told.request = request, told.row = t.row, told.count = t.count;
      told.kv_head = t.kv_head, told.last = last;
    }
    __syncwarp();
    const uint32_t bar = shared_address(&p.state->q_full[q.slot]);
    if (lane == 0 && request < 0) barrier_arrive(bar);
    if (lane == 0 && request >= 0) {
      barrier_expect(bar, g.tile * g.group * HALF_ROW);
      box_load(p.queries + q.slot * PAIRS * HALF_ROW, &k.q, bar, 0, t.kv_head * g.group, t.row);
    }
    __syncwarp();
    q.next();
  }

  __device__ __forceinline__ void end() {
    barrier_wait(shared_address(&p.state->q_empty[q.slot]), q.parity ^ 1);
    if (threadIdx.x % 32 != 0) return;
    p.state->told[q.slot].request = END;
    barrier_arrive(shared_address(&p.state->q_full[q.slot]));
  }

  static __device__ __forceinline__ void run(const tl_cached_prompt_args &k, const Places &p) {
    Loader loader = {k, p};
    Tile tile = loader.fetch(0);
    if (k.a.ahead) earlier_wait();
#pragma unroll 1
    for (int index = 1; tile.request != END; index++) {
      const int kv_head = tile.kv_head;
      loader.tell(tile);
      tile = loader.fetch(index);
#pragma unroll 1
      for (int first = 0; loader.request >= 0 && first <= loader.last; first += block)
        loader.bring(first, kv_head);
    }
    loader.end();
  }
};

#endif
