/* attention_tile.c - which version of the loops this processor takes. */
#include "attention_tile.h"

#include "../simd.h"

extern const tl_products tl_products_f32_portable, tl_products_f32_avx2, tl_products_f32_avx512;
extern const tl_elementwise tl_elementwise_portable, tl_elementwise_avx2, tl_elementwise_avx512;
extern const tl_products tl_products_f32_bytes;
extern const tl_elementwise tl_elementwise_bytes;

const tl_products *tl_products_f32(void) {
#if defined(__x86_64__)
  switch (tl_simd_level()) {
    case TL_SIMD_AVX512: return tl_simd_bytes() ? &tl_products_f32_bytes : &tl_products_f32_avx512;
    case TL_SIMD_AVX2: return &tl_products_f32_avx2;
    case TL_SIMD_PORTABLE: break;
  }
#endif
  return &tl_products_f32_portable;
}

const tl_elementwise *tl_tile_elementwise(void) {
#if defined(__x86_64__)
  switch (tl_simd_level()) {
    case TL_SIMD_AVX512: return tl_simd_bytes() ? &tl_elementwise_bytes : &tl_elementwise_avx512;
    case TL_SIMD_AVX2: return &tl_elementwise_avx2;
    case TL_SIMD_PORTABLE: break;
  }
#endif
  return &tl_elementwise_portable;
}
