/* exchange.cu - rows of experts between GPUs that read each other's memory: moe/exchange.h says
** which. How many there are stands in the counts, which every rank has, so nobody asks the host.
**
** Every block of threads makes the same list of the runs of rows that this rank takes, in the order
** in which they lie in y, and copies its share of the rows:
**
**   home 0   y: rows of my experts            run (slot, source, piece, rank of the source)
**   home 1   y: my rows at home, of a wave    run (owner, slot, piece)
**
**   first[run]   rows of y before it          from[run]   where its rows begin in x of its rank
**
** `from` adds up what a rank holds before the run, in that rank's own order: one warp for each.
** In a slab (exchange_args.h) that order is the same, so `from` counts what is for this rank alone.
*/
#include "../device.cuh"
#include "exchange_args.h"

enum { THREADS = TL_EXCHANGE_THREADS, WARP = TL_DEVICE_WARP, AHEAD = 4 };
constexpr uint32_t ALL = 0xffffffffu;

TL_GPU int32_t count_of(const tl_exchange_args &k, int rank, int piece, int expert) {
  return expert < 0 ? 0 : k.counts[((int64_t)rank * k.pieces + piece) * k.experts + expert];
}

/* The expert of a slot of an owner in this wave. */
TL_GPU int expert_of(const tl_exchange_args &k, int owner, int slot) {
  return k.listing[(k.wave * k.ranks + owner) * k.slots + slot];
}

/* Whether rows of `rank` come in a slab. */
TL_GPU bool in_slab(const tl_exchange_args &k, int rank) {
  return k.mode == TL_EXCHANGE_PLACE && rank != k.own;
}

/* The sum of the lanes up to this one. */
TL_GPU int32_t running(int32_t v) {
  const int lane = threadIdx.x % WARP;
#pragma unroll
  for (int step = 1; step < WARP; step *= 2) {
    const int32_t other = __shfl_up_sync(ALL, v, step);
    if (lane >= step) v += other;
  }
  return v;
}

/* Rows of `rank` at the listing places begin .. end - 1. A whole warp. */
TL_GPU int32_t rows_between(const tl_exchange_args &k, int rank, int begin, int end) {
  int32_t sum = 0;
  for (int i = threadIdx.x % WARP; i < (end - begin) * k.pieces; i += WARP)
    sum += count_of(k, rank, i % k.pieces, k.listing[begin + i / k.pieces]);
  return (int32_t)__reduce_add_sync(ALL, (uint32_t)sum);
}

/* Of run i: the rank that has its rows, and how many there are. */
typedef struct tl_run {
  int rank;
  int32_t rows;
} tl_run;

/* home 0: slot, source, piece, rank. */
TL_GPU tl_run run_to_owner(const tl_exchange_args &k, int i) {
  const int member = i % k.share, piece = i / k.share % k.pieces;
  const int source = i / k.share / k.pieces % (k.ranks / k.share);
  const int slot = i / (k.ranks * k.pieces), rank = source * k.share + member;
  return {rank, count_of(k, rank, piece, expert_of(k, k.position, slot))};
}

/* home 1: owner, slot, piece. */
TL_GPU tl_run run_to_home(const tl_exchange_args &k, int i) {
  const int piece = i % k.pieces, slot = i / k.pieces % k.slots, owner = i / k.pieces / k.slots;
  return {owner, count_of(k, k.position, piece, expert_of(k, owner, slot))};
}

/* The runs of `rank` to this owner, in the order (slot, piece) of that home. */
TL_GPU void find_at_home(const tl_exchange_args &k, int rank, int32_t *from) {
  const int place = (k.wave * k.ranks + k.position) * k.slots;
  int32_t sum = in_slab(k, rank) ? 0 : rows_between(k, rank, k.wave * k.ranks * k.slots, place);
  const int runs = k.slots * k.pieces;
  for (int base = 0; base < runs; base += WARP) {
    const int i = base + threadIdx.x % WARP, piece = i % k.pieces, slot = i / k.pieces;
    const int32_t v = i < runs ? count_of(k, rank, piece, expert_of(k, k.position, slot)) : 0;
    const int32_t up_to = running(v);
    if (i < runs)
      from[((slot * (k.ranks / k.share) + rank / k.share) * k.pieces + piece) * k.share +
           rank % k.share] = sum + up_to - v;
    sum += __shfl_sync(ALL, up_to, WARP - 1);
  }
}

/* The runs of `owner` to this home, in the order (slot, source, piece, rank) of that owner. */
TL_GPU void find_at_owner(const tl_exchange_args &k, int owner, int32_t *from) {
  const int each = k.ranks * k.pieces, runs = k.slots * each;
  int32_t sum = 0;
  for (int base = 0; base < runs; base += WARP) {
    const int i = base + threadIdx.x % WARP, slot = i / each;
    const int member = i % k.share, piece = i / k.share % k.pieces;
    const int rank = i / k.share / k.pieces % (k.ranks / k.share) * k.share + member;
    const bool there = i < runs && (rank == k.position || !in_slab(k, owner));
    const int32_t v = there ? count_of(k, rank, piece, expert_of(k, owner, slot)) : 0;
    const int32_t up_to = running(v);
    if (i < runs && rank == k.position)
      from[(owner * k.slots + slot) * k.pieces + piece] = sum + up_to - v;
    sum += __shfl_sync(ALL, up_to, WARP - 1);
  }
}

