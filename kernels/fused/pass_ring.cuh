/* pass_ring.cuh - the weights of a pass on their way through shared memory.
**
** A block has tiles first, first + blocks, .. of a product; a job is one leaf of a tile, and up to
** 12 jobs at a time, a round, have a warp each; leaves of a tile are in the same round. A slot has
** 8 features of up to 512 k of one job, and slots come in the order in which the warps of a round
** need them. None of the warps that bring can lap another, since a slot is full only when all have
** brought their part, and free only after it was full.
**
**   boxes   a group of four features each, in rows of 128 bytes (pass_boxes.h): two warps have one
**           each, two pairs of warps every other slot. Low groups of all slots stand side by side,
**           then high ones, TL_PASS_APART_BY further. Where all leaves are whole rows of boxes. At
**           most `calm` slots are on their way while the block waits for x, `hurried` while chains
**           run, however many are free
**   lines   512 k of a feature: eight a slot, two a warp; each takes a warp some 90 cycles to begin
**
** A reader may come to a slot up to two laps before its bytes do: other warps may have to free it
** before, copies end out of order, and the parity of a barrier is the same every other lap. So a
** number beside each slot says how often it has been freed; once that is the reader's lap, the
** barrier tells of the reader's own bytes.
**
**   k of the jobs       0 .. 511             512 .. 1023
**   slots            | job 0 | job 1 | .. | job 0 | job 1 | ..      round after round, phase after
**                                                                   phase
*/
#ifndef TL_PASS_RING_CUH
#define TL_PASS_RING_CUH

#include <stddef.h>

#include "../device.cuh"
#include "../hopper.cuh"
#include "pass_args.h"

#ifndef TL_PASS_ONE
#define TL_PASS_ONE 0
#endif
enum { ONE_ROW = TL_PASS_ONE }; /* of x, known when this is compiled */
TL_GPU int rows_of(const tl_pass_phase &p) { return ONE_ROW ? 1 : p.product.rows; }

/* block_now(), read again where it is used: a register of the whole kernel is too much for it. */
TL_GPU int block_now(void) {
  int own;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(own));
  return own;
}

enum {
  BRINGERS = 14, /* the name of their barrier */
  OWN_FEATURES = TL_PASS_FEATURES / TL_PASS_BRINGERS
};

/* Of each slot: barriers that tell of its bytes and of its end, and how often it has ended. Of the
** ring: how many slots may be on their way. */
struct Marks {
  uint64_t full[TL_PASS_SLOTS_MOST], empty[TL_PASS_SLOTS_MOST];
  int freed[TL_PASS_SLOTS_MOST];
  int flight, spare[3];
};

/* Where the ring and its marks lie. */
struct Weights {
  uint32_t slots, marks;
  int count, slot, high;  // slot: from one to the next; high: to the high group of a slot
  int boxed, calm, hurried;
  __device__ __forceinline__ uint32_t full(int i) const { return marks + 8 * i; }
  __device__ __forceinline__ uint32_t empty(int i) const {
    return marks + offsetof(Marks, empty) + 8 * i;
  }
  __device__ __forceinline__ uint32_t freed(int i) const {
    return marks + offsetof(Marks, freed) + 4 * i;
  }
  __device__ __forceinline__ uint32_t flight(void) const { return marks + offsetof(Marks, flight); }
};

/* A place in the stream of slots. */
struct Turn {
  int slot, lap;
  __device__ __forceinline__ void advance(const Weights &r, int by) {
    slot += by;
    while (slot >= r.count) slot -= r.count, lap++;
  }
};

