/* cuda_driver.c - finds the driver's symbols. */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
  tl_cuda_api api;
  void *library;
  const char *missing; /* a symbol, or NULL */
  const char *refused; /* a variable of the environment, or NULL */
} driver;

/* Variables that make the driver or cuBLASLt compute something else than was verified. */
static const char *refused_variable(void) {
  static const char *const names[] = {"CUDA_FORCE_PTX_JIT", "NVIDIA_TF32_OVERRIDE"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    const char *value = getenv(names[i]);
    if (value != NULL && value[0] != '\0' && strcmp(value, "0") != 0) return names[i];
  }
  return NULL;
}

static void open_driver(void) {
  driver.refused = refused_variable();
  if (driver.refused != NULL) return;
  driver.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver.library == NULL) return;
#define DRIVER(name, symbol, arguments)                             \
  {                                                                 \
    void *found = dlsym(driver.library, #symbol);                   \
    if (found == NULL && !driver.missing) driver.missing = #symbol; \
    memcpy(&driver.api.name, &found, sizeof found);                 \
  }
#include "cuda_driver.def"
#undef DRIVER
}

tl_status tl_cuda_driver(const tl_cuda_api **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_driver);
  if (driver.refused != NULL)
    return tl_fail(TL_DEVICE,
                   "%s is set: the GPU would run other machine code, or other arithmetic, than "
                   "was verified; unset it",
                   driver.refused);
  if (driver.library == NULL)
    return tl_fail(TL_DEVICE,
                   "libcuda.so.1 is not here: this machine has no NVIDIA driver; "
                   "device = \"host\" runs everywhere, with the same bits");
  if (driver.missing != NULL)
    return tl_fail(TL_DEVICE,
                   "libcuda.so.1 has no %s: the driver is too old, CUDA 12.4 or later "
                   "is needed",
                   driver.missing);
  TL_TRY(tl_cuda_check(&driver.api, driver.api.init(0), "cuInit"));
  *out = &driver.api;
  return TL_OK;
}

tl_status tl_cuda_check(const tl_cuda_api *api, int error, const char *what) {
  const char *text = NULL;
  if (error == 0) return TL_OK;
  if (api->error_text(error, &text) != 0 || text == NULL) text = "unknown error";
  return tl_fail(TL_DEVICE, "%s: %s (CUDA error %d)", what, text, error);
}
