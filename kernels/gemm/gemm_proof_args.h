/* gemm_proof_args.h - the numbers of a trial (gemm_proof.h), the same on a GPU and on the host, and
** what the kernels of gemm_proof.cu need.
**
**   row i of a factor is of kind i % 8:
**     0  like trained weights           4  half of them zeros of both signs
**     1  over 40 powers of two          5  infinities and NaN among them
**     2  pairs that cancel              6  subnormal
**     3  tiny                           7  huge: sums overflow
*/
#ifndef TL_GEMM_PROOF_ARGS_H
#define TL_GEMM_PROOF_ARGS_H

#include "../../runtime/random.h"

enum { TL_PROOF_KINDS = 8 };

/* The f32 bits of element k of a row of this kind; `seed` is the row's. Of a row of pairs the
** second is the first again, in a (`turned`) with the other sign and now and then another last
** bit. */
TL_RANDOM uint32_t tl_proof_element(int32_t kind, int32_t turned, uint64_t seed, int64_t k) {
  const uint32_t lowest = (uint32_t)(UINT64_C(0xB9007A7A28786B7A) >> 8 * kind) & 255;
  const uint32_t spread = (uint32_t)(UINT64_C(0x100106061E102806) >> 8 * kind) & 255;
  const int64_t first = kind == 2 ? k & ~INT64_C(1) : k;
  const uint64_t r = tl_mix64(seed + (uint64_t)first);
  uint32_t bits = (uint32_t)(r & 0x80000000u) | (lowest + (uint32_t)(r >> 33) % spread) << 23 |
                  (uint32_t)(r & 0x7FFFFF);
  if (kind == 2 && k != first && turned) bits ^= 0x80000000u | (r >> 60 == 0 ? 0x10000u : 0);
  if (kind == 4 && r >> 40 & 1) bits &= 0x80000000u;
  if (kind == 5 && (r >> 40 & 255) == 0) bits = r >> 50 & 1 ? 0x7F800000u : 0xFF800000u;
  if (kind == 5 && (r >> 40 & 4095) == 1) bits = 0x7FC00000u;
  return bits;
}

/* A factor of `count` rows of `depth`: element (i, k) lies at i * depth + k, or across at
** k * count + i. */
typedef struct tl_proof_factor {
  void *out;
  int64_t count, depth;
  int32_t along, turned, bf16;
} tl_proof_factor;

/* Element `at` of its memory. */
TL_RANDOM uint32_t tl_proof_factor_at(const tl_proof_factor *f, int64_t at) {
  const int64_t i = f->along ? at / f->depth : at % f->count;
  const int64_t k = f->along ? at % f->depth : at / f->count;
  const uint64_t seed = ((uint64_t)i * 2 + (uint64_t)f->turned) << 32;
  return tl_proof_element((int32_t)(i % TL_PROOF_KINDS), f->turned, seed, k);
}

/* What an f32 output holds that a product is added to. */
typedef struct tl_proof_output {
  uint32_t *out;
  int64_t count;
} tl_proof_output;
TL_RANDOM uint32_t tl_proof_output_at(int64_t at) {
  return tl_proof_element(0, 0, UINT64_C(1) << 63, at);
}

/* Two outputs; whatever is not a number equals whatever else is not. */
typedef struct tl_proof_outputs {
  const void *one, *other;
  int64_t count;
  int32_t bf16;
  uint32_t *differ; /* set to 1 where they do */
} tl_proof_outputs;
TL_RANDOM int32_t tl_proof_same(int32_t bf16, uint32_t x, uint32_t y) {
  const uint32_t sign = bf16 ? 0x7FFF : 0x7FFFFFFF, endless = bf16 ? 0x7F80 : 0x7F800000;
  return x == y || ((x & sign) > endless && (y & sign) > endless);
}

#endif
