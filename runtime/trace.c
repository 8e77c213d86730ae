/* trace.c - one array of records. */
#include "trace.h"

#include <stdlib.h>

struct tl_trace {
  int32_t instructions;
  tl_trace_record records[];
};

tl_status tl_trace_open(int32_t instructions, tl_trace **out) {
  tl_trace *trace = calloc(1, sizeof *trace + (size_t)instructions * sizeof trace->records[0]);
  if (trace == NULL) return tl_fail(TL_MEMORY, "no room to trace %d instructions", instructions);
  trace->instructions = instructions;
  *out = trace;
  return TL_OK;
}

void tl_trace_close(tl_trace *trace) { free(trace); }

void tl_trace_note(tl_trace *trace, int32_t instruction, int64_t start_ns, int64_t end_ns) {
  tl_trace_record *r = &trace->records[instruction];
  r->calls++;
  r->total_ns += end_ns - start_ns;
  r->start_ns = start_ns;
  r->end_ns = end_ns;
}

const tl_trace_record *tl_trace_records(const tl_trace *trace) { return trace->records; }