/* first (runs + 1), from (runs). All threads. */
TL_GPU void make_runs(const tl_exchange_args &k, int runs, int32_t *first, int32_t *from) {
  __shared__ int32_t before;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  for (int i = threadIdx.x; i < runs; i += THREADS) {
    const tl_run run = k.home ? run_to_home(k, i) : run_to_owner(k, i);
    first[i] = k.mode == TL_EXCHANGE_PACK && run.rank != k.own ? 0 : run.rows;
  }
  for (int rank = warp; rank < k.ranks; rank += THREADS / WARP) {
    if (k.home)
      find_at_owner(k, rank, from);
    else
      find_at_home(k, rank, from);
  }
  if (warp == 0) { /* rows of y before this wave */
    const bool whole = k.home && k.mode != TL_EXCHANGE_PACK;
    const int32_t rows = whole ? rows_between(k, k.position, 0, k.wave * k.ranks * k.slots) : 0;
    if (lane == 0) before = rows;
  }
  __syncthreads();
  if (warp == 0) {
    int32_t sum = before;
    for (int base = 0; base < runs; base += WARP) {
      const int32_t v = base + lane < runs ? first[base + lane] : 0, up_to = running(v);
      __syncwarp();
      if (base + lane < runs) first[base + lane] = sum + up_to - v;
      sum += __shfl_sync(ALL, up_to, WARP - 1);
    }
    if (lane == 0) first[runs] = sum;
  }
  __syncthreads();
}

/* Adds the bytes that have come from others. One warp. */
TL_GPU void count_bytes(const tl_exchange_args &k, int runs, const int32_t *first) {
  uint32_t rows = 0;
  for (int i = threadIdx.x; i < runs; i += WARP) {
    const int rank = (k.home ? run_to_home(k, i) : run_to_owner(k, i)).rank;
    if (rank != k.own) rows += (uint32_t)(first[i + 1] - first[i]);
  }
  rows = __reduce_add_sync(ALL, rows);
  if (threadIdx.x == 0)
    *(volatile int64_t *)k.exchanged += k.bytes < 0 ? (int64_t)rows * k.row_bytes : k.bytes;
}

/* The run that has row r of y: first[run] <= r < first[run + 1]. */
TL_GPU int find_run(const int32_t *first, int runs, int32_t r) {
  int low = 0, high = runs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first[middle] <= r)
      low = middle;
    else
      high = middle;
  }
  return low;
}

template <class Word>
TL_GPU void copy_rows(const tl_exchange_args &k, int runs, const int32_t *first,
                      const int32_t *from, int lanes) {
  const int64_t words = k.row_bytes / (int64_t)sizeof(Word);
  const int each = THREADS / lanes, lane = threadIdx.x % lanes;
  const bool packs = k.mode == TL_EXCHANGE_PACK;
  const int64_t room = packs ? k.at + k.most : k.room;
  const int32_t begin = packs ? (int32_t)k.at : first[0];
  const int32_t end = first[runs] < room ? first[runs] : (int32_t)room;
  for (int32_t r = begin + blockIdx.x * each + threadIdx.x / lanes; r < end;
       r += gridDim.x * each) {
    const int run = find_run(first, runs, r);
    const int rank = (k.home ? run_to_home(k, run) : run_to_owner(k, run)).rank;
    const char *x = k.parts == nullptr ? k.x : (const char *)k.parts[rank].x;
    int64_t row = from[run] + r - first[run];
    if (in_slab(k, rank)) {
      row -= k.at;
      if (row < 0 || row >= k.most) continue;
    } else if (k.mode == TL_EXCHANGE_PLACE && k.at > 0) {
      continue; /* mine, placed with the first message */
    }
    const Word *source = (const Word *)x + row * words;
    Word *target = (Word *)k.y + (packs ? r - k.at : r) * words;
    for (int64_t w = lane; w < words; w += AHEAD * lanes) {
      Word value[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (w + i * lanes < words) value[i] = source[w + i * lanes];
#pragma unroll
      for (int i = 0; i < AHEAD; i++)
        if (w + i * lanes < words) target[w + i * lanes] = value[i];
    }
  }
}

/* Dynamic shared memory: first (runs + 1), from (runs). */
extern "C" __global__ void __launch_bounds__(THREADS)
    peer_exchange(const __grid_constant__ tl_exchange_args k) {
  extern __shared__ int32_t shared[];
  const int runs = k.slots * k.ranks * k.pieces;
  int32_t *first = shared, *from = shared + runs + 1;
  make_runs(k, runs, first, from);
  if (k.exchanged != nullptr && blockIdx.x == 0 && threadIdx.x < WARP) count_bytes(k, runs, first);
  uint64_t bits = (uint64_t)k.y | (uint64_t)k.row_bytes | (uint64_t)k.x;
  for (int r = 0; k.parts != nullptr && r < k.ranks; r++) bits |= (uint64_t)k.parts[r].x;
  int lanes = 1;
  if (bits % 16 == 0) {
    while (lanes < WARP && lanes < k.row_bytes / 16) lanes *= 2;
    copy_rows<uint4>(k, runs, first, from, lanes);
  } else if (bits % 4 == 0) {
    while (lanes < WARP && lanes < k.row_bytes / 4) lanes *= 2;
    copy_rows<uint32_t>(k, runs, first, from, lanes);
  } else {
    while (lanes < WARP && lanes < k.row_bytes / 2) lanes *= 2;
    copy_rows<uint16_t>(k, runs, first, from, lanes);
  }
}
