/* exchange.cu - rows of experts between GPUs that write each other's memory: moe/exchange.h says
** which. How many there are stands in the counts, which every rank has, so nobody asks the host.
**
** Every block of threads makes the same list of the runs of rows that this rank sends, rank by
** rank, its own first and then the others from its right neighbour on, so that no two ranks begin
** with the same one:
**
**   run   (rank, slot, piece)   to owners: rows of mine for one of its experts
**                               home: rows of one of my experts that are that home's
**   start[run]   rows of runs before it       at[run]   where its rows begin here, in x
**   there[run]   where they begin there, in y of its rank
**
** `there` adds up what a rank will hold before the run, in that rank's own order: one warp for
** each. In a slab (exchange_args.h) that order is the same, so it counts what is from this rank
** alone. A rank that takes rows out of slabs has the same lists, with here and there exchanged.
**
** Rows for this rank need no link, and rows for others little else. So they are mixed, in
** proportion:
**
**   item      0   1   2   3   4   5 ..
**   row       m0  o0  m1  o1  m2  o2     m: mine, o: another rank's; three of four with four ranks
**
** Rows are written to other GPUs and not read from them: a write need not come back, and a link
** carries 337 GB/s of writes where it carries 318 of reads.
*/
#include "../gemm/tile.cuh"
#include "exchange_args.h"
#include "meet.cuh"

enum { THREADS = TL_EXCHANGE_THREADS, WARP = TL_DEVICE_WARP, AHEAD = 2 };
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

/* Whether this side of the rows is a home: x where rows are sent, y where they come. */
TL_GPU bool is_home(const tl_exchange_args &k) {
  return (k.home != 0) != (k.mode == TL_EXCHANGE_PUSH);
}

/* Runs of a rank, and the run of a place in them. */
TL_GPU int runs_of_rank(const tl_exchange_args &k) { return k.slots * k.pieces; }
TL_GPU int run_of(const tl_exchange_args &k, int rank, int slot, int piece) {
  const int away = rank >= k.own ? rank - k.own : rank - k.own + k.ranks;
  return (away * k.slots + slot) * k.pieces + piece;
}
TL_GPU int rank_of(const tl_exchange_args &k, int run) {
  const int rank = k.own + run / runs_of_rank(k);
  return rank < k.ranks ? rank : rank - k.ranks;
}

/* home: whether this rank is the home of the run's rows, or their owner. */
TL_GPU int32_t rows_of_run(const tl_exchange_args &k, int run, bool home) {
  const int rank = rank_of(k, run), slot = run / k.pieces % k.slots, piece = run % k.pieces;
  if (k.mode == TL_EXCHANGE_PACK && rank != k.own) return 0;
  return home ? count_of(k, k.position, piece, expert_of(k, rank, slot))
              : count_of(k, rank, piece, expert_of(k, k.position, slot));
}

/* The i-th run in the order of this side. Home: owner, slot, piece; owner: slot, source, piece,
** rank. */
TL_GPU int run_at(const tl_exchange_args &k, int i) {
  if (is_home(k)) return run_of(k, i / runs_of_rank(k), i / k.pieces % k.slots, i % k.pieces);
  const int member = i % k.share, piece = i / k.share % k.pieces;
  const int source = i / k.share / k.pieces % (k.ranks / k.share);
  return run_of(k, source * k.share + member, i / (k.ranks * k.pieces), piece);
}

/* The runs of this owner at the home `rank`, in the order (slot, piece) there. A home's y holds the
** rows of all waves, its x those of one. */
TL_GPU void find_at_home(const tl_exchange_args &k, int rank, int32_t *there) {
  const int wave = k.wave * k.ranks * k.slots, place = wave + k.position * k.slots;
  const int first = k.mode == TL_EXCHANGE_PUSH ? 0 : wave;
  int32_t sum = in_slab(k, rank) ? 0 : rows_between(k, rank, first, place);
  const int runs = k.slots * k.pieces;
  for (int base = 0; base < runs; base += WARP) {
    const int i = base + threadIdx.x % WARP, piece = i % k.pieces, slot = i / k.pieces;
    const int32_t v = i < runs ? count_of(k, rank, piece, expert_of(k, k.position, slot)) : 0;
    const int32_t up_to = running(v);
    if (i < runs) there[run_of(k, rank, slot, piece)] = sum + up_to - v;
    sum += __shfl_sync(ALL, up_to, WARP - 1);
  }
}

