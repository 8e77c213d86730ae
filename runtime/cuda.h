/* cuda.h - one GPU as a rank sees it: a stream, an arena, and kernels by name.
**
**   device   context, kernels of the cubin for its architecture          shared by ranks of a GPU
**     lane   a stream: instructions run in order on it                    one per rank
**
** Launchers (kernels/<family>/<family>_cuda.c) call tl_cuda_launch with one struct of arguments,
** which the kernel takes by value. Launching never waits and never allocates, so that a whole step
** can be captured once as a graph and replayed.
*/
#ifndef TL_CUDA_H
#define TL_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_driver.h"

typedef struct tl_cuda tl_cuda;

typedef struct tl_cuda_facts {
  char name[128], pci[32];
  int32_t major, minor;                               /* compute capability */
  int32_t multiprocessors, shared_max, registers_max; /* bytes, registers: of a block */
  int32_t cache;                                      /* bytes, of the second level */
  int64_t memory, available;                          /* bytes */
} tl_cuda_facts;

/* GPUs of this machine. Fails, with the reason, where libcuda is not there or is too old. */
tl_status tl_cuda_count(int32_t *out);
/* Fails for a number that is not below the count. */
tl_status tl_cuda_facts_of(int32_t ordinal, tl_cuda_facts *out);

/* Opens GPU `ordinal`: context, kernels, one stream. Fails for an architecture without a cubin. */
tl_status tl_cuda_open(int32_t ordinal, tl_cuda **out);
void tl_cuda_close(tl_cuda *cuda);
const tl_cuda_facts *tl_cuda_device(const tl_cuda *cuda);
const tl_cuda_api *tl_cuda_calls(const tl_cuda *cuda);
void *tl_cuda_stream(const tl_cuda *cuda);
/* Makes the device's context the calling thread's; every thread that uses it calls it once. */
tl_status tl_cuda_enter(const tl_cuda *cuda);

/* Plain allocations; who makes them for a run counts them (tl_memory_note). */
tl_status tl_cuda_alloc(tl_cuda *cuda, int64_t bytes, void **out);
void tl_cuda_free(tl_cuda *cuda, void *address);
/* TL_CUDA_SCRATCH_BYTES of device memory for the kernels of this lane; contents are arbitrary. */
enum { TL_CUDA_SCRATCH_BYTES = 64 << 20 };
void *tl_cuda_scratch(const tl_cuda *cuda);

/* What kernels find wrong with data: a number in device memory of which the least stays, so that it
** does not depend on time. Its upper TL_CUDA_PLACE_BITS bits are where (tl_cuda_place: what the
** executor set last, an instruction), the others are the kernel's. Nobody waits for it: a look is
** queued behind the kernels, and its result is there when the stream has been waited for. */
enum { TL_CUDA_PLACE_BITS = 24 };
#define TL_CUDA_ALL_WELL UINT64_MAX
uint64_t *tl_cuda_found(const tl_cuda *cuda);
void tl_cuda_set_place(tl_cuda *cuda, int32_t place);
int32_t tl_cuda_place(const tl_cuda *cuda);
tl_status tl_cuda_queue_look(tl_cuda *cuda);
/* What the last look brought; after it the device begins anew. */
uint64_t tl_cuda_looked(const tl_cuda *cuda);

/* Tiles that launchers take where they fit; 0: launchers choose. Bits do not depend on them. */
typedef struct tl_cuda_blocks {
  int32_t gemm_rows, gemm_columns; /* blocks.gemm: outputs of a block of threads */
  int32_t attention_rows;          /* blocks.attention.q: queries of a block of threads */
  int32_t gemm_provider;           /* blocks.gemm.provider: gemm_provider.h; 0: our own kernels */
} tl_cuda_blocks;
void tl_cuda_set_blocks(tl_cuda *cuda, const tl_cuda_blocks *blocks);
const tl_cuda_blocks *tl_cuda_get_blocks(const tl_cuda *cuda);

/* Multiprocessors that kernels which would keep all of them till their end (products) leave to what
** another stream brings meanwhile; 0 at first. */
void tl_cuda_set_spare(tl_cuda *cuda, int32_t multiprocessors);
int32_t tl_cuda_spare(const tl_cuda *cuda);

/* 1: launches do not overlap (tl_cuda_grid.overlaps), for who looks at them one by one: a kernel
** that waits for the one before it keeps the stopwatch's kernel from running, and the time that it
** takes itself would count as the other's. */
void tl_cuda_set_apart(tl_cuda *cuda, int32_t apart);
int32_t tl_cuda_apart(const tl_cuda *cuda);

/* One thing that goes with the GPU and is closed before it; NULL: none. */
void tl_cuda_keep(tl_cuda *cuda, void *thing, void (*close)(void *thing));
void *tl_cuda_kept(const tl_cuda *cuda);

typedef struct tl_cuda_grid {
  uint32_t blocks[3]; /* 0 counts as 1 */
  uint32_t threads[3];
  uint32_t shared; /* bytes of dynamic shared memory */
  /* The kernel may begin while the one before it in the stream still runs: before it touches memory
  ** it waits itself for all that came before (earlier_wait of kernels/hopper.cuh). */
  int32_t overlaps;
  /* Blocks wait for each other: all run at once, or the launch fails. The number is how many are a
  ** cluster, 1 where none are. */
  int32_t together;
} tl_cuda_grid;

/* Queues one kernel. Fails for a name that the cubin lacks, and for more shared memory or registers
** than a block of the device has; a grid with no blocks is no launch. */
tl_status tl_cuda_launch(tl_cuda *cuda, const char *kernel, const tl_cuda_grid *grid,
                         const void *arguments);
/* How many kernels were queued since the GPU was opened; `out`, unless NULL, is the last one's
** grid. */
int64_t tl_cuda_launched(const tl_cuda *cuda, tl_cuda_grid *out);

/* The same on another stream of this GPU. */
tl_status tl_cuda_launch_on(tl_cuda *cuda, void *stream, const char *kernel,
                            const tl_cuda_grid *grid, const void *arguments);

/* Lets kernels of `cuda` read and write the memory of `peer`. Fails where there is no link. */
tl_status tl_cuda_reach(tl_cuda *cuda, const tl_cuda *peer);
/* Loads every kernel now. A kernel that is loaded at its first launch waits for all that runs on
** the device, and so for ever if that waits for a peer whose turn comes later. */
tl_status tl_cuda_preload(tl_cuda *cuda);

#endif
