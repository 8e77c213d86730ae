/* hopper.cuh - what only sm_90a has, one wrapper each: copies of whole boxes by the copy engine,
** barriers that count bytes, products of a warpgroup, clusters. tile.cuh has what every
** architecture shares.
**
**   copy engine --bytes--> slot in shared memory      full:  1 arrival + the bytes of its boxes
**                            |                        empty: one arrival of each reader
**                            v
**                          products of warpgroups (4 warps), sums in registers
**
** A barrier has phases; wait(bar, p) returns when the phase of parity p has ended, so a barrier
** that was just made is already past parity 1.
**
** Factors in shared memory have rows of 128 bytes whose 16-byte piece c of row r stands at
** c ^ (r % 8): the swizzle of 128 bytes that tensor maps and products both know (tensor_map.h). A
** slot begins at a multiple of 1024 bytes.
**
**   along    [row][64 k]         8 rows are 1024 bytes; a step of 16 k is 32 bytes further
**   across   [box][64 k][64]     64 rows (columns) a box of 8192 bytes, k down; a step: 2048
**
** The sums of a product 64 x columns, lane 4 g + t of warp w: like tile.cuh's C for rows 16 w .., 8
** columns after the other: sum[4 j + 0, 1]: row 16 w + g, columns 8 j + 2 t, + 1; sum[4 j + 2, 3]:
** row + 8. A in registers is tile.cuh's fragment for the warp's 16 rows.
**
** ptxas keeps products running one behind the other only if nothing branches around them and no
** other instruction touches their sums meanwhile: look for its warnings C7510 to C7519. `hold`
** marks the sums where the program may use them again.
**
** Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate", "Tensor copies".
*/
#ifndef TL_HOPPER_CUH
#define TL_HOPPER_CUH

#include "gemm/tile.cuh"
#include "tensor_map.h"

// ---- barriers in shared memory: 8 bytes each ----

__device__ __forceinline__ void barrier_make(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
// After the last barrier_make, before anything else sees them: then sync (the block or cluster).
__device__ __forceinline__ void barriers_made() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival, and `bytes` that the copy engine will bring in this phase.
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// At a barrier of a block of the cluster, by the address that in_block gives. Release at cluster
// scope would cost a memory barrier at every step (550 instead of 700 TFLOP/s in a product), and
// all that is said here is that a slot has been read.
__device__ __forceinline__ void barrier_arrive_cluster(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra done_%=;\n"
      "bra again_%=;\n"
      "done_%=:\n"
      "}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
// Whether the phase of a parity has ended.
__device__ __forceinline__ bool barrier_is_past(uint32_t bar, uint32_t parity) {
  uint32_t past;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(past)
      : "r"(bar), "r"(parity)
      : "memory");
  return past != 0;
}

// ---- threads of a block, blocks of a cluster ----

// The `threads` (a multiple of 32) that name the same barrier, 1 to 15; 0 is __syncthreads.
template <int threads>
__device__ __forceinline__ void named_sync(int name) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(threads) : "memory");
}
template <int threads>
__device__ __forceinline__ void named_arrive(int name) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "n"(threads) : "memory");
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The same place of shared memory in another block of the cluster.
__device__ __forceinline__ uint32_t in_block(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// 16 or 8 bytes to another block's shared memory, counted by a barrier there.
__device__ __forceinline__ void send(uint32_t to, uint4 v, uint32_t bar) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(bar)
      : "memory");
}
__device__ __forceinline__ void send(uint32_t to, float2 v, uint32_t bar) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "f"(v.x), "f"(v.y), "r"(bar)
      : "memory");
}
// Registers of the warpgroup's threads from here on; the kernel has __launch_bounds__(threads, 1).
template <int registers>
__device__ __forceinline__ void registers_fewer() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// ---- the kernel before and the kernel after, where launches overlap (tl_cuda_grid.overlaps) ----

// All that earlier kernels wrote is there, and they read no more. Before it a kernel touches no
// memory but its arguments; every thread comes here.
__device__ __forceinline__ void earlier_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Once every block has come here, blocks of the next kernel may begin and wait where this one ends.
__device__ __forceinline__ void next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- boxes: coordinates innermost first, in elements; what lies outside the tensor is zero ----

