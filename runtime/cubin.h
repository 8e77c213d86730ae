/* cubin.h - reads a cubin: an ELF file with the machine code of some kernels.
**
**   .text.<kernel>         instructions                        \
**   .nv.info.<kernel>      parameters, barriers, launch limits  > hashed, one SHA-256 a kernel
**   .nv.constant*.<kernel> constants                           /
**   .nv.info               registers, frames by symbol         \  shown beside the hash
**   .nv.shared.<kernel>    static shared memory                /
**   .note.nv.tkinfo        ptxas: its version, its flags
**
** What depends on the neighbours in the file is left out of the hash: the number of the constant
** bank's symbol in .nv.info. So a kernel that is added changes no other kernel's hash.
**
** The file may be damaged: every offset is checked, and a broken one is a failure, TL_DEVICE.
** Source: System V ABI; the sections and the attribute numbers are those of CUDA 13.0's cubins.
*/
#ifndef TL_CUBIN_H
#define TL_CUBIN_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

enum { TL_CUBIN_NAME = 128, TL_CUBIN_SHA = 65 };

typedef struct tl_cubin_kernel {
  char name[TL_CUBIN_NAME], sha256[TL_CUBIN_SHA]; /* lower-case hexadecimal */
  int32_t registers;                              /* of a thread */
  int32_t shared;                                 /* static bytes of a block */
  int32_t local;                                  /* bytes of a thread; 0: nothing is spilled */
} tl_cubin_kernel;

typedef struct tl_cubin_tool {
  char compiler[32], flags[256]; /* "13.0.88", "-arch sm_90a -m 64 -fmad false" */
} tl_cubin_tool;

/* The compiler and its flags. */
tl_status tl_cubin_tool_of(const void *image, int64_t bytes, tl_cubin_tool *out);
/* Calls visit for each kernel, in the order of the file; what it fails with ends the walk. */
typedef tl_status (*tl_cubin_visit)(void *context, const tl_cubin_kernel *kernel);
tl_status tl_cubin_kernels(const void *image, int64_t bytes, tl_cubin_visit visit, void *context);

#endif