/* The runs of this home at `owner`, in the order (slot, source, piece, rank) there. */
TL_GPU void find_at_owner(const tl_exchange_args &k, int owner, int32_t *there) {
  const int each = k.ranks * k.pieces, runs = k.slots * each;
  int32_t sum = 0;
  for (int base = 0; base < runs; base += WARP) {
    const int i = base + threadIdx.x % WARP, slot = i / each;
    const int member = i % k.share, piece = i / k.share % k.pieces;
    const int rank = i / k.share / k.pieces % (k.ranks / k.share) * k.share + member;
    const bool counts = i < runs && (rank == k.position || !in_slab(k, owner));
    const int32_t v = counts ? count_of(k, rank, piece, expert_of(k, owner, slot)) : 0;
    const int32_t up_to = running(v);
    if (i < runs && rank == k.position) there[run_of(k, owner, slot, piece)] = sum + up_to - v;
    sum += __shfl_sync(ALL, up_to, WARP - 1);
  }
}

/* start (runs + 1), at (runs), there (runs); x and y of every rank. */
typedef struct tl_runs {
  int count;
  int32_t *start, *at, *there;
  const tl_peer_row *parts;
} tl_runs;

/* Running sums of the rows of runs: in the order of this side to `at`, then in their own to
** `start`. One warp. */
TL_GPU void add_up(const tl_exchange_args &k, const tl_runs &r, int32_t before) {
  const int lane = threadIdx.x % WARP;
  for (int base = 0; base < r.count; base += WARP) {
    const int run = base + lane < r.count ? run_at(k, base + lane) : 0;
    const int32_t v = base + lane < r.count ? r.start[run] : 0, up_to = running(v);
    if (base + lane < r.count) r.at[run] = before + up_to - v;
    before += __shfl_sync(ALL, up_to, WARP - 1);
  }
  int32_t sum = 0;
  __syncwarp();
  for (int base = 0; base < r.count; base += WARP) {
    const int32_t v = base + lane < r.count ? r.start[base + lane] : 0, up_to = running(v);
    __syncwarp();
    if (base + lane < r.count) r.start[base + lane] = sum + up_to - v;
    sum += __shfl_sync(ALL, up_to, WARP - 1);
  }
  if (lane == 0) r.start[r.count] = sum;
}

/* All threads. */
TL_GPU void make_runs(const tl_exchange_args &k, const tl_runs &r) {
  const int warp = threadIdx.x / WARP;
  const bool home = is_home(k);
  for (int run = threadIdx.x; run < r.count; run += THREADS)
    r.start[run] = rows_of_run(k, run, home);
  for (int rank = warp; rank < k.ranks; rank += THREADS / WARP) {
    if (home)
      find_at_owner(k, rank, r.there);
    else
      find_at_home(k, rank, r.there);
  }
  __syncthreads();
  if (warp == 0) { /* y of a home */
    const bool whole = home && k.mode == TL_EXCHANGE_PLACE;
    add_up(k, r, whole ? rows_between(k, k.position, 0, k.wave * k.ranks * k.slots) : 0);
  }
  __syncthreads();
}

/* Adds the bytes that come from others. One warp. */
TL_GPU void count_bytes(const tl_exchange_args &k, int runs) {
  uint32_t rows = 0;
  for (int run = runs_of_rank(k) + threadIdx.x; run < runs; run += WARP)
    rows += (uint32_t)rows_of_run(k, run, k.home != 0);
  rows = __reduce_add_sync(ALL, rows);
  if (threadIdx.x == 0)
    *(volatile int64_t *)k.exchanged += k.bytes < 0 ? (int64_t)rows * k.row_bytes : k.bytes;
}

