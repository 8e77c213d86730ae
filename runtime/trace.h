/* trace.h - where one rank's time goes, instruction by instruction.
**
** A record per instruction of the program: how often it ran, its time in all, and when it began and
** ended last. Times are wall time of a monotonic clock: an instruction that waits for other ranks
** includes the wait.
*/
#ifndef TL_TRACE_H
#define TL_TRACE_H

#include <stdint.h>

#include "status.h"

typedef struct tl_trace_record {
  int64_t calls;
  int64_t total_ns;
  int64_t start_ns, end_ns; /* of the last call */
} tl_trace_record;

typedef struct tl_trace tl_trace;

/* All records zero. The caller closes it. */
tl_status tl_trace_open(int32_t instructions, tl_trace **out);
void tl_trace_close(tl_trace *trace); /* NULL is allowed */
/* Called by the rank's own thread. */
void tl_trace_note(tl_trace *trace, int32_t instruction, int64_t start_ns, int64_t end_ns);
/* Records by instruction; valid until the trace is closed. */
const tl_trace_record *tl_trace_records(const tl_trace *trace);

#endif
