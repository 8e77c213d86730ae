/* device.cuh - what row-wise GPU kernels share: pieces of 8 elements, the row rule, trees.
**
** Pieces. A thread works on 8 neighbouring elements: one 16-byte load of bf16, two of f32.
**
**     tl_fetch  memory -> bits (no arithmetic, so that several are under way at once)
**     tl_widen  bits -> 8 floats                  tl_store  8 floats, rounded once -> memory
**
** The last piece of a row has n < 8 elements; it, and pieces that do not start at a multiple of 8
** or stand in an array that is not aligned, are moved one by one.
**
** The row rule (rows.h). `lanes` threads share a row; lane l has the partials 8 l .. 8 l + 7, so
** the tree is: 8 partials in registers, then neighbouring lanes by shuffles, then warps through
** shared memory. Partials that a row lacks are +0, which changes no bit.
**
**     lane 0 [p0 .. p7] \        lane 1 [p8 .. p15] /   step 1, 2, 4, 8, 16 | warps 1, 2, 4
*/
#ifndef TL_DEVICE_CUH
#define TL_DEVICE_CUH

#include "device_args.h"
#include "math.h"

#define TL_GPU static __device__ __forceinline__
/* Of a kernel with blocks of 256 threads. */
#define TL_KERNEL extern "C" __global__ void __launch_bounds__(TL_DEVICE_THREADS)

enum { TL_P = TL_DEVICE_PIECE };

/* First of all in a kernel that is launched with `overlaps` (runtime/cuda.h): blocks of the next
** kernel may begin, and all that earlier kernels wrote is there. Before Hopper there is nothing to
** wait for. */
TL_GPU void tl_after_earlier(void) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* --- Indices ---------------------------------------------------------------------------------- */

TL_GPU int64_t tl_thread(void) { return (int64_t)blockIdx.x * TL_DEVICE_THREADS + threadIdx.x; }

/* a / b for a >= 0, b > 0; short where both fit into 32 bits. */
TL_GPU int64_t tl_quotient(int64_t a, int64_t b) {
  if (((uint64_t)(a | b) >> 32) == 0) return (uint32_t)a / (uint32_t)b;
  return a / b;
}

/* What is left of `whole` from `at` on, at most a piece; 0 or less: nothing. */
TL_GPU int tl_piece_length(int64_t whole, int64_t at) {
  return whole - at < TL_P ? (int)(whole - at) : TL_P;
}

/* A place in rows that are cut into pieces: thread i has piece i % pieces of row i / pieces. */
typedef struct tl_place_of {
  int64_t row, at; /* at: column of the piece's first element */
} tl_place_of;

TL_GPU tl_place_of tl_row_piece(int64_t thread, int64_t width) {
  const int64_t pieces = (width + TL_P - 1) / TL_P, row = tl_quotient(thread, pieces);
  return {row, (thread - row * pieces) * TL_P};
}

/* --- Elements --------------------------------------------------------------------------------- */