/* The run that has row i of all: start[run] <= i < start[run + 1]. */
TL_GPU int find_run(const tl_runs &r, int32_t i) {
  int low = 0, high = r.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (r.start[middle] <= i)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* Rows as they are mixed: item i is a row of another rank where i * share reaches a whole number,
** in units of 2^-32. `share` is rounded up, so that all of them have come at the end. */
typedef struct tl_mix {
  int64_t first, mine, items; /* first: of my rows; items: all of them */
  uint64_t share;
} tl_mix;

TL_GPU tl_mix mix_of(const tl_exchange_args &k, const tl_runs &r) {
  const int64_t own = r.start[runs_of_rank(k)], all = r.start[r.count];
  tl_mix m = {0, own, all, 0};
  if (k.mode == TL_EXCHANGE_PACK) {
    m.first = k.at;
    m.mine = m.items = max(min(own - k.at, k.most), int64_t(0));
  } else {
    if (k.mode == TL_EXCHANGE_PLACE && k.at > 0) m.mine = 0; /* placed with the first message */
    m.items = m.mine + all - own;
    if (m.items > 0) m.share = (((uint64_t)(all - own) << 32) + m.items - 1) / m.items;
  }
  return m;
}

/* Where the row of item i comes from and where it belongs; NULL: there is no such item, or its row
** is not in this message. */
typedef struct tl_row {
  const char *source;
  char *target;
} tl_row;

TL_GPU tl_row row_of(const tl_exchange_args &k, const tl_runs &r, const tl_mix &m, int64_t i) {
  if (i >= m.items) return {nullptr, nullptr};
  const int64_t others = (int64_t)((uint64_t)i * m.share >> 32);
  const bool is_other = (int64_t)((uint64_t)(i + 1) * m.share >> 32) > others;
  const int32_t row =
      (int32_t)(is_other ? r.start[runs_of_rank(k)] + others : m.first + i - others);
  const int run = find_run(r, row), rank = rank_of(k, run);
  int64_t here = r.at[run] + row - r.start[run], there = r.there[run] + row - r.start[run];
  if (k.mode == TL_EXCHANGE_PUSH) {
    char *y = r.parts == nullptr ? k.y : (char *)r.parts[rank].y;
    if (there >= k.room) return {nullptr, nullptr};
    return {k.x + here * k.row_bytes, y + there * k.row_bytes};
  }
  const char *x = r.parts == nullptr ? k.x : (const char *)r.parts[rank].x;
  if (in_slab(k, rank)) {
    there -= k.at;
    if (there < 0 || there >= k.most) return {nullptr, nullptr};
  }
  if (k.mode == TL_EXCHANGE_PACK) here -= k.at;
  if (here >= k.room) return {nullptr, nullptr};
  return {x + there * k.row_bytes, k.y + here * k.row_bytes};
}

/* Two rows at a time: mine and another's. */
template <class Word>
TL_GPU void copy_rows(const tl_exchange_args &k, const tl_runs &r, int lanes) {
  const tl_mix m = mix_of(k, r);
  const int64_t words = k.row_bytes / (int64_t)sizeof(Word), each = 2 * (THREADS / lanes);
  const int lane = threadIdx.x % lanes;
  for (int64_t i = blockIdx.x * each + threadIdx.x / lanes * 2; i < m.items;
       i += gridDim.x * each) {
    const tl_row row[2] = {row_of(k, r, m, i), row_of(k, r, m, i + 1)};
    for (int64_t w = lane; w < words; w += AHEAD * lanes) {
      Word value[2][AHEAD];
#pragma unroll
      for (int t = 0; t < 2; t++)
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
          if (row[t].source != nullptr && w + a * lanes < words)
            value[t][a] = ((const Word *)row[t].source)[w + a * lanes];
#pragma unroll
      for (int t = 0; t < 2; t++)
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
          if (row[t].source != nullptr && w + a * lanes < words)
            ((Word *)row[t].target)[w + a * lanes] = value[t][a];
    }
  }
}

/* Rows through shared memory, where more bytes can be on their way than registers hold. A warp has
** STAGES places for pieces of rows, and each lane takes out what it brought itself:
**
**   place 0   [ piece 0 comes ][goes][ piece 3 comes ..
**   place 1         [ piece 1 comes ][goes]
**   place 2               [ piece 2 comes ][goes]
*/
enum { STAGES = TL_EXCHANGE_STAGES, PIECE = TL_EXCHANGE_PIECE / 16, WARPS = THREADS / WARP };

typedef struct tl_piece {
  uint4 *target;
  int words; /* 16 bytes each; 0: there is none */
} tl_piece;

TL_GPU tl_piece bring(const tl_exchange_args &k, const tl_runs &r, const tl_mix &m, int64_t i,
                      int pieces, uint32_t place) {
  const int words = (int)(k.row_bytes / 16), lane = threadIdx.x % WARP;
  const int64_t item = pieces == 1 ? i : tl_quotient(i, pieces);
  const tl_row row = row_of(k, r, m, item);
  const int at = (int)(i - item * pieces) * PIECE + lane;
  if (row.source != nullptr) {
#pragma unroll
    for (int w = 0; w < PIECE; w += WARP)
      if (at + w < words) copy_async(place + w * 16, (const uint4 *)row.source + at + w, 16);
  }
  copy_commit();
  return {(uint4 *)row.target + at, row.source == nullptr ? 0 : words - at};
}

TL_GPU void pass_rows(const tl_exchange_args &k, const tl_runs &r, const uint4 *places) {
  const tl_mix m = mix_of(k, r);
  const int warp = threadIdx.x / WARP, pieces = (int)((k.row_bytes / 16 + PIECE - 1) / PIECE);
  const int64_t end = m.items * pieces, step = (int64_t)gridDim.x * WARPS;
  const uint4 *own = places + warp * STAGES * PIECE + threadIdx.x % WARP;
  const uint32_t place = shared_address(own);
  tl_piece piece[STAGES];
  int64_t i = (int64_t)blockIdx.x * WARPS + warp, next = i;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++, next += step)
    piece[s] = bring(k, r, m, next, pieces, place + s * PIECE * 16);
  while (i < end) {
#pragma unroll
    for (int s = 0; s < STAGES; s++, i += step, next += step) {
      const int free = (s + STAGES - 1) % STAGES;
      piece[free] = bring(k, r, m, next, pieces, place + free * PIECE * 16);
      copy_wait<STAGES - 1>();
#pragma unroll
      for (int w = 0; w < PIECE; w += WARP)
        if (w < piece[s].words) piece[s].target[w] = own[s * PIECE + w];
    }
  }
  copy_wait<0>();
}