/* For who brings. */
TL_GPU void wait_until_free(const Weights &r, const Turn &turn) {
  barrier_wait(r.empty(turn.slot), (turn.lap & 1) ^ 1);
}
TL_GPU int shared_now(uint32_t at) {
  int word;
  asm volatile("ld.volatile.shared.s32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}
TL_GPU void put_shared(uint32_t at, int word) {
  asm volatile("st.volatile.shared.s32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
}
/* A slot so far before this one has come, so at most so many are on their way: as many as memory
** needs to be busy. What others read meanwhile, x above all, would stand behind the rest of a ring.
** A pair of warps waits for its own slots, since the number is even. */
TL_GPU void wait_until_few(const Weights &r, const Turn &turn) {
  const int slot = turn.slot - shared_now(r.flight()), lap = turn.lap - (slot < 0);
  if (lap >= 0) barrier_wait(r.full(slot < 0 ? slot + r.count : slot), lap & 1);
}
/* For who reads; the second by one lane. */
TL_GPU bool is_turn(const Weights &r, const Turn &turn) {
  return shared_now(r.freed(turn.slot)) == turn.lap;
}
TL_GPU void set_flight(const Weights &r, int slots) { put_shared(r.flight(), slots); }
TL_GPU bool has_come(const Weights &r, const Turn &turn) {
  return is_turn(r, turn) && barrier_is_past(r.full(turn.slot), turn.lap & 1);
}
TL_GPU void wait_until_come(const Weights &r, const Turn &turn) {
  while (!is_turn(r, turn)) {
  }
  barrier_wait(r.full(turn.slot), turn.lap & 1);
}
/* By one lane, once its warp has read the slot. */
TL_GPU void free_slot(const Weights &r, const Turn &turn) {
  put_shared(r.freed(turn.slot), turn.lap + 1);
  barrier_arrive(r.empty(turn.slot));
}

/* `bytes` that stand side by side; a multiple of 16. */
TL_GPU void line_load(uint32_t to, const void *from, uint32_t bar, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

/* The phases of a pass, two at a time in shared memory: weights drive them out of the second-level
** cache between two steps, so the next one comes while one is used. */
struct Script {
  const tl_pass_phase *from, *slots;
  uint32_t arrived;  // two barriers
  int count;

  /* One thread asks, once phase index - 2 is over. */
  __device__ __forceinline__ void ask(int index) const {
    static_assert(sizeof(tl_pass_phase) % 16 == 0, "a phase is copied in pieces of 16 bytes");
    const uint32_t bar = arrived + 8 * (index % 2);
    if (index >= count) return;
    barrier_expect(bar, sizeof(tl_pass_phase));
    line_load(shared_address(slots + index % 2), from + index, bar, sizeof(tl_pass_phase));
  }
  __device__ __forceinline__ const tl_pass_phase &take(int index) const {
    barrier_wait(arrived + 8 * (index % 2), index / 2 % 2);
    return slots[index % 2];
  }
};

/* What a block has of a product. */
struct Share {
  int first, jobs, stride;  // tile; leaves of tiles; from tile to tile
  int log, leaf;            // so many leaves of each tile, from which one on
  __device__ __forceinline__ int tile_of(int job) const { return first + (job >> log) * stride; }
  __device__ __forceinline__ int leaf_of(int job) const { return leaf + (job & ((1 << log) - 1)); }
};

/* Which of a pair a block is. */
TL_GPU int rank_now(void) { return block_now() % 2; }
TL_GPU int has_half(const tl_pass_phase &p) { return !ONE_ROW && p.pairs == TL_PASS_HALF_LEAVES; }

/* Jobs of a round: whole tiles. */
TL_GPU int round_of(const tl_pass_phase &p) {
  const int log = p.leaves_log - has_half(p);
  return TL_PASS_WARPS >> log << log;
}

TL_GPU Share share_of(const tl_pass_phase &p) {
  const int half = has_half(p), log = p.leaves_log - half;
  const int blocks = (gridDim.x >> half) - p.spared;
  const int own = (block_now() >> half) - p.spared - p.offset;
  const int first = own < 0 ? own + blocks : own;
  const int count = p.whole_rounds + (first < p.last_tiles);
  const int jobs = block_now() < p.spared ? 0 : count << log;
  return {first, jobs, blocks, log, half * rank_now() << log};
}

/* The features of a tile: low .. low + 3 of its part, and high .. high + 3. */
struct Place {
  int part, high_part, low, high;
};

TL_GPU Place place_of(const tl_pass_phase &p, int tile) {
  const tl_gemm_few_args &g = p.product;
  if (p.after == TL_PASS_SWIGLU) return {0, 1, 4 * tile, 4 * tile};
  int part = 0;
  while (part + 1 < g.parts && tile >= g.first_tile[part + 1]) part++;
  const int own = tile - g.first_tile[part];
  if (p.after != TL_PASS_ROPE || part == 2) return {part, part, 8 * own, 8 * own + 4};
  const int each = p.half / 4, head = p.half_inverse == 0 ? own : __umulhi(own, p.half_inverse);
  const int low = head * 2 * p.half + (own - head * each) * 4;
  return {part, part, low, low + p.half};
}

/* The second-level cache keeps weights shorter than anything else: a pass reads each once, and what
** it reads in every layer or step, gains, angles, pages, its own code, shall stay there. Behind all
** the weights that are asked for, a read of memory takes thousands of cycles. */
TL_GPU uint64_t weights_policy(void) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
TL_GPU void weights_load(uint32_t to, const void *from, uint32_t bar, int bytes, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(policy)
      : "memory");
}

TL_GPU int bringer(void) { return threadIdx.x / 32 - TL_PASS_WARPS; }

/* Where this warp's group of job `job` begins. */
TL_GPU const uint16_t *source_of(const tl_pass_phase &p, const Share &own, int job) {
  const tl_gemm_few_args &g = p.product;
  if (job >= own.jobs) return nullptr;
  const Place at = place_of(p, own.tile_of(job));
  const int64_t k = (int64_t)own.leaf_of(job) * g.run;
  const bool is_low = bringer() < TL_PASS_BRINGERS / 2;
  const int part = is_low ? at.part : at.high_part, feature = is_low ? at.low : at.high;
  return (const uint16_t *)g.weight[part] + feature * g.weight_stride[part] + k;
}

/* All weights of one round. Lane i < 12 knows where job i begins; lanes 0 and 1 bring a feature
** each of every slot. */
TL_GPU void bring_round(const tl_pass_phase &p, const Share &own, int first, const Weights &ring,
                        uint64_t policy, Turn &turn) {
  const tl_gemm_few_args &g = p.product;
  const int lane = threadIdx.x % 32, left = own.jobs - first;
  const int count = left < round_of(p) ? left : round_of(p);
  const uint16_t *mine = source_of(p, own, lane < count ? first + lane : own.jobs);
  const int feature = OWN_FEATURES * bringer() + lane;
  const int64_t ahead = feature % 4 * g.weight_stride[0];
  for (int k = 0; k < g.run; k += TL_PASS_DEPTH) {
    const int bytes = 2 * (g.run - k < TL_PASS_DEPTH ? g.run - k : TL_PASS_DEPTH);
    for (int job = 0; job < count; job++) {
      const uint64_t from = __shfl_sync(~0u, (uint64_t)mine, job);
      const uint32_t bar = ring.full(turn.slot);
      if (lane == 0) {
        wait_until_free(ring, turn);
        barrier_expect(bar, OWN_FEATURES * bytes);
      }
      __syncwarp();
      if (lane < OWN_FEATURES)
        weights_load(ring.slots + turn.slot * ring.slot + feature * TL_PASS_PITCH,
                     (const uint16_t *)from + ahead + k, bar, bytes, policy);
      turn.advance(ring, 1);
    }
  }
}

/* A box of a map, which is in device memory. */
TL_GPU void weights_box(uint32_t to, const tl_tensor_map *map, uint32_t bar, int feature, int group,
                        int leaf, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(bar), "r"(0), "r"(feature), "r"(group), "r"(leaf), "l"(policy)
      : "memory");
}

/* The same round in boxes. Two warps bring a slot, a group of four features each; two pairs of
** warps have every other slot, and always the same ones. */
TL_GPU void box_round(const tl_pass_phase &p, const tl_tensor_map *maps, const Share &own,
                      int first, const Weights &ring, uint64_t policy, Turn &turn) {
  enum { BYTES = TL_PASS_BOXES / 2 };
  const tl_gemm_few_args &g = p.product;
  const int lane = threadIdx.x % 32, left = own.jobs - first;
  const int count = left < round_of(p) ? left : round_of(p);
  const bool high = bringer() % 2 == 1;
  int part = 0, feature = 0;
  if (lane < count) {
    const Place at = place_of(p, own.tile_of(first + lane));
    part = high ? at.high_part : at.part, feature = high ? at.high : at.low;
  }
  for (int k = 0; k < g.run; k += TL_PASS_DEPTH) {
    for (int job = 0; job < count; job++, turn.advance(ring, 1)) {
      if (turn.slot % 2 != bringer() / 2) continue;
      const int from = __shfl_sync(~0u, feature, job), of = __shfl_sync(~0u, part, job);
      const uint32_t bar = ring.full(turn.slot);
      if (lane == 0) {
        wait_until_free(ring, turn);
        wait_until_few(ring, turn);
        barrier_expect(bar, BYTES);
        weights_box(ring.slots + turn.slot * ring.slot + (high ? ring.high : 0), maps + of, bar,
                    from, k / TL_PASS_GROUP, own.leaf_of(first + job), policy);
      }
      __syncwarp();
    }
  }
}

/* The warps that bring: they wait for slots and each other, never for other blocks. */
TL_GPU void bring(const Script &script, const tl_tensor_map *maps, const Weights &ring) {
  Turn turn = {0, 0};
  const uint64_t policy = weights_policy();
  const bool asks = bringer() == 0 && threadIdx.x % 32 == 0;
  if (asks) script.ask(0), script.ask(1);
  for (int i = 0; i < script.count; i++) {
    const tl_pass_phase &p = script.take(i);
    if (ring.boxed && bringer() == 2 && threadIdx.x % 32 < TL_GEMM_FEW_PARTS &&
        i + 1 < script.count)
      map_prefetch(maps + (i + 1) * TL_GEMM_FEW_PARTS + threadIdx.x % 32);
    if (p.kind == TL_PASS_LINEAR) {
      const Share own = share_of(p);
      for (int first = 0; first < own.jobs && ring.boxed; first += round_of(p))
        box_round(p, maps + i * TL_GEMM_FEW_PARTS, own, first, ring, policy, turn);
      for (int first = 0; first < own.jobs && !ring.boxed; first += round_of(p))
        bring_round(p, own, first, ring, policy, turn);
    }
    __syncwarp();
    named_sync<32 * TL_PASS_BRINGERS>(BRINGERS);
    if (asks) script.ask(i + 2);
  }
}

#endif
