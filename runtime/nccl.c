/* nccl.c - finds libnccl.so.2 and its symbols. */
#define _GNU_SOURCE
#include "nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct {
  tl_nccl_api api;
  void *library;
  const char *missing;
} nccl;

static void open_library(void) {
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  nccl.library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (nccl.library == NULL) return;
#define NCCL(name, symbol, arguments)                           \
  {                                                             \
    void *found = dlsym(nccl.library, #symbol);                 \
    if (found == NULL && !nccl.missing) nccl.missing = #symbol; \
    memcpy(&nccl.api.name, &found, sizeof found);               \
  }
#include "nccl.def"
#undef NCCL
}

tl_status tl_nccl_find(const tl_nccl_api **out) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  if (nccl.library == NULL)
    return tl_fail(TL_COMM,
                   "libnccl.so.2 is not here: processes with a GPU each need NCCL; "
                   "install it, or run all GPUs of a machine in one process");
  if (nccl.missing != NULL)
    return tl_fail(TL_COMM, "libnccl.so.2 has no %s: it is too old", nccl.missing);
  *out = &nccl.api;
  return TL_OK;
}

enum { REMOTE_ERROR = 6 }; /* ncclRemoteError: a process on the other side has ended */

tl_status tl_nccl_check(int error, const char *what) {
  if (error == 0) return TL_OK;
  return tl_fail(error == REMOTE_ERROR ? TL_LOST : TL_COMM, "NCCL, %s: error %d", what, error);
}

tl_status tl_nccl_version(int32_t *out) {
  const tl_nccl_api *api;
  int version = 0;
  TL_TRY(tl_nccl_find(&api));
  TL_TRY(tl_nccl_check(api->version(&version), "version"));
  *out = version;
  return TL_OK;
}
