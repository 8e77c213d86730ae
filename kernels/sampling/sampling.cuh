// sampling.cuh - how a block of threads chooses for a row: sampling.h says what.
//
//   largest      all threads             weights      all threads
//   S at borders a thread a block of 256 candidates, then one thread over the blocks
//   find         S never falls: one thread halves the borders, then walks through one block
//   order        a stable radix sort by falling z, which keeps equal ones by rising id
//
//   sort, a digit at a time     | warp 0's run | warp 1's run | ..     runs of the list, in order
//   place of an element         smaller digits + the same digit in runs before, and in its own
#ifndef TL_SAMPLING_CUH
#define TL_SAMPLING_CUH

#include "../../runtime/random.h"
#include "../device.cuh"
#include "sampling_args.h"

enum {
  THREADS = TL_SAMPLE_THREADS,
  WARP = TL_DEVICE_WARP,
  WARPS = THREADS / WARP,
  DIGITS = 256,
  BLOCK = TL_SAMPLE_BLOCK
};

struct Shared {
  uint32_t places[WARPS][DIGITS];
  float border[TL_SAMPLE_BLOCKS_MAX + 1];  // S before a block
  float stage[BLOCK];
  uint64_t best[WARPS];
  uint32_t sums[WARPS];
  int32_t found;
};

struct List {
  uint32_t *keys;
  int32_t *ids;
};

// What a block works with: its row and its part of scratch.
struct Row {
  const float *z;
  float *weight;
  List list, other;
  int32_t columns;
  float m, temperature;
};

// Rises as z falls; -0 is +0.
TL_GPU uint32_t key_of(float z) {
  const uint32_t bits = tl_math_bits(z + 0.0f);
  return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

TL_GPU float z_of(uint32_t key) { return tl_math_float(key >> 31 ? key : ~key & 0x7fffffffu); }

TL_GPU float weight_of(const Row &r, float z) {
  return tl_exp2(((z - r.m) / r.temperature) * TL_LOG2E);
}

TL_GPU void consider(float z, int32_t i, uint64_t &best, int &bad) {
  const uint64_t own = (uint64_t)key_of(z) << 32 | (uint32_t)i;
  bad |= !(z < tl_math_float(0x7f800000u));
  best = own < best ? own : best;
}

// The least of key and id: the largest z, of equal ones the first. All ones: z holds a NaN or
// +infinity, or nothing but -infinity.
TL_GPU uint64_t largest(const Row &r, Shared &s) {
  enum { LOADS = 4 };  // of four numbers each, under way at once
  uint64_t best = ~UINT64_C(0);
  int bad = 0;
  const int32_t fours = (uintptr_t)r.z % 16 == 0 ? r.columns / 4 : 0;
  for (int32_t first = threadIdx.x; first < fours; first += LOADS * THREADS) {
    float4 z[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++)
      if (first + j * THREADS < fours) z[j] = ((const float4 *)r.z)[first + j * THREADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
      const int32_t i = 4 * (first + j * THREADS);
      if (i >= 4 * fours) break;
      consider(z[j].x, i, best, bad), consider(z[j].y, i + 1, best, bad);
      consider(z[j].z, i + 2, best, bad), consider(z[j].w, i + 3, best, bad);
    }
  }
  for (int32_t i = 4 * fours + threadIdx.x; i < r.columns; i += THREADS)
    consider(r.z[i], i, best, bad);
  for (int step = WARP / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, best, step);
    best = other < best ? other : best;
  }
  if (threadIdx.x % WARP == 0) s.best[threadIdx.x / WARP] = best;
  bad = __syncthreads_or(bad);
  for (int i = 0; i < WARPS; i++) best = s.best[i] < best ? s.best[i] : best;
  const float m = z_of((uint32_t)(best >> 32));
  return bad || m == tl_math_float(0xff800000u) ? ~UINT64_C(0) : best;
}

TL_GPU void weigh_ids(const Row &r) {
  for (int32_t i = threadIdx.x; i < r.columns; i += THREADS) r.weight[i] = weight_of(r, r.z[i]);
}

TL_GPU void weigh_candidates(const Row &r, int32_t count) {
  for (int32_t i = threadIdx.x; i < count; i += THREADS)
    r.weight[i] = weight_of(r, z_of(r.list.keys[i]));
}

