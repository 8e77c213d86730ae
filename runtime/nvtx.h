/* nvtx.h - named ranges for a profiler that listens: Nsight Systems and others that speak NVTX 3.
**
**   step 12                                      of a rank's thread
**     micro-batch 0
**       linear (recipes/x.lua:7)                 kernels are launched inside it
**       rms_norm (recipes/x.lua:6)
**
** NVTX's own library is a set of headers; what they do is done here by hand, so that the build
** needs none of them. A profiler sets NVTX_INJECTION64_PATH to a library of its own. It is opened
** when the first range is wanted; its InitializeInjectionNvtx2 is given a function that hands out
** tables, and writes the functions that it implements into the places that the tables name:
**
**   export table 1   { size, (module, table *, count *) -> 1 }   module 5: domains, their ranges
**   export table 3   { size, version 3, reserved, (version) }
**
** Functions that it leaves alone stay NULL, and ranges cost a comparison. Without the variable no
** range is made. Source: NVTX 3, nvtxDetail/nvtxInit.h and nvtxTypes.h.
*/
#ifndef TL_NVTX_H
#define TL_NVTX_H

#include <stdint.h>

#include "program.h"

/* 1 if a profiler listens; else *why says why not. Opens its library the first time. */
int32_t tl_nvtx_open(const char **why);

/* The ranges of one run of a section. A caller begins, enters and leaves every instruction, and
** ends whatever happened. */
typedef struct tl_spans {
  const tl_program *program;
  int32_t on, open, micro; /* micro-batch of the open range; TL_NO_TENSOR: none */
} tl_spans;

/* `on` 0: nothing is done here and in the functions below. `step` counts from 0. */
void tl_spans_begin(tl_spans *spans, const tl_program *program, int32_t on, int64_t step);
void tl_spans_enter(tl_spans *spans, int32_t instruction);
void tl_spans_leave(tl_spans *spans);
void tl_spans_end(tl_spans *spans);

#endif
