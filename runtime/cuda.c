/* cuda.c - opens a GPU, finds kernels, launches them. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_images.h"
#include "hash.h"
#include "manifest.h"
#include "memory.h"

enum { KERNELS_MAX = 1024 };

typedef struct kernel {
  const char *name; /* the caller's literal */
  void *handle;
  uint32_t shared;  /* dynamic shared memory that was asked for so far */
  int registers;    /* of a thread */
  int64_t together; /* blocks that are known to run at once, .. */
  uint32_t beside;  /* .. each with so much dynamic shared memory */
} kernel;

struct tl_cuda {
  tl_cuda_grid last; /* of the last kernel queued */
  int64_t launched;
  const tl_cuda_api *api;
  int32_t ordinal;
  int device;
  void *context, *stream;
  void **libraries; /* one per image */
  int32_t library_count;
  void *scratch;
  void *found;      /* uint64_t in device memory */
  uint64_t *looked; /* pinned */
  int32_t place, spare, apart;
  tl_cuda_facts facts;
  tl_cuda_blocks blocks;
  void *kept;
  void (*close_kept)(void *thing);
  kernel kernels[KERNELS_MAX]; /* open addressing by name */
};

#define TRY_CUDA(c, what, call) TL_TRY(tl_cuda_check((c)->api, (c)->api->call, what))

tl_status tl_cuda_count(int32_t *out) {
  const tl_cuda_api *api;
  int count;
  TL_TRY(tl_cuda_driver(&api));
  TL_TRY(tl_cuda_check(api, api->device_count(&count), "cuDeviceGetCount"));
  *out = count;
  return TL_OK;
}

tl_status tl_cuda_facts_of(int32_t ordinal, tl_cuda_facts *out) {
  const tl_cuda_api *api;
  int device, value;
  size_t bytes;
  int32_t count;
  TL_TRY(tl_cuda_count(&count));
  if (ordinal < 0 || ordinal >= count)
    return tl_fail(TL_DEVICE, "GPU %d; this machine has %d", ordinal, count);
  TL_TRY(tl_cuda_driver(&api));
  *out = (tl_cuda_facts){0};
  TL_TRY(tl_cuda_check(api, api->device_get(&device, ordinal), "cuDeviceGet"));
  TL_TRY(tl_cuda_check(api, api->device_name(out->name, sizeof out->name, device), "name"));
  TL_TRY(tl_cuda_check(api, api->device_pci(out->pci, sizeof out->pci, device), "PCI address"));
  TL_TRY(tl_cuda_check(api, api->device_memory(&bytes, device), "memory"));
  out->memory = (int64_t)bytes;
  const struct {
    int attribute;
    int32_t *to;
  } wanted[] = {
      {TL_CUDA_ATTRIBUTE_MAJOR,           &out->major          },
      {TL_CUDA_ATTRIBUTE_MINOR,           &out->minor          },
      {TL_CUDA_ATTRIBUTE_MULTIPROCESSORS, &out->multiprocessors},
      {TL_CUDA_ATTRIBUTE_SHARED_OPTIN,    &out->shared_max     },
      {TL_CUDA_ATTRIBUTE_REGISTERS,       &out->registers_max  },
      {TL_CUDA_ATTRIBUTE_CACHE,           &out->cache          },
  };
  for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
    TL_TRY(tl_cuda_check(api, api->device_attribute(&value, wanted[i].attribute, device), "facts"));
    *wanted[i].to = value;
  }
  return TL_OK;
}

/* The images of the device's own architecture: cubins do not run on another. Machine code that is
** not the verified one is refused before it is loaded. */
static tl_status load_images(tl_cuda *cuda) {
  static _Atomic int32_t verified; /* of images that never change: once in a process is enough */
  const tl_manifest manifest = {tl_manifest_verified, tl_manifest_own};
  char other[32];
  const int32_t arch = cuda->facts.major * 10 + cuda->facts.minor;
  cuda->libraries = calloc((size_t)tl_cuda_image_count + 1, sizeof *cuda->libraries);
  if (cuda->libraries == NULL) return tl_fail(TL_MEMORY, "no room for kernels");
  for (int32_t i = 0; i < tl_cuda_image_count; i++) {
    const tl_cuda_image *image = &tl_cuda_images[i];
    if (image->arch != arch) continue;
    if (verified != arch) TL_TRY(tl_manifest_check(&manifest, image, other));
    void **library = &cuda->libraries[cuda->library_count];
    TRY_CUDA(cuda, image->name, library_load(library, image->start, NULL, NULL, 0, NULL, NULL, 0));
    cuda->library_count++;
  }
  verified = arch;
  if (cuda->library_count == 0)
    return tl_fail(TL_DEVICE,
                   "GPU %d (%s) is of architecture sm_%d; this build has kernels for %s; a GPU of "
                   "that kind would do, or device = \"host\", which gives the same bits",
                   cuda->ordinal, cuda->facts.name, arch, tl_cuda_image_archs);
  return TL_OK;
}

