/* fused_rows.cu - what fused.cu does, for steps of many rows of bf16: a warp a row, all that it
** reads asked for at once. fused_cuda.c says which steps.
**
** fused.cu has a row a block, so that few rows are done by many threads. With 2,048 rows its blocks
** come in four or five waves, each of which waits for memory with little under way.
**
**   add_norm     lane l has the pieces 32 i + l of 8 elements: each i is a group of the row rule
**   rope_write   lane l has pairs 8 (l mod 4) .. of the heads l / 4, + 8, ..: 16 rows a block;
**                their keys meet in shared memory, since in a page positions stand side by side
*/
#include "../cache/cache_device.cuh"
#include "../device.cuh"
#include "fused_args.h"

enum {
  HEAD = 64,
  PAIRS = 32,
  UNITS = PAIRS / TL_P, /* of a head */
  AT_ONCE = TL_DEVICE_WARP / UNITS,
  ROWS = TL_ROPE_ROWS_THREADS / TL_DEVICE_WARP
};

/* ---- a sum and its norm ---- */

/* The tree over a row's groups: v[g] is the lane's part of group g. As warp_total of norm.cu. */
template <int groups>
TL_GPU float total_of(float (&v)[groups]) {
#pragma unroll
  for (int step = 1; step < TL_DEVICE_WARP; step *= 2)
#pragma unroll
    for (int g = 0; g < groups; g++) v[g] = v[g] + __shfl_xor_sync(0xffffffffu, v[g], step);
#pragma unroll
  for (int step = 1; step < groups; step *= 2)
#pragma unroll
    for (int g = 0; g < groups; g += 2 * step) v[g] = v[g] + v[g + step];
  return v[0];
}

TL_GPU uint4 pack(const float *x) {
  return make_uint4(tl_bf16_pair(x[0], x[1]), tl_bf16_pair(x[2], x[3]), tl_bf16_pair(x[4], x[5]),
                    tl_bf16_pair(x[6], x[7]));
}

/* Rows of up to 256 `groups` elements. What a row lacks is +0, which changes no sum. */
template <int groups>
TL_GPU void add_norm(const tl_fused_norm_args &k) {
  begin_next();
  const tl_norm_args &a = k.sum.norm;
  const int64_t row = tl_thread() / TL_DEVICE_WARP;
  const int lane = threadIdx.x % TL_DEVICE_WARP;
  wait_earlier();
  if (row >= a.rows) return;
  uint4 as[groups], bs[groups];
  float v[groups], x[TL_P], y[TL_P];
#pragma unroll
  for (int g = 0; g < groups; g++) {
    const int64_t at = (g * TL_DEVICE_WARP + lane) * TL_P;
    const bool there = at < a.dim;
    as[g] = there ? tl_fetch_whole(k.sum.a, row * a.dim + at) : make_uint4(0, 0, 0, 0);
    bs[g] = there ? tl_fetch_whole(k.sum.b, row * a.dim + at) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int g = 0; g < groups; g++) {
    const int64_t at = (g * TL_DEVICE_WARP + lane) * TL_P;
    tl_widen_whole(as[g], x);
    tl_widen_whole(bs[g], y);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = x[i] + y[i];
    as[g] = pack(x);
    if (at < a.dim) *(uint4 *)((uint16_t *)a.x.data + row * a.dim + at) = as[g];
    tl_widen_whole(as[g], x);
#pragma unroll
    for (int i = 0; i < TL_P; i++) y[i] = x[i] * x[i] + 0.0f;
    v[g] = tl_tree8(y);
  }
  const float rstd = tl_rsqrt(total_of<groups>(v) / (float)a.dim + a.eps);
#pragma unroll
  for (int g = 0; g < groups; g++) {
    const int64_t at = (g * TL_DEVICE_WARP + lane) * TL_P;
    if (at >= a.dim) break;
    tl_widen_whole(as[g], x);
    tl_load_piece(a.gain, at, TL_P, y);
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = (x[i] * rstd) * y[i];
    *(uint4 *)((uint16_t *)a.out.data + row * a.dim + at) = pack(x);
  }
  if (lane == 0 && a.rstd != nullptr) a.rstd[row] = rstd;
}

TL_KERNEL fused_add_norm_1024(const __grid_constant__ tl_fused_norm_args k) { add_norm<4>(k); }
TL_KERNEL fused_add_norm_2048(const __grid_constant__ tl_fused_norm_args k) { add_norm<8>(k); }

/* ---- rope of q and k, and the pages ---- */

/* 8 pairs (a, b) by their cosines and sines. */
TL_GPU void turn(const float4 (&angle)[UNITS], float sign, uint4 &a, uint4 &b) {
  float x[TL_P], y[TL_P];
  tl_widen_whole(a, x);
  tl_widen_whole(b, y);
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    const float cosine = i % 2 ? angle[i / 2].z : angle[i / 2].x;
    const float sine = sign * (i % 2 ? angle[i / 2].w : angle[i / 2].y);
    const float first = x[i], second = y[i];
    x[i] = fmaf(first, cosine, -(second * sine));
    y[i] = fmaf(second, cosine, first * sine);
  }
  a = pack(x);
  b = pack(y);
}

