/* cublaslt.c - finds libcublasLt and its symbols. */
#include "cublaslt.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static struct {
  tl_cublaslt_api api;
  void *library;
  const char *missing;
} lt;

static void open_library(void) {
  static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  for (size_t i = 0; i < sizeof files / sizeof files[0] && lt.library == NULL; i++)
    lt.library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
  if (lt.library == NULL) return;
#define LT(name, symbol, arguments)                         \
  {                                                         \
    void *found = dlsym(lt.library, #symbol);               \
    if (found == NULL && !lt.missing) lt.missing = #symbol; \
    memcpy(&lt.api.name, &found, sizeof found);             \
  }
#include "cublaslt.def"
#undef LT
}

tl_status tl_cublaslt_find(const tl_cublaslt_api **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  if (lt.library == NULL)
    return tl_fail(TL_DEVICE,
                   "libcublasLt.so.13 is not here: it comes with CUDA 12 and 13; install it, or "
                   "take blocks.gemm.provider = \"own\", which gives the same bits");
  if (lt.missing != NULL)
    return tl_fail(TL_DEVICE, "libcublasLt.so has no %s: it is too old", lt.missing);
  *out = &lt.api;
  return TL_OK;
}

tl_status tl_cublaslt_check(int error, const char *what) {
  return error == 0 ? TL_OK : tl_fail(TL_DEVICE, "cuBLASLt, %s: error %d", what, error);
}
