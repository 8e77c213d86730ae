/* simd.c - the processor's level, found once. */
#include "simd.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"portable", "avx2", "avx512"};
static tl_simd level;
static int bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static tl_simd supported(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return TL_SIMD_PORTABLE;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return TL_SIMD_AVX512;
  }
  return TL_SIMD_AVX2;
#else
  return TL_SIMD_PORTABLE;
#endif
}

static int supports_bytes(void) {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
#else
  return 0;
#endif
}

static void find(void) {
  const char *wanted = getenv("TL_SIMD");
  level = supported();
  if (wanted == NULL || wanted[0] == '\0') {
    bytes = level == TL_SIMD_AVX512 && supports_bytes();
    return;
  }
  for (int i = 0; i < 3; i++) {
    if (strcmp(wanted, names[i]) != 0) continue;
    if (i <= (int)level) {
      level = (tl_simd)i;
    } else {
      fprintf(stderr, "TL_SIMD: this processor has no %s; using %s (same bits)\n", wanted,
              names[level]);
    }
    return;
  }
  fprintf(stderr, "TL_SIMD: \"%s\" is not avx512, avx2 or portable; using %s (same bits)\n", wanted,
          names[level]);
}

tl_simd tl_simd_level(void) {
  pthread_once(&once, find);
  return level;
}

int tl_simd_bytes(void) {
  pthread_once(&once, find);
  return bytes;
}

const char *tl_simd_name(tl_simd simd) { return names[simd]; }