static tl_status open_found(tl_cuda *cuda) {
  void *pinned;
  TL_TRY(tl_cuda_alloc(cuda, sizeof *cuda->looked, &cuda->found));
  TRY_CUDA(cuda, "pinned memory", host_alloc(&pinned, sizeof *cuda->looked, TL_CUDA_HOST_PORTABLE));
  cuda->looked = pinned;
  TRY_CUDA(cuda, "fill",
           fill((uint64_t)(uintptr_t)cuda->found, 0xff, sizeof *cuda->looked, cuda->stream));
  TRY_CUDA(cuda, "fill", stream_wait(cuda->stream));
  *cuda->looked = TL_CUDA_ALL_WELL;
  return TL_OK;
}

static tl_status open_device(tl_cuda *cuda, int32_t ordinal) {
  void *scratch;
  TL_TRY(tl_cuda_driver(&cuda->api));
  TL_TRY(tl_cuda_facts_of(ordinal, &cuda->facts));
  cuda->ordinal = ordinal;
  TRY_CUDA(cuda, "cuDeviceGet", device_get(&cuda->device, ordinal));
  TRY_CUDA(cuda, "context", context_retain(&cuda->context, cuda->device));
  TL_TRY(tl_cuda_enter(cuda));
  size_t available, total;
  TRY_CUDA(cuda, "memory", memory_info(&available, &total));
  cuda->facts.available = (int64_t)available;
  TRY_CUDA(cuda, "stream", stream_create(&cuda->stream, TL_CUDA_STREAM_NON_BLOCKING));
  TL_TRY(load_images(cuda));
  TL_TRY(tl_cuda_alloc(cuda, TL_CUDA_SCRATCH_BYTES, &scratch));
  cuda->scratch = scratch;
  return open_found(cuda);
}

tl_status tl_cuda_open(int32_t ordinal, tl_cuda **out) {
  tl_cuda *cuda = calloc(1, sizeof *cuda);
  if (cuda == NULL) return tl_fail(TL_MEMORY, "no room for a device");
  const tl_status status = open_device(cuda, ordinal);
  if (status == TL_OK) {
    *out = cuda;
    return TL_OK;
  }
  tl_cuda_close(cuda);
  return status;
}

void tl_cuda_close(tl_cuda *cuda) {
  if (cuda == NULL) return;
  if (cuda->context != NULL && tl_cuda_enter(cuda) == TL_OK) {
    tl_cuda_keep(cuda, NULL, NULL);
    tl_cuda_free(cuda, cuda->scratch);
    tl_cuda_free(cuda, cuda->found);
    if (cuda->looked != NULL) cuda->api->host_free(cuda->looked);
    for (int32_t i = 0; i < cuda->library_count; i++) cuda->api->library_close(cuda->libraries[i]);
    if (cuda->stream != NULL) cuda->api->stream_destroy(cuda->stream);
    cuda->api->context_release(cuda->device);
  }
  free(cuda->libraries);
  free(cuda);
}

const tl_cuda_facts *tl_cuda_device(const tl_cuda *cuda) { return &cuda->facts; }
const tl_cuda_api *tl_cuda_calls(const tl_cuda *cuda) { return cuda->api; }
void tl_cuda_set_blocks(tl_cuda *cuda, const tl_cuda_blocks *blocks) { cuda->blocks = *blocks; }
const tl_cuda_blocks *tl_cuda_get_blocks(const tl_cuda *cuda) { return &cuda->blocks; }
void tl_cuda_keep(tl_cuda *cuda, void *thing, void (*close)(void *)) {
  if (cuda->kept != NULL) cuda->close_kept(cuda->kept);
  cuda->kept = thing, cuda->close_kept = close;
}
void *tl_cuda_kept(const tl_cuda *cuda) { return cuda->kept; }
void *tl_cuda_stream(const tl_cuda *cuda) { return cuda->stream; }
void *tl_cuda_scratch(const tl_cuda *cuda) { return cuda->scratch; }
uint64_t *tl_cuda_found(const tl_cuda *cuda) { return cuda->found; }
void tl_cuda_set_place(tl_cuda *cuda, int32_t place) { cuda->place = place; }
int32_t tl_cuda_place(const tl_cuda *cuda) { return cuda->place; }
void tl_cuda_set_spare(tl_cuda *cuda, int32_t count) { cuda->spare = count; }
void tl_cuda_set_apart(tl_cuda *cuda, int32_t apart) { cuda->apart = apart; }
int32_t tl_cuda_apart(const tl_cuda *cuda) { return cuda->apart; }
int32_t tl_cuda_spare(const tl_cuda *cuda) { return cuda->spare; }
uint64_t tl_cuda_looked(const tl_cuda *cuda) { return *cuda->looked; }