TL_GPU uint32_t tl_bf16_bits(float value) {
  const uint32_t bits = tl_math_bits(value);
  if (value != value) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

/* Two bf16 in a word, `low` first in memory. */
TL_GPU uint32_t tl_bf16_pair(float low, float high) {
#if defined(__CUDACC__)
  if (low == low && high == high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
  }
#endif
  return tl_bf16_bits(low) | tl_bf16_bits(high) << 16;
}

TL_GPU float tl_load_one(const tl_array &a, int64_t i) {
  if (a.bf16) return tl_math_float((uint32_t)((const uint16_t *)a.data)[i] << 16);
  return ((const float *)a.data)[i];
}

TL_GPU void tl_store_one(const tl_array &a, int64_t i, float value) {
  if (a.bf16) {
    ((uint16_t *)a.data)[i] = (uint16_t)tl_bf16_bits(value);
  } else {
    ((float *)a.data)[i] = value;
  }
}

typedef struct tl_bits {
  uint32_t word[8]; /* 4 words with two bf16 each, or 8 f32 */
} tl_bits;

/* Elements first .. first + n - 1; the others of the piece are zeros. */
TL_GPU tl_bits tl_fetch(const tl_array &a, int64_t first, int n) {
  tl_bits b;
#pragma unroll
  for (int i = 0; i < 8; i++) b.word[i] = 0;
  if (n == TL_P && a.aligned && first % TL_P == 0) {
    const uint4 *p = (const uint4 *)((const char *)a.data + first * (a.bf16 ? 2 : 4));
    const uint4 low = p[0];
    b.word[0] = low.x, b.word[1] = low.y, b.word[2] = low.z, b.word[3] = low.w;
    if (!a.bf16) {
      const uint4 high = p[1];
      b.word[4] = high.x, b.word[5] = high.y, b.word[6] = high.z, b.word[7] = high.w;
    }
  } else if (a.bf16) {
    const uint16_t *p = (const uint16_t *)a.data + first;
#pragma unroll
    for (int i = 0; i < TL_P; i++) {
      if (i < n) b.word[i / 2] |= (uint32_t)p[i] << (i % 2 * 16);
    }
  } else {
    const uint32_t *p = (const uint32_t *)a.data + first;
#pragma unroll
    for (int i = 0; i < TL_P; i++) {
      if (i < n) b.word[i] = p[i];
    }
  }
  return b;
}

TL_GPU void tl_widen(const tl_array &a, const tl_bits &b, float *v) {
  if (a.bf16) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      v[2 * i] = tl_math_float(b.word[i] << 16);
      v[2 * i + 1] = tl_math_float(b.word[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = tl_math_float(b.word[i]);
  }
}

TL_GPU void tl_load_piece(const tl_array &a, int64_t first, int n, float *v) {
  tl_widen(a, tl_fetch(a, first, n), v);
}

/* Writes n elements, each rounded once. */
TL_GPU void tl_store(const tl_array &a, int64_t first, int n, const float *v) {
  if (n == TL_P && a.aligned && first % TL_P == 0) {
    uint4 *p = (uint4 *)((char *)a.data + first * (a.bf16 ? 2 : 4));
    if (a.bf16) {
      p[0] = make_uint4(tl_bf16_pair(v[0], v[1]), tl_bf16_pair(v[2], v[3]),
                        tl_bf16_pair(v[4], v[5]), tl_bf16_pair(v[6], v[7]));
    } else {
      p[0] = make_uint4(tl_math_bits(v[0]), tl_math_bits(v[1]), tl_math_bits(v[2]),
                        tl_math_bits(v[3]));
      p[1] = make_uint4(tl_math_bits(v[4]), tl_math_bits(v[5]), tl_math_bits(v[6]),
                        tl_math_bits(v[7]));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    if (i < n) tl_store_one(a, first + i, v[i]);
  }
}

/* --- Whole pieces of bf16, where the launcher or the kernel has asked tl_whole ---------------- */

/* Elements first .. first + 7 with nothing to decide: loads of several pieces leave together. */
TL_GPU uint4 tl_fetch_whole(const tl_array &a, int64_t first) {
  return *(const uint4 *)((const uint16_t *)a.data + first);
}

TL_GPU void tl_widen_whole(const uint4 &b, float *v) {
  const uint32_t word[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[2 * i] = tl_math_float(word[i] << 16);
    v[2 * i + 1] = tl_math_float(word[i] & 0xffff0000u);
  }
}

/* a / b of a piece, IEEE. A rounded reciprocal and two corrections of the remainder give the
** rounded quotient while nothing comes near the ends of the range (Markstein, 1990); +0 / b is +0
** that way too. Elsewhere '/'. */
TL_GPU void tl_divide_piece(const float *a, float b, float *q) {
  float low = 1.0f, high = b;
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    low = fminf(low, a[i] == 0.0f ? 1.0f : a[i]);
    high = fmaxf(high, a[i]);
  }
  if (low > 0x1p-60f && b > 0x1p-60f && high < 0x1p60f) {
    const float r = 1.0f / b;
#pragma unroll
    for (int i = 0; i < TL_P; i++) {
      const float first = a[i] * r, better = fmaf(fmaf(first, -b, a[i]), r, first);
      q[i] = fmaf(fmaf(better, -b, a[i]), r, better);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < TL_P; i++) q[i] = a[i] / b;
}

/* --- The row rule ----------------------------------------------------------------------------- */

TL_GPU void tl_clear(float *p) {
#pragma unroll
  for (int i = 0; i < TL_P; i++) p[i] = 0.0f;
}

/* Adds the n products of a piece that starts at element `at` of its row. The first element of a
** partial is its rounded product + 0, as on the host, so that it is never -0. */
TL_GPU void tl_add_dot(float *p, const float *a, const float *b, int n, int64_t at) {
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    if (i < n) p[i] = at < TL_DEVICE_PARTIALS ? a[i] * b[i] + 0.0f : fmaf(a[i], b[i], p[i]);
  }
}

/* The same for a plain sum; p starts as +0. */
TL_GPU void tl_add_values(float *p, const float *a, int n) {
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    if (i < n) p[i] = p[i] + a[i];
  }
}

TL_GPU float tl_tree8(const float *p) {
  return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
}

/* The tree over the values of a row's lanes, for all its threads; lanes is a power of two, at most
** 256, and divides the block. All threads of the block call it, with 8 floats of shared memory. */
TL_GPU float tl_lane_tree(float v, int lanes, float *shared) {
  for (int step = 1; step < lanes && step < TL_DEVICE_WARP; step *= 2) {
    v = v + __shfl_xor_sync(0xffffffffu, v, step);
  }
  if (lanes > TL_DEVICE_WARP) {
    const int warps = lanes / TL_DEVICE_WARP, warp = threadIdx.x / TL_DEVICE_WARP;
    if (threadIdx.x % TL_DEVICE_WARP == 0) shared[warp] = v;
    __syncthreads();
    v = shared[warp / warps * warps + threadIdx.x % warps];
    for (int step = 1; step < warps; step *= 2) v = v + __shfl_xor_sync(0xffffffffu, v, step);
    __syncthreads(); /* shared may be written again */
  }
  return v;
}

/* The sum of a row from its lanes' partials. */
TL_GPU float tl_row_total(const float *p, int lanes, float *shared) {
  return tl_lane_tree(tl_tree8(p), lanes, shared);
}

/* A row and its lane of a block whose threads share rows. */
typedef struct tl_row_lane {
  int64_t row, at; /* at: the lane's first element */
} tl_row_lane;

TL_GPU tl_row_lane tl_row_of(int lanes) {
  const int64_t row = (int64_t)blockIdx.x * (TL_DEVICE_THREADS / lanes) + threadIdx.x / lanes;
  return {row, (int64_t)(threadIdx.x % lanes) * TL_P};
}

/* --- A tree over values that come one after the other ----------------------------------------- */

/* A binary counter of finished subtrees: push(i, v) for i = 0, 1, ..; the last of 2^k values, k <
** LEVELS, returns the root. The loop is unrolled, so levels are registers. */
template <int LEVELS>
struct tl_counter {
  float level[LEVELS];
  __device__ __forceinline__ float push(int64_t index, float v) {
    bool open = true;
#pragma unroll
    for (int l = 0; l < LEVELS; l++) {
      if (open && (index >> l & 1)) {
        v = level[l] + v;
      } else if (open) {
        level[l] = v;
        open = false;
      }
    }
    return v;
  }
};

#endif
