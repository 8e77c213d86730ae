/* pass_ring.cuh - the weights of a pass on their way through shared memory.
**
** A block has tiles first, first + blocks, .. of a product; a job is one leaf of a tile, and up to
** 15 jobs at a time, a round, have a warp each; leaves of a tile are in the same round. A slot has
** 8 features of up to 512 k of one job, and slots come in the order in which the warps of a round
** need them. One warp brings them all: two that take turns may lap each other, and a barrier cannot
** tell a slot that is free from one that was free a lap before.
**
** A reader may come to a slot while the bytes of the lap before are still on their way to it, for
** another warp: copies end out of order, and the parity of a barrier is the same every other lap. So
** it waits until that lap's reader has freed the slot, then for its own lap's bytes.
**
**   k of the jobs       0 .. 511             512 .. 1023
**   slots            | job 0 | job 1 | .. | job 0 | job 1 | ..      round after round, phase after
**                                                                   phase
*/
#ifndef TL_PASS_RING_CUH
#define TL_PASS_RING_CUH

#include "../device.cuh"
#include "../hopper.cuh"
#include "pass_args.h"

/* Where the ring and its barriers lie. */
struct Weights {
  uint32_t slots, full, empty;
  int count;
};

/* A place in the stream of slots. */
struct Turn {
  int slot;
  uint32_t parity;
  __device__ __forceinline__ void advance(const Weights &r, int by) {
    slot += by;
    while (slot >= r.count) slot -= r.count, parity ^= 1;
  }
};

/* What a block has of a product. */
struct Share {
  int first, jobs;  // tile; leaves of tiles
};

/* Jobs of a round: whole tiles. */
TL_GPU int round_of(const tl_pass_phase &p) {
  return TL_PASS_WARPS >> p.leaves_log << p.leaves_log;
}

TL_GPU Share share_of(const tl_pass_phase &p) {
  const int blocks = gridDim.x, own = blockIdx.x - p.offset;
  const int first = own < 0 ? own + blocks : own, tiles = p.product.tiles;
  const int count = first < tiles ? (tiles - first + blocks - 1) / blocks : 0;
  return {first, count << p.leaves_log};
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
  const int each = p.half / 4, head = own / each, low = head * 2 * p.half + own % each * 4;
  return {part, part, low, low + p.half};
}

/* `bytes` that stand side by side; a multiple of 16. */
TL_GPU void line_load(uint32_t to, const void *from, uint32_t bar, int bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}

/* Lane i < 15 knows where the two groups of job i begin. */
struct Sources {
  const uint16_t *low, *high;
};

TL_GPU Sources sources_of(const tl_pass_phase &p, const Share &own, int job) {
  const tl_gemm_few_args &g = p.product;
  if (job >= own.jobs) return {nullptr, nullptr};
  const int leaf = job & ((1 << p.leaves_log) - 1);
  const Place at = place_of(p, own.first + (job >> p.leaves_log) * gridDim.x);
  const int64_t k = (int64_t)leaf * g.run;
  return {(const uint16_t *)g.weight[at.part] + at.low * g.weight_stride[at.part] + k,
          (const uint16_t *)g.weight[at.high_part] + at.high * g.weight_stride[at.high_part] + k};
}

/* All weights of one round; a lane of the first 8 brings a feature of each slot. */
TL_GPU void bring_round(const tl_pass_phase &p, const Share &own, int first, const Weights &ring,
                        Turn &turn) {
  const tl_gemm_few_args &g = p.product;
  const int lane = threadIdx.x % 32, left = own.jobs - first;
  const int count = left < round_of(p) ? left : round_of(p);
  const Sources mine = sources_of(p, own, lane < count ? first + lane : own.jobs);
  const int64_t ahead = lane % 4 * g.weight_stride[0];
  for (int k = 0; k < g.run; k += TL_PASS_DEPTH) {
    const int bytes = 2 * (g.run - k < TL_PASS_DEPTH ? g.run - k : TL_PASS_DEPTH);
    for (int job = 0; job < count; job++) {
      const uint64_t low = __shfl_sync(~0u, (uint64_t)mine.low, job);
      const uint64_t high = __shfl_sync(~0u, (uint64_t)mine.high, job);
      const uint32_t bar = ring.full + 8 * turn.slot;
      if (lane == 0) {
        barrier_wait(ring.empty + 8 * turn.slot, turn.parity);
        barrier_expect(bar, TL_PASS_FEATURES * bytes);
      }
      __syncwarp();
      if (lane < TL_PASS_FEATURES)
        line_load(ring.slots + turn.slot * TL_PASS_SLOT + lane * TL_PASS_PITCH,
                  (const uint16_t *)(lane < 4 ? low : high) + ahead + k, bar, bytes);
      turn.advance(ring, 1);
    }
  }
}

/* The warp that brings: it waits for slots alone, never for other blocks. */
TL_GPU void bring(const tl_pass_args &s, const Weights &ring) {
  Turn turn = {0, 1};
  for (int i = 0; i < s.count; i++) {
    const tl_pass_phase &p = s.phases[i];
    if (p.kind != TL_PASS_LINEAR) continue;
    const Share own = share_of(p);
    for (int first = 0; first < own.jobs; first += round_of(p))
      bring_round(p, own, first, ring, turn);
  }
}

#endif