/* Where a row's keys and values go; page -1: nowhere. */
struct Spot {
  int page, place;
};

TL_GPU Spot spot_of(const tl_cache_places &at, int request, int position) {
  if (request < 0 || !is_place(at, request, position)) return {-1, 0};
  return {page_of(at, request, position), page_place(at, position)};
}

/* Turned heads of q: `heads` from the lane's first one on, AT_ONCE apart. */
TL_GPU void turn_queries(const tl_rope_args &r, int64_t row, const float4 (&angle)[UNITS]) {
  enum { COUNT = 4 };
  const int unit = threadIdx.x % UNITS, first = threadIdx.x % TL_DEVICE_WARP / UNITS;
  const int heads = (int)r.heads;
#pragma unroll 1
  for (int head = first; head < heads; head += COUNT * AT_ONCE) {
    uint4 a[COUNT], b[COUNT];
    const int64_t at = (row * heads + head) * HEAD + unit * TL_P;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      const int64_t from = head + i * AT_ONCE < heads ? at + i * AT_ONCE * HEAD : at;
      a[i] = tl_fetch_whole(r.x, from);
      b[i] = tl_fetch_whole(r.x, from + PAIRS);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
      if (head + i * AT_ONCE >= heads) break;
      turn(angle, r.sign, a[i], b[i]);
      uint16_t *to = (uint16_t *)r.y.data + at + i * AT_ONCE * HEAD;
      *(uint4 *)to = a[i];
      *(uint4 *)(to + PAIRS) = b[i];
    }
  }
}

extern "C" __global__ void __launch_bounds__(TL_ROPE_ROWS_THREADS)
    fused_rope_write_rows(const __grid_constant__ tl_rope_write_args f) {
  enum {
    PITCH = HEAD + 2
  }; /* of a row and head: its channels lie in other banks than the next's */
  __shared__ uint16_t keys[TL_ROPE_ROWS_KV_HEADS][ROWS][PITCH];
  __shared__ Spot spots[ROWS];
  begin_next();
  const tl_cache_write_args &w = f.write;
  if (!f.ahead) wait_earlier();
  const int warp = threadIdx.x / TL_DEVICE_WARP, lane = threadIdx.x % TL_DEVICE_WARP;
  const int64_t row = (int64_t)blockIdx.x * ROWS + warp;
  const int unit = lane % UNITS, head = lane / UNITS, kv_heads = w.kv_heads;
  const bool there = row < w.at.rows;
  const int position = there ? w.at.position[row] : 0;
  const Spot spot = there ? spot_of(w.at, w.at.request[row], position) : Spot{-1, 0};
  float4 angle[UNITS];
  const float nan = tl_math_float(TL_NAN_BITS);
  const bool known = position >= 0 && position < f.q.positions;
#pragma unroll
  for (int i = 0; i < UNITS; i++) {
    const float *from =
        (const float *)f.q.table.data + ((int64_t)position * PAIRS + unit * TL_P) * 2;
    angle[i] = known ? *(const float4 *)(from + 4 * i) : make_float4(nan, nan, nan, nan);
  }
  if (lane == 0) spots[warp] = spot;
  if (f.ahead) wait_earlier();
  if (there && spot.page >= 0) {
    const int64_t from = row * kv_heads * HEAD;
    if (head < kv_heads) {
      uint4 a = tl_fetch_whole(f.k.x, from + head * HEAD + unit * TL_P);
      uint4 b = tl_fetch_whole(f.k.x, from + head * HEAD + unit * TL_P + PAIRS);
      turn(angle, f.k.sign, a, b);
      uint32_t *to = (uint32_t *)&keys[head][warp][unit * TL_P];
      to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
      to += PAIRS / 2;
      to[0] = b.x, to[1] = b.y, to[2] = b.z, to[3] = b.w;
    }
    const int64_t to = ((int64_t)spot.page * w.at.page + spot.place) * kv_heads * HEAD;
    for (int i = lane; i < kv_heads * HEAD / TL_P; i += TL_DEVICE_WARP)
      *(uint4 *)((uint16_t *)w.values + to + i * TL_P) =
          *(const uint4 *)((const uint16_t *)w.v + from + i * TL_P);
  }
  if (there) turn_queries(f.q, row, angle);
  __syncthreads();
  const int own = threadIdx.x % ROWS; /* rows side by side: often positions of a page */
  const Spot at = spots[own];
  if (at.page < 0) return;
  for (int i = threadIdx.x / ROWS; i < kv_heads * HEAD; i += TL_ROPE_ROWS_THREADS / ROWS)
    ((uint16_t *)w.keys)[((int64_t)at.page * kv_heads * HEAD + i) * w.at.page + at.place] =
        keys[i / HEAD][own][i % HEAD];
}
