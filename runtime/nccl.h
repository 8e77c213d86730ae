/* nccl.h - NCCL, opened at run time: one program for machines with and without it.
**
** Multicast is switched off before the library is opened (NCCL_NVLS_ENABLE=0), whatever the
** environment says. Source: NCCL user guide.
*/
#ifndef TL_NCCL_H
#define TL_NCCL_H

#include <stddef.h>
#include <stdint.h>

#include "status.h"

typedef struct tl_nccl_id { /* of a communicator; by value, as NCCL has it */
  char bytes[128];
} tl_nccl_id;

typedef struct tl_nccl_api {
#define NCCL(name, symbol, arguments) int(*name) arguments;
#include "nccl.def"
#undef NCCL
} tl_nccl_api;

/* The same table for the whole process; thread safe. Fails where the library is not, with what to
** do. */
tl_status tl_nccl_find(const tl_nccl_api **out);
/* TL_OK for 0, else TL_COMM with the number of the error, or TL_LOST where a peer is gone. */
tl_status tl_nccl_check(int error, const char *what);
/* 22803 is 2.28.3. */
tl_status tl_nccl_version(int32_t *out);

#endif
