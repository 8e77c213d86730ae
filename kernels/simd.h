/* simd.h - one body of code, compiled for three levels of the processor, chosen at run time.
**
**   static inline body  --+--> name_avx512    AVX-512 F, BW, DQ, VL
**                         +--> name_avx2      AVX2 and FMA
**                         +--> name_portable  what the compiler was told, libm's fmaf
**                               ^ tl_simd_level() picks one
**
** All three give the same bits: the body uses IEEE operations and fmaf only, and lanes never change
** the order of a sum. The environment variable TL_SIMD (avx512, avx2, portable) lowers the level,
** for tests and for comparisons.
*/
#ifndef TL_SIMD_H
#define TL_SIMD_H

typedef enum tl_simd { TL_SIMD_PORTABLE, TL_SIMD_AVX2, TL_SIMD_AVX512 } tl_simd;

/* The level of this process: what the processor has, or less when TL_SIMD asks for less. A TL_SIMD
** that is not a level, or is more than the processor has, is reported once on stderr. */
tl_simd tl_simd_level(void);
const char *tl_simd_name(tl_simd level);
/* Whether functions for TL_TARGET_BYTES may run: the level is AVX-512, the processor has VBMI and
** VNNI as well (Ice Lake, Zen 4 and later), and TL_SIMD does not say "avx512". */
int tl_simd_bytes(void);

/* Before a loop whose iterations do not depend on each other: element i of the outputs depends on
** element i of the inputs only, whether or not they are the same memory. */
#if defined(__clang__)
#define TL_LANES _Pragma("clang loop vectorize(assume_safety)")
#else
#define TL_LANES _Pragma("GCC ivdep")
#endif

#define TL_INLINE static inline __attribute__((always_inline, unused))

#if defined(__x86_64__)
#define TL_TARGET_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TL_TARGET_BYTES \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni,avx2,fma")))
#define TL_TARGET_AVX2 __attribute__((target("avx2,fma")))
/* Defines `static void name parameters` as a choice between three copies of name_body. */
#define TL_SIMD_VERSIONS(name, parameters, arguments)                              \
  TL_TARGET_AVX512 static void name##_avx512 parameters { name##_body arguments; } \
  TL_TARGET_AVX2 static void name##_avx2 parameters { name##_body arguments; }     \
  static void name##_portable parameters { name##_body arguments; }                \
  static void name parameters {                                                    \
    switch (tl_simd_level()) {                                                     \
      case TL_SIMD_AVX512: name##_avx512 arguments; break;                         \
      case TL_SIMD_AVX2: name##_avx2 arguments; break;                             \
      default: name##_portable arguments; break;                                   \
    }                                                                              \
  }
#else
#define TL_SIMD_VERSIONS(name, parameters, arguments) \
  static void name parameters { name##_body arguments; }
#endif

#endif