tl_status tl_cuda_queue_look(tl_cuda *cuda) {
  const uint64_t from = (uint64_t)(uintptr_t)cuda->found;
  TRY_CUDA(cuda, "copy", copy_out(cuda->looked, from, sizeof *cuda->looked, cuda->stream));
  TRY_CUDA(cuda, "fill", fill(from, 0xff, sizeof *cuda->looked, cuda->stream));
  return TL_OK;
}

tl_status tl_cuda_enter(const tl_cuda *cuda) {
  return tl_cuda_check(cuda->api, cuda->api->context_set(cuda->context), "context");
}

tl_status tl_cuda_alloc(tl_cuda *cuda, int64_t bytes, void **out) {
  uint64_t address;
  const int error = cuda->api->memory_alloc(&address, (size_t)(bytes > 0 ? bytes : 1));
  if (error != 0)
    return tl_fail(TL_MEMORY, "GPU %d: no room for %lld bytes; %lld of %lld were free",
                   cuda->ordinal, (long long)bytes, (long long)cuda->facts.available,
                   (long long)cuda->facts.memory);
  *out = (void *)(uintptr_t)address;
  return TL_OK;
}

void tl_cuda_free(tl_cuda *cuda, void *address) {
  if (address != NULL) cuda->api->memory_free((uint64_t)(uintptr_t)address);
}

/* The kernel of this name, from whichever image has it; remembered. */
static tl_status find_kernel(tl_cuda *cuda, const char *name, kernel **out) {
  uint64_t slot = tl_hash_bytes(name, (int64_t)strlen(name)) % KERNELS_MAX;
  for (; cuda->kernels[slot].name != NULL; slot = (slot + 1) % KERNELS_MAX)
    if (strcmp(cuda->kernels[slot].name, name) == 0) {
      *out = &cuda->kernels[slot];
      return TL_OK;
    }
  for (int32_t i = 0; i < cuda->library_count; i++) {
    void *handle;
    if (cuda->api->library_kernel(&handle, cuda->libraries[i], name) != 0) continue;
    int registers;
    TRY_CUDA(cuda, name,
             kernel_attribute(&registers, TL_CUDA_KERNEL_REGISTERS, handle, cuda->device));
    cuda->kernels[slot] = (kernel){.name = name, .handle = handle, .registers = registers};
    *out = &cuda->kernels[slot];
    return TL_OK;
  }
  return tl_fail(TL_DEVICE, "no kernel %s for sm_%d%d in this build", name, cuda->facts.major,
                 cuda->facts.minor);
}

static tl_status allow_shared(tl_cuda *cuda, kernel *k, uint32_t bytes) {
  if (bytes <= k->shared || bytes <= 48 << 10) return TL_OK;
  if (bytes > (uint32_t)cuda->facts.shared_max)
    return tl_fail(TL_DEVICE, "kernel %s needs %u bytes of shared memory; %s has %d", k->name,
                   bytes, cuda->facts.name, cuda->facts.shared_max);
  TRY_CUDA(cuda, k->name,
           kernel_set(TL_CUDA_KERNEL_SHARED_MAX, (int)bytes, k->handle, cuda->device));
  k->shared = bytes;
  return TL_OK;
}

static uint32_t at_least_one(uint32_t n) { return n == 0 ? 1 : n; }

static tl_status check_registers(const tl_cuda *cuda, const kernel *k, const tl_cuda_grid *grid) {
  const int64_t threads =
      (int64_t)grid->threads[0] * at_least_one(grid->threads[1]) * at_least_one(grid->threads[2]);
  if (threads * k->registers <= cuda->facts.registers_max) return TL_OK;
  return tl_fail(
      TL_DEVICE, "kernel %s needs %d registers for each of %lld threads; a block of %s has %d",
      k->name, k->registers, (long long)threads, cuda->facts.name, cuda->facts.registers_max);
}

