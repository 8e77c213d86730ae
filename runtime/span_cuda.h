/* span_cuda.h - one range of addresses whose parts lie in the memory of several GPUs.
**
**   address    base                  base + part           base + 2 part
**              [ memory of GPU 0    ][ memory of GPU 1    ]
**   readers    any kernel of any of these GPUs, through a plain pointer, across the border too
**
** The driver's virtual memory: a range is reserved, memory of each GPU is mapped into its slice,
** and every GPU of the range gets access to all of it. GPUs must reach each other (`./tl doctor`
** lists links); ranks that share a range are threads of one process. NVLink multicast has no part
** in it.
**
** Source: CUDA Driver API reference, "Virtual Memory Management".
*/
#ifndef TL_SPAN_CUDA_H
#define TL_SPAN_CUDA_H

#include <stdint.h>

#include "status.h"

enum { TL_SPAN_GPUS_MAX = 64 };

typedef struct tl_span tl_span;

/* `bytes` of each of the GPUs `gpus`, rounded up to what the driver maps at a time (2 MiB on an
** H200), in this order. Contents are arbitrary. Fails with what is missing: no driver, no such GPU,
** one twice, two without a link between them, too little memory. The caller closes it. */
tl_status tl_span_open(const int32_t *gpus, int32_t count, int64_t bytes, tl_span **out);
void tl_span_close(tl_span *span); /* NULL is allowed; nothing may run on it any more */

int32_t tl_span_count(const tl_span *span);
int32_t tl_span_gpu(const tl_span *span, int32_t part);
int64_t tl_span_part_bytes(const tl_span *span);
/* Of byte `at`; the caller stays inside the range. */
void *tl_span_address(const tl_span *span, int64_t at);

/* Copies between the host and bytes at .. at + bytes - 1, part by part, and waits. Fails for a
** place outside the range. */
tl_status tl_span_write(tl_span *span, int64_t at, int64_t bytes, const void *from);
tl_status tl_span_read(tl_span *span, int64_t at, int64_t bytes, void *to);

#endif
