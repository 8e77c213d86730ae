/* trace.h - what one rank's instructions did: hashes of their outputs, times, bytes, tensors.
**
**   instruction   records          outputs                        captures
**   214           start, end ..    hash of y, hash of rstd        x as it was before, y after
**   215           start, end ..    hash of dx                     dx after
**
** A record per instruction of the program: how often it ran, its time in all, and of the last call
** when it began and ended, how long it waited for other ranks, and the bytes that went between
** ranks. Times are wall time of a monotonic clock.
**
** An output is hashed where the trace has a part for it (hash.h): the share of this rank in the
** logical tensor, so that shares of all ranks add up to the same number in every layout. A capture
** is a copy of an operand, before or after its instruction, at a planned place of one block.
**
** Everything is allocated when the trace is opened; nothing is while a section runs.
*/
#ifndef TL_TRACE_H
#define TL_TRACE_H

#include "hash.h"
#include "program.h"

typedef struct tl_trace_record {
  int64_t calls;
  int64_t total_ns;
  int64_t start_ns, end_ns, wait_ns;      /* of the last call; the wait is part of the time */
  int64_t moved;                          /* bytes read from other ranks or sent to them */
  uint32_t blocks[3], threads[3], shared; /* of the last kernel that it launched on a GPU */
  uint32_t launches;                      /* of the last call; 0 on the host */
} tl_trace_record;

/* Which output of an instruction to hash, and as what. */
typedef struct tl_trace_output {
  int32_t instruction, position;
  int64_t rows_per_sample; /* row_first grows by this for each sample before the rank's first */
  tl_hash_part part;
} tl_trace_output;

typedef struct tl_trace_capture {
  int32_t instruction, operand; /* position among its inputs or outputs */
  int32_t output;               /* 0: an input */
  int32_t after;                /* 0: before the instruction runs */
  int64_t offset;               /* in the block */
} tl_trace_capture;

/* Both lists ascend by instruction; captures before an instruction stand before those after it. */
typedef struct tl_trace_options {
  const tl_trace_output *outputs;
  const tl_trace_capture *captures;
  int32_t output_count, capture_count;
  int64_t capture_bytes;
  int64_t sample_base; /* the rank's first sample of the global batch */
  int32_t elsewhere;   /* of a rank in another process: it is only filled by tl_trace_load */
} tl_trace_options;

typedef struct tl_trace tl_trace;

/* All records and hashes zero. The lists are copied. Fails with TL_ARGUMENT for a part that reaches
** past its tensor or a capture past the block. The caller closes it. */
tl_status tl_trace_open(const tl_program *program, const tl_trace_options *options, tl_trace **out);
void tl_trace_close(tl_trace *trace); /* NULL is allowed */

/* Where the bytes of a view are for the host: the view's own memory, or a copy from a GPU into
** `room`, which holds the largest operand of the program. */
typedef tl_status (*tl_trace_read)(void *context, const tl_view *view, void *room,
                                   const void **out);

/* What the executor hands over; called by the rank's own thread, around every instruction. */
typedef struct tl_trace_source {
  const tl_view *views; /* by operand of the program */
  tl_team *team;        /* shares the work of hashing; NULL: none */
  tl_trace_read read;   /* NULL: views are in host memory */
  void *context;
} tl_trace_source;

/* Before: keeps the operands that are captured before the instruction. After: hashes its outputs,
** and keeps those that are captured after it. Both fail only where operands cannot be read. */
tl_status tl_trace_before(tl_trace *trace, const tl_trace_source *source, int32_t instruction);
tl_status tl_trace_after(tl_trace *trace, const tl_trace_source *source, int32_t instruction);
/* Counts a call: start_ns, end_ns, wait_ns, moved and the launch are taken from `call`. */
void tl_trace_note(tl_trace *trace, int32_t instruction, const tl_trace_record *call);

/* The outputs of an instruction that are hashed, and the number of the first among all; for devices
** that hash them themselves and then say what they found. */
const tl_trace_output *tl_trace_outputs_of(const tl_trace *trace, int32_t instruction,
                                           int32_t *first, int32_t *count);
void tl_trace_set_hash(tl_trace *trace, int32_t output, uint64_t hash);

/* What a trace of the same program and options found in another process. `later_ns` is added to the
** times that instructions began and ended. */
void tl_trace_load(tl_trace *trace, const tl_trace_record *records, const uint64_t *hashes,
                   const void *captured, int64_t later_ns);

/* Records by instruction, hashes by output, the block of captures; valid until the trace is
** closed. */
const tl_trace_record *tl_trace_records(const tl_trace *trace);
const uint64_t *tl_trace_hashes(const tl_trace *trace, int32_t *count);
const char *tl_trace_captured(const tl_trace *trace, int64_t *bytes);

#endif