__device__ __forceinline__ void map_prefetch(const tl_tensor_map *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
__device__ __forceinline__ void box_load(uint32_t to, const tl_tensor_map *map, uint32_t bar,
                                         int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void box_load(uint32_t to, const tl_tensor_map *map, uint32_t bar,
                                         int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// For what nobody reads again soon: the cache gives it up before all else.
__device__ __forceinline__ uint64_t soon_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void box_load_soon(uint32_t to, const tl_tensor_map *map, uint32_t bar,
                                              int c0, int c1, int c2, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void box_load_soon(uint32_t to, const tl_tensor_map *map, uint32_t bar,
                                              int c0, int c1, int c2, int c3, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}
// To the same place of every block of the cluster in `blocks` (bit = rank), and its barrier.
__device__ __forceinline__ void box_load_many(uint32_t to, const tl_tensor_map *map, uint32_t bar,
                                              int c0, int c1, int c2, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "h"(blocks)
      : "memory");
}
// Stores run in groups of the thread that gives them out; nothing outside the tensor is written.
__device__ __forceinline__ void box_store(const tl_tensor_map *map, uint32_t from, int c0, int c1,
                                          int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void box_store(const tl_tensor_map *map, uint32_t from, int c0, int c1,
                                          int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
// The same for what nobody reads again soon: the cache gives it up before what is read.
__device__ __forceinline__ void box_store_last(const tl_tensor_map *map, uint32_t from, int c0,
                                               int c1, int c2) {
  asm volatile(
      "{\n"
      ".reg .b64 soon;\n"
      "createpolicy.fractional.L2::evict_first.b64 soon, 1.0;\n"
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4}], "
      "[%1], soon;\n"
      "}" ::"l"(map),
      "r"(from), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void stores_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until at most `groups` of the latest still read shared memory.
template <int groups>
__device__ __forceinline__ void stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}
// Between a thread's ordinary accesses of shared memory and those of the copy engine or of
// products; then comes the barrier that tells it to the others.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- ordinary accesses of shared memory ----

// Four 8 x 8 matrices of bf16, the inverse of load_matrices.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_shared_f32(uint32_t to, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_shared_f32(uint32_t to, float2 v) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(v.x), "f"(v.y) : "memory");
}
__device__ __forceinline__ float4 load_shared_f32x4(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float2 load_shared_f32x2(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from) : "memory");
  return v;
}

// ---- products of a warpgroup ----

// The same number in all lanes, and the compiler knows: places of factors then stay in uniform
// registers from product to product. Moving them there each time takes 40 cycles a product, which
// shows in products of less than 96 columns.
__device__ __forceinline__ uint32_t uniform(uint32_t number) {
  return __shfl_sync(0xffffffff, number, 0);
}

// Before the first product, and after ordinary instructions have touched sums or fragments.
__device__ __forceinline__ void products_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most `groups` of the latest groups still run.
template <int groups>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
// The compiler moves no use of these values above this place.
template <int count>
__device__ __forceinline__ void hold(float *value) {
#pragma unroll
  for (int i = 0; i < count; i++) asm volatile("" : "+f"(value[i])::"memory");
}

// Where a factor stands: `at` plus step offsets, in the layout named above. Bits 0 .. 13 address /
// 16, 16 .. 29 bytes / 16 from box to box, 32 .. 45 from 8 rows to 8 rows, 62: 128-byte swizzle.
enum { ALONG = 0, ACROSS = 1 };
template <int way>
__device__ __forceinline__ uint64_t factor_at(uint32_t at) {
  return uint64_t(at & 0x3ffff) >> 4 | uint64_t(way == ACROSS ? 512 : 1) << 16 |
         uint64_t(64) << 32 | uint64_t(1) << 62;
}
// What factor_at grows by from one step of 16 k to the next.
template <int way>
constexpr int factor_step = way == ACROSS ? 128 : 2;

#define TL_SUM4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define TL_SUM8(i)                                                                      \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define TL_SUM16(i) TL_SUM8(i), TL_SUM8(i + 8)
#define TL_SUM32(i) TL_SUM16(i), TL_SUM16(i + 16)
#define TL_LIST8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TL_LIST16 TL_LIST8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TL_LIST20 TL_LIST16 ", %16, %17, %18, %19"
#define TL_LIST32                                                                 \
  TL_LIST16                                                                       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, " \
  "%31"
#define TL_LIST40 TL_LIST32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define TL_LIST44 TL_LIST32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43"
#define TL_LIST48                                                                 \
  TL_LIST32                                                                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
  "%47"
#define TL_LIST64                                                                 \
  TL_LIST48                                                                       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
  "%63"
#define TL_LIST80                                                                 \
  TL_LIST64                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
  "%79"
#define TL_LIST88                                                                 \
  TL_LIST64                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
  "%79, %80, %81, %82, %83, %84, %85, %86, %87"
#define TL_LIST96                                                                 \
  TL_LIST64                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
  "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, "   \
  "%94, %95"
#define TL_LIST128                                                                 \
  TL_LIST96                                                                        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, "   \
  "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127"

/* F(columns, sums in a thread, their list, their operands, then the numbers of the operands behind
** them: a or a[0..3], b, keep, ways) */
#define TL_PRODUCT_SIZES(F)                                                                       \
  F(16, TL_LIST8, (TL_SUM8(0)), 8, 9, 10, 11, 12, 13, 14)                                         \
  F(32, TL_LIST16, (TL_SUM16(0)), 16, 17, 18, 19, 20, 21, 22)                                     \
  F(40, TL_LIST20, (TL_SUM16(0), TL_SUM4(16)), 20, 21, 22, 23, 24, 25, 26)                        \
  F(64, TL_LIST32, (TL_SUM32(0)), 32, 33, 34, 35, 36, 37, 38)                                     \
  F(80, TL_LIST40, (TL_SUM32(0), TL_SUM8(32)), 40, 41, 42, 43, 44, 45, 46)                        \
  F(88, TL_LIST44, (TL_SUM32(0), TL_SUM8(32), TL_SUM4(40)), 44, 45, 46, 47, 48, 49, 50)           \
  F(96, TL_LIST48, (TL_SUM32(0), TL_SUM16(32)), 48, 49, 50, 51, 52, 53, 54)                       \
  F(128, TL_LIST64, (TL_SUM32(0), TL_SUM32(32)), 64, 65, 66, 67, 68, 69, 70)                      \
  F(160, TL_LIST80, (TL_SUM32(0), TL_SUM32(32), TL_SUM16(64)), 80, 81, 82, 83, 84, 85, 86)        \
  F(176, TL_LIST88, (TL_SUM32(0), TL_SUM32(32), TL_SUM16(64), TL_SUM8(80)), 88, 89, 90, 91, 92,   \
    93, 94)                                                                                       \
  F(192, TL_LIST96, (TL_SUM32(0), TL_SUM32(32), TL_SUM32(64)), 96, 97, 98, 99, 100, 101, 102)     \
  F(256, TL_LIST128, (TL_SUM32(0), TL_SUM32(32), TL_SUM32(64), TL_SUM32(96)), 128, 129, 130, 131, \
    132, 133, 134)
#define TL_OPEN(...) __VA_ARGS__
#define TL_PRODUCT(n, list, sums, o0, o1, o2, o3, o4, o5, o6)                                    \
  template <int a_way, int b_way>                                                                \
  struct product<n, a_way, b_way> {                                                              \
    static __device__ __forceinline__ void run(float *sum, uint64_t a, uint64_t b, int keep) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2                                      \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list "}, %" #o0  \
                   ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 ";\n}"                                 \
                   : TL_OPEN sums                                                                \
                   : "l"(a), "l"(b), "r"(keep), "n"(a_way), "n"(b_way));                         \
    }                                                                                            \
    static __device__ __forceinline__ void run(float *sum, const uint32_t *a, uint64_t b,        \
                                               int keep) {                                       \
      static_assert(a_way == ALONG, "a fragment lies one way");                                  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5                                      \
                   ", 0;\n"                                                                      \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" list "}, {%" #o0 \
                   ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p, 1, 1, %" #o6 ";\n}"            \
                   : TL_OPEN sums                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep), "n"(b_way)); \
    }                                                                                            \
  };

/* One tensor core step of 16 k (tensorcore.h): sum (64 x columns) = (keep ? sum : 0) + a * b, with
** columns / 2 numbers a thread. a: factor_at, or a fragment of registers; b: factor_at. */
template <int columns, int a_way, int b_way>
struct product;
TL_PRODUCT_SIZES(TL_PRODUCT)
#undef TL_PRODUCT
#undef TL_PRODUCT_SIZES

#endif