// The chain of a block of up to 256 weights.
TL_GPU float chain(const float *weight, int count) {
  float sum = 0.0f;
  int i = 0;
#pragma unroll 4
  for (; i + 4 <= count; i += 4) {
    const float4 w = *(const float4 *)(weight + i);
    sum = (((sum + w.x) + w.y) + w.z) + w.w;
  }
  for (; i < count; i++) sum = sum + weight[i];
  return sum;
}

// S at the borders of the first `count` weights; returns S of the last.
TL_GPU float sum_blocks(const Row &r, int32_t count, Shared &s) {
  const int32_t blocks = (count + BLOCK - 1) / BLOCK;
  __syncthreads();  // weights are there, and borders have been read
  for (int32_t b = threadIdx.x; b < blocks; b += THREADS) {
    const int32_t left = count - b * BLOCK;
    s.border[b + 1] = chain(r.weight + b * BLOCK, left < BLOCK ? left : BLOCK);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    s.border[0] = 0.0f;
    for (int32_t b = 0; b < blocks; b++) s.border[b + 1] = s.border[b] + s.border[b + 1];
  }
  __syncthreads();
  return s.border[blocks];
}

TL_GPU bool reaches(float sum, float bound, bool equal) {
  return equal ? sum >= bound : sum > bound;
}

// The first candidate of `count` whose S is above the bound (or at it, where `equal`); -1: none.
// After sum_blocks.
TL_GPU int32_t find(const Row &r, int32_t count, float bound, bool equal, Shared &s) {
  const int32_t blocks = (count + BLOCK - 1) / BLOCK;
  int32_t low = 0, high = blocks;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (reaches(s.border[middle + 1], bound, equal))
      high = middle;
    else
      low = middle + 1;
  }
  if (low == blocks) return -1;
  const int32_t first = low * BLOCK, length = count - first < BLOCK ? count - first : BLOCK;
  for (int32_t i = threadIdx.x; i < length; i += THREADS) s.stage[i] = r.weight[first + i];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    int32_t i = 0;
    for (; i < length - 1; i++) {
      sum = sum + s.stage[i];
      if (reaches(s.border[low] + sum, bound, equal)) break;
    }
    s.found = first + i;
  }
  __syncthreads();
  return s.found;
}

// ---- the sort ----

// The run of a warp: `first` .. `end` - 1.
struct Run {
  int32_t first, end;
};

TL_GPU Run run_of(int32_t columns) {
  const int32_t length = (columns + THREADS - 1) / THREADS * WARP;
  const int32_t first = threadIdx.x / WARP * length;
  return {first, columns - first < length ? columns : first + length};
}

// Counts of digits in runs become the places of their first elements.
TL_GPU void place_digits(Shared &s) {
  enum { EACH = WARPS * DIGITS / THREADS };
  const int digit = threadIdx.x * EACH / WARPS, run = threadIdx.x * EACH % WARPS;
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  uint32_t own = 0, sum, before = 0;
  for (int i = 0; i < EACH; i++) own += s.places[run + i][digit];
  sum = own;
  for (int step = 1; step < WARP; step *= 2) {
    const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == WARP - 1) s.sums[warp] = sum;
  __syncthreads();
  for (int i = 0; i < warp; i++) before += s.sums[i];
  before += sum - own;
  for (int i = 0; i < EACH; i++) {
    const uint32_t count = s.places[run + i][digit];
    s.places[run + i][digit] = before;
    before += count;
  }
  __syncthreads();
}

// From one list to the other.
TL_GPU void sort_digit(const Row &r, int shift, const List &from, const List &to, Shared &s) {
  const Run run = run_of(r.columns);
  const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  __syncthreads();  // the list is there
  for (int i = lane; i < DIGITS; i += WARP) s.places[warp][i] = 0;
  __syncwarp();
  for (int32_t i = run.first + lane; i < run.end; i += WARP)
    atomicAdd(&s.places[warp][from.keys[i] >> shift & (DIGITS - 1)], 1u);
  __syncthreads();
  place_digits(s);
  for (int32_t first = run.first; first < run.end; first += WARP) {
    const int32_t i = first + lane;
    const uint32_t all = __ballot_sync(0xffffffffu, i < run.end);
    if (i < run.end) {
      const uint32_t key = from.keys[i], digit = key >> shift & (DIGITS - 1);
      const uint32_t same = __match_any_sync(all, digit), before = same & ((1u << lane) - 1);
      const uint32_t place = s.places[warp][digit] + __popc(before);
      __syncwarp(all);
      if (before == 0) s.places[warp][digit] += __popc(same);
      to.keys[place] = key;
      to.ids[place] = from.ids[i];
    }
    __syncwarp();
  }
}

