/* tile.cuh - the instructions that tiles of bf16 are moved and multiplied with, one wrapper each.
**
** Addresses of shared memory are 32-bit. A fragment is what the 32 lanes of a warp hold together;
** lane = 4 g + t:
**
**   A 16 x 16   a[0]: row g, k 2t, 2t + 1   a[1]: row g + 8   a[2]: row g, k + 8   a[3]: both
**   B 16 x 8    b[0]: k 2t, 2t + 1, column g                  b[1]: k + 8
**   C 16 x 8    c[0], c[1]: row g, columns 2t, 2t + 1         c[2], c[3]: row g + 8
*/
#ifndef TL_TILE_CUH
#define TL_TILE_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// 16 bytes to shared memory, of which the first `bytes` are read and the others are zero.
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most `groups` of this thread's latest groups are on their way.
template <int groups>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, const uint32_t *words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

// Four 8 x 8 matrices; lanes 8 i .. 8 i + 7 hold the addresses of the 8 rows, 16 bytes each, of
// matrix i. Lane 4 g + t gets elements 2t, 2t + 1 of row g.
__device__ __forceinline__ void load_matrices(uint32_t from, uint32_t *words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
// Lane 4 g + t gets elements g of rows 2t, 2t + 1.
__device__ __forceinline__ void load_matrices_across(uint32_t from, uint32_t *words) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

// c = one tensor core step of c, a, b: kernels/tensorcore.h says what it computes.
__device__ __forceinline__ void step(float *c, const uint32_t *a, const uint32_t *b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