template <class Word>
TL_GPU void copy_all(const tl_exchange_args &k, const tl_runs &r) {
  int lanes = 1;
  while (lanes < WARP && lanes < k.row_bytes / (int64_t)sizeof(Word)) lanes *= 2;
  copy_rows<Word>(k, r, lanes);
}

/* Dynamic shared memory: places, if there is room for them; start (runs + 1), at (runs), there
** (runs).
**
** The meeting before rows are written is this kernel's own: a kernel for it would take registers of
** a multiprocessor that products beside it count on. The first block says that this rank has come;
** each makes its lists meanwhile and waits for the others itself. Blocks come in pairs, since
** products do: one alone would keep a pair from its multiprocessor's neighbour. */
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS)
    peer_exchange(const __grid_constant__ tl_exchange_args k) {
  extern __shared__ uint4 places[];
  __shared__ tl_peer_row met[TL_PEERS_MAX];
  const int count = k.ranks * runs_of_rank(k);
  const bool meets = k.meet.n > 0, speaks = blockIdx.x == 0;
  const uint64_t turn = meets ? *k.meet.turn + 1 : 0; /* counted by the meeting behind it */
  int32_t *lists = (int32_t *)(places + (k.staged ? STAGES * WARPS * PIECE : 0));
  const tl_runs r = {count, lists, lists + count + 1, lists + 2 * count + 1,
                     meets ? met : k.parts};
  if (meets && speaks) come(k.meet, turn);
  make_runs(k, r);
  if (meets) find(k.meet, turn, speaks, met);
  if (k.exchanged != nullptr && blockIdx.x == 0 && threadIdx.x < WARP) count_bytes(k, count);
  uint64_t bits = (uint64_t)k.y | (uint64_t)k.row_bytes | (uint64_t)k.x;
  for (int i = 0; r.parts != nullptr && i < k.ranks; i++)
    bits |= k.mode == TL_EXCHANGE_PUSH ? (uint64_t)r.parts[i].y : (uint64_t)r.parts[i].x;
  if (bits % 16 == 0 && k.staged)
    pass_rows(k, r, places);
  else if (bits % 16 == 0)
    copy_all<uint4>(k, r);
  else if (bits % 4 == 0)
    copy_all<uint32_t>(k, r);
  else
    copy_all<uint16_t>(k, r);
}