// Candidates by falling z, equal ones by rising id, in r.list.
TL_GPU void put_in_order(const Row &r, Shared &s) {
  for (int32_t i = threadIdx.x; i < r.columns; i += THREADS)
    r.list.keys[i] = key_of(r.z[i]), r.list.ids[i] = i;
  for (int shift = 0; shift < 32; shift += 16) {
    sort_digit(r, shift, r.list, r.other, s);
    sort_digit(r, shift + 8, r.other, r.list, s);
  }
  __syncthreads();
}

// ---- a row ----

TL_GPU float unit_of(const int32_t *draws) {
  const uint64_t seed = (uint32_t)draws[1] | (uint64_t)(uint32_t)draws[2] << 32;
  const uint64_t request = (uint32_t)draws[3] | (uint64_t)(uint32_t)draws[4] << 32;
  const tl_random_key key = tl_random_key_of(seed, TL_SAMPLE_STREAM);
  return tl_random_unit(tl_random_words(key, (uint32_t)draws[5], request).word[0]);
}

// The candidates that stay, their weights in r.weight.
TL_GPU int32_t cut(const Row &r, int32_t top_k, float top_p, Shared &s) {
  const bool some = top_k > 0 && top_k < r.columns;
  int32_t count = some ? top_k : r.columns;
  float total = 0.0f;
  if (!some) {
    weigh_ids(r);
    total = sum_blocks(r, count, s);
  }
  put_in_order(r, s);
  weigh_candidates(r, count);
  if (!(top_p < 1.0f)) return count;
  const float sum = sum_blocks(r, count, s);
  const int32_t last = find(r, count, top_p * (some ? sum : total), true, s);
  return last >= 0 ? last + 1 : count;
}

TL_GPU int32_t choose(Row &r, float top_p, const int32_t *draws, Shared &s) {
  const uint64_t best = largest(r, s);
  if (best == ~UINT64_C(0)) return -1;
  if (r.temperature == 0.0f) return (int32_t)(uint32_t)best;
  const bool is_ordered = (draws[0] > 0 && draws[0] < r.columns) || top_p < 1.0f;
  int32_t count = r.columns;
  r.m = z_of((uint32_t)(best >> 32));
  if (is_ordered)
    count = cut(r, draws[0], top_p, s);
  else
    weigh_ids(r);
  const float total = sum_blocks(r, count, s);
  const int32_t found = find(r, count, unit_of(draws) * total, false, s);
  const int32_t place = found >= 0 ? found : count - 1;
  return is_ordered ? r.list.ids[place] : place;
}

// A row that is known, is none, or takes the largest only, needs none: it has a block of its own.
TL_GPU bool needs_scratch(const tl_sample_args &g, int32_t row) {
  return g.next[row] == -1 && g.controls[2 * row] != 0.0f;
}

// The part of scratch of block `place`, for rows of `columns`.
TL_GPU Row scratch_of(const tl_sample_args &g, int32_t place) {
  const int64_t columns = (g.columns + 3) / 4 * 4;
  Row r = {};
  r.columns = g.columns;
  r.weight = (float *)(g.scratch + place * g.scratch_bytes);
  r.list = {(uint32_t *)r.weight + columns, (int32_t *)r.weight + 2 * columns};
  r.other = {(uint32_t *)r.weight + 3 * columns, (int32_t *)r.weight + 4 * columns};
  return r;
}

// Chooses from row `row` of z.
TL_GPU int32_t choose_row(const tl_sample_args &g, Row &r, int32_t row, Shared &s) {
  r.z = g.z + (int64_t)row * g.width;
  r.temperature = g.controls[2 * row];
  return choose(r, g.controls[2 * row + 1], g.draws + 6 * row, s);
}

#endif