/* A launch that overlaps is not asked by the driver whether all of its blocks run at once, once
** earlier kernels have left: a cooperative one would wait for these. */
static tl_status check_together(tl_cuda *cuda, kernel *k, const tl_cuda_grid *grid,
                                const tl_launch_config *config) {
  const int64_t blocks = (int64_t)config->grid[0] * config->grid[1] * config->grid[2];
  int clusters = 0;
  if (blocks <= k->together && config->shared <= k->beside) return TL_OK;
  TRY_CUDA(cuda, k->name, clusters_at_once(&clusters, k->handle, config));
  k->together = (int64_t)clusters * grid->together, k->beside = config->shared;
  if (blocks <= k->together) return TL_OK;
  return tl_fail(TL_DEVICE, "kernel %s: %lld blocks have to run at once; %s has room for %lld",
                 k->name, (long long)blocks, cuda->facts.name, (long long)k->together);
}

tl_status tl_cuda_launch_on(tl_cuda *cuda, void *stream, const char *name, const tl_cuda_grid *grid,
                            const void *arguments) {
  kernel *k = NULL;
  void *pointers[] = {(void *)(uintptr_t)arguments};
  if (grid->blocks[0] == 0) return TL_OK;
  TL_TRY(find_kernel(cuda, name, &k));
  TL_TRY(allow_shared(cuda, k, grid->shared));
  TL_TRY(check_registers(cuda, k, grid));
  tl_launch_attribute attributes[2];
  uint32_t count = 0;
  if (grid->overlaps && !cuda->apart)
    attributes[count++] = (tl_launch_attribute){.id = TL_CUDA_LAUNCH_OVERLAPS, .value = {1}};
  const int overlaps = count > 0;
  if (grid->together && !overlaps)
    attributes[count++] = (tl_launch_attribute){.id = TL_CUDA_LAUNCH_TOGETHER, .value = {1}};
  const tl_launch_config config = {
      .grid = {grid->blocks[0],  at_least_one(grid->blocks[1]),  at_least_one(grid->blocks[2]) },
      .block = {grid->threads[0], at_least_one(grid->threads[1]), at_least_one(grid->threads[2])},
      .shared = grid->shared,
      .stream = stream,
      .attributes = attributes,
      .attribute_count = count,
  };
  if (grid->together && overlaps) TL_TRY(check_together(cuda, k, grid, &config));
  TRY_CUDA(cuda, name, launch(&config, k->handle, pointers, NULL));
  cuda->last = *grid;
  cuda->launched++;
  return TL_OK;
}

tl_status tl_cuda_launch(tl_cuda *cuda, const char *name, const tl_cuda_grid *grid,
                         const void *arguments) {
  return tl_cuda_launch_on(cuda, cuda->stream, name, grid, arguments);
}

tl_status tl_cuda_reach(tl_cuda *cuda, const tl_cuda *peer) {
  int can = 0;
  TRY_CUDA(cuda, "peers", link_can(&can, cuda->device, peer->device));
  if (!can)
    return tl_fail(TL_DEVICE,
                   "GPU %d (%s) cannot reach the memory of GPU %d (%s): there is no link; start a "
                   "process for each GPU instead (mpirun or torchrun), which uses NCCL",
                   cuda->ordinal, cuda->facts.pci, peer->ordinal, peer->facts.pci);
  TL_TRY(tl_cuda_enter(cuda));
  const int error = cuda->api->link_open(peer->context, 0);
  return error == TL_CUDA_PEER_ENABLED ? TL_OK : tl_cuda_check(cuda->api, error, "peer access");
}

static tl_status preload_library(tl_cuda *cuda, void *library) {
  unsigned count = 0;
  tl_status status = TL_OK;
  TRY_CUDA(cuda, "kernels", library_count(&count, library));
  void **kernels = calloc((size_t)count + 1, sizeof *kernels);
  if (kernels == NULL) return tl_fail(TL_MEMORY, "no room for a list of kernels");
  status = tl_cuda_check(cuda->api, cuda->api->library_list(kernels, count, library), "kernels");
  for (unsigned i = 0; i < count && status == TL_OK; i++) {
    void *function;
    int error = cuda->api->kernel_function(&function, kernels[i]);
    if (error == 0) error = cuda->api->function_load(function);
    status = tl_cuda_check(cuda->api, error, "loading of a kernel");
  }
  free(kernels);
  return status;
}

tl_status tl_cuda_preload(tl_cuda *cuda) {
  TL_TRY(tl_cuda_enter(cuda));
  for (int32_t i = 0; i < cuda->library_count; i++)
    TL_TRY(preload_library(cuda, cuda->libraries[i]));
  return TL_OK;
}

int64_t tl_cuda_launched(const tl_cuda *cuda, tl_cuda_grid *out) {
  if (out != NULL) *out = cuda->last;
  return cuda->launched;
}
