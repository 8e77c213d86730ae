/* ranks_remote.c - orders of rank 0 to ranks in other processes, and what those answer.
**
**   rank 0                     another
**   RUN section, numbers   ->  runs it
**                          <-  DONE: results, memory
**                          <-  ANSWER, while it is traced: records, hashes, captures, one each
**   READ tensor            ->
**                          <-  ANSWER: its bytes
**   HASH tensor, part      ->
**                          <-  ANSWER: its share
**   WRITE tensor, bytes    ->
**                          <-  ANSWER
**   TRACE on, counts       ->  outputs and captures, one each, follow
**                          <-  ANSWER: its clock
**
** All processes have the same programs, so a tensor's number means the same everywhere.
*/
#include <stdlib.h>
#include <string.h>

#include "ranks_inner.h"

enum { ORDER_RUN = 1, ORDER_READ, ORDER_HASH, ORDER_WRITE, ORDER_TRACE, ORDER_CLOSE, ANSWER, DONE };

typedef struct order {
  double limit_s;
  int64_t step;
  int32_t section, check, eager, fresh, profile, scalar_count, tensor;
  int32_t on, output_count, capture_count;
  int64_t capture_bytes;
  float scalars[TL_SCALARS_MAX];
  tl_hash_part part;
} order;

/* The next message of `rank`, which has to be of this kind and, when bytes >= 0, of this size. */
static tl_status expect(tl_ranks *ranks, int32_t rank, int32_t kind, int64_t bytes, tl_frame *out) {
  TL_TRY(tl_job_receive(ranks->job, rank, out));
  if (out->kind == kind && (bytes < 0 || out->bytes == bytes)) return TL_OK;
  const tl_status status =
      tl_fail(TL_COMM, "rank %d answers with a message of kind %d and %lld bytes, not %d and %lld",
              rank, out->kind, (long long)out->bytes, kind, (long long)bytes);
  free(out->data);
  return status;
}

static tl_status tell_others(tl_ranks *ranks, int32_t kind, const order *o) {
  for (int32_t i = 0; i < ranks->count; i++)
    if (!tl_ranks_here(ranks, i)) TL_TRY(tl_job_send(ranks->job, i, kind, o, sizeof *o));
  return TL_OK;
}

tl_status tl_remote_run(tl_ranks *ranks, const tl_run *run, double limit_s) {
  order o = {.limit_s = limit_s,
             .step = run->step.step,
             .section = run->section,
             .check = run->check,
             .eager = run->eager,
             .fresh = run->fresh,
             .profile = run->profile,
             .scalar_count = run->step.scalar_count};
  if (o.scalar_count > 0)
    memcpy(o.scalars, run->step.scalars, (size_t)o.scalar_count * sizeof *o.scalars);
  return tell_others(ranks, ORDER_RUN, &o);
}

/* What a traced rank says after DONE, into our copy of its trace. */
static tl_status load_trace(tl_ranks *ranks, int32_t rank) {
  tl_trace *trace = ranks->list[rank].executor.trace;
  const int32_t count = ranks->list[rank].executor.program->instruction_count;
  const int64_t records = count * (int64_t)sizeof(tl_trace_record);
  tl_frame frames[3] = {{0}};
  int32_t hashes;
  int64_t captured;
  tl_status status = TL_OK;
  tl_trace_hashes(trace, &hashes);
  tl_trace_captured(trace, &captured);
  const int64_t bytes[3] = {records, hashes * (int64_t)sizeof(uint64_t), captured};
  for (int32_t i = 0; i < 3; i++)
    TL_TRY_GOTO(status, expect(ranks, rank, ANSWER, bytes[i], &frames[i]), done);
  tl_trace_load(trace, (const tl_trace_record *)(const void *)frames[0].data,
                (const uint64_t *)(const void *)frames[1].data, frames[2].data,
                ranks->list[rank].later_ns);
done:
  for (int32_t i = 0; i < 3; i++) free(frames[i].data);
  return status;
}

tl_status tl_remote_finish(tl_ranks *ranks) {
  for (int32_t i = 0; i < ranks->count; i++) {
    tl_frame frame;
    if (tl_ranks_here(ranks, i)) continue;
    TL_TRY(expect(ranks, i, DONE, sizeof(tl_told), &frame));
    memcpy(&ranks->list[i].told, frame.data, sizeof(tl_told));
    free(frame.data);
    if (ranks->list[i].executor.trace != NULL) TL_TRY(load_trace(ranks, i));
  }
  return TL_OK;
}

tl_status tl_remote_read(tl_ranks *ranks, int32_t rank, int32_t tensor, void *to, int64_t bytes) {
  const order o = {.tensor = tensor};
  tl_frame frame;
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_READ, &o, sizeof o));
  TL_TRY(expect(ranks, rank, ANSWER, bytes, &frame));
  memcpy(to, frame.data, (size_t)bytes);
  free(frame.data);
  return TL_OK;
}

tl_status tl_remote_hash(tl_ranks *ranks, int32_t rank, int32_t tensor, const tl_hash_part *part,
                         uint64_t *out) {
  const order o = {.tensor = tensor, .part = *part};
  tl_frame frame;
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_HASH, &o, sizeof o));
  TL_TRY(expect(ranks, rank, ANSWER, sizeof *out, &frame));
  memcpy(out, frame.data, sizeof *out);
  free(frame.data);
  return TL_OK;
}

tl_status tl_remote_write(tl_ranks *ranks, int32_t rank, int32_t tensor, const void *from,
                          int64_t bytes) {
  const order o = {.tensor = tensor};
  tl_frame frame;
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_WRITE, &o, sizeof o));
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_WRITE, from, bytes));
  TL_TRY(expect(ranks, rank, ANSWER, 0, &frame));
  free(frame.data);
  return TL_OK;
}

/* A clock that reads between our two readings is taken to be ours: processes of one machine share
** it. Another one is moved to the middle of them, which is right within half the journey. */
static int64_t clock_of(int64_t asked_ns, int64_t theirs_ns, int64_t answered_ns) {
  if (theirs_ns >= asked_ns && theirs_ns <= answered_ns) return 0;
  return asked_ns + (answered_ns - asked_ns) / 2 - theirs_ns;
}

tl_status tl_remote_trace(tl_ranks *ranks, int32_t rank, int32_t on, const tl_trace_options *of) {
  const tl_trace_options lists = of != NULL ? *of : (tl_trace_options){0};
  const order o = {.on = on,
                   .output_count = lists.output_count,
                   .capture_count = lists.capture_count,
                   .capture_bytes = lists.capture_bytes};
  tl_frame frame;
  int64_t theirs;
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_TRACE, &o, sizeof o));
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_TRACE, lists.outputs,
                     o.output_count * (int64_t)sizeof *lists.outputs));
  const int64_t asked = tl_now_ns();
  TL_TRY(tl_job_send(ranks->job, rank, ORDER_TRACE, lists.captures,
                     o.capture_count * (int64_t)sizeof *lists.captures));
  TL_TRY(expect(ranks, rank, ANSWER, sizeof theirs, &frame));
  memcpy(&theirs, frame.data, sizeof theirs);
  free(frame.data);
  ranks->list[rank].later_ns = clock_of(asked, theirs, tl_now_ns());
  return TL_OK;
}

/* --- The other side --------------------------------------------------------------------------- */

static tl_status send_trace(tl_ranks *ranks) {
  const tl_executor *e = &ranks->list[ranks->first].executor;
  int32_t hashes;
  int64_t captured;
  const uint64_t *of = tl_trace_hashes(e->trace, &hashes);
  const char *block = tl_trace_captured(e->trace, &captured);
  TL_TRY(tl_job_send(ranks->job, 0, ANSWER, tl_trace_records(e->trace),
                     e->program->instruction_count * (int64_t)sizeof(tl_trace_record)));
  TL_TRY(tl_job_send(ranks->job, 0, ANSWER, of, hashes * (int64_t)sizeof *of));
  return tl_job_send(ranks->job, 0, ANSWER, block, captured);
}

static tl_status serve_run(tl_ranks *ranks, const order *o) {
  const int32_t me = ranks->first;
  const tl_program *p = ranks->list[me].executor.program;
  tl_told told = {0};
  const tl_run run = {
      .section = (tl_section)o->section,
      .check = o->check,
      .eager = o->eager,
      .fresh = o->fresh,
      .profile = o->profile,
      .step = {.step = o->step, .scalars = o->scalars, .scalar_count = o->scalar_count}
  };
  TL_TRY(tl_ranks_run_here(ranks, &run, o->limit_s));
  for (int r = 0; r < TL_RESULTS; r++)
    if (p->result_written[run.section][r])
      TL_TRY(tl_ranks_result(ranks, me, (tl_result)r, told.results[r]));
  for (int kind = 0; kind < TL_MEMORY_COUNT; kind++) {
    told.current[kind] = tl_memory_current((tl_memory)kind);
    told.peak[kind] = tl_memory_peak((tl_memory)kind);
  }
  TL_TRY(tl_job_send(ranks->job, 0, DONE, &told, sizeof told));
  return ranks->list[me].executor.trace != NULL ? send_trace(ranks) : TL_OK;
}

static tl_status serve_trace(tl_ranks *ranks, const order *o) {
  tl_frame outputs = {0}, captures = {0};
  tl_status status = TL_OK;
  TL_TRY_GOTO(
      status,
      expect(ranks, 0, ORDER_TRACE, o->output_count * (int64_t)sizeof(tl_trace_output), &outputs),
      done);
  TL_TRY_GOTO(status,
              expect(ranks, 0, ORDER_TRACE, o->capture_count * (int64_t)sizeof(tl_trace_capture),
                     &captures),
              done);
  const int64_t now = tl_now_ns(); /* as early as it can be said: rank 0 compares it */
  TL_TRY_GOTO(status, tl_job_send(ranks->job, 0, ANSWER, &now, sizeof now), done);
  const tl_trace_options options = {.outputs = (const tl_trace_output *)(void *)outputs.data,
                                    .captures = (const tl_trace_capture *)(void *)captures.data,
                                    .output_count = o->output_count,
                                    .capture_count = o->capture_count,
                                    .capture_bytes = o->capture_bytes};
  status = tl_ranks_trace_one(ranks, ranks->first, o->on, &options);
done:
  free(outputs.data);
  free(captures.data);
  return status;
}

static tl_status serve_read(tl_ranks *ranks, const order *o) {
  tl_view view;
  TL_TRY(tl_ranks_view(ranks, ranks->first, o->tensor, &view));
  char *copy = malloc((size_t)tl_view_bytes(&view) + 1);
  if (copy == NULL) return tl_fail(TL_MEMORY, "no room for a tensor that rank 0 asks for");
  tl_status status = tl_ranks_read(ranks, ranks->first, o->tensor, copy);
  if (status == TL_OK) status = tl_job_send(ranks->job, 0, ANSWER, copy, tl_view_bytes(&view));
  free(copy);
  return status;
}

static tl_status serve_hash(tl_ranks *ranks, const order *o) {
  uint64_t sum;
  TL_TRY(tl_ranks_hash(ranks, ranks->first, o->tensor, &o->part, &sum));
  return tl_job_send(ranks->job, 0, ANSWER, &sum, sizeof sum);
}

static tl_status serve_write(tl_ranks *ranks, const order *o) {
  tl_frame frame;
  tl_view view;
  TL_TRY(tl_ranks_view(ranks, ranks->first, o->tensor, &view));
  TL_TRY(expect(ranks, 0, ORDER_WRITE, tl_view_bytes(&view), &frame));
  tl_status status = tl_ranks_write(ranks, ranks->first, o->tensor, frame.data);
  free(frame.data);
  return status == TL_OK ? tl_job_send(ranks->job, 0, ANSWER, "", 0) : status;
}

static tl_status serve_one(tl_ranks *ranks, int32_t kind, const order *o) {
  switch (kind) {
    case ORDER_RUN: return serve_run(ranks, o);
    case ORDER_READ: return serve_read(ranks, o);
    case ORDER_HASH: return serve_hash(ranks, o);
    case ORDER_WRITE: return serve_write(ranks, o);
    case ORDER_TRACE: return serve_trace(ranks, o);
    default: return tl_fail(TL_COMM, "rank 0 sends an order of kind %d", kind);
  }
}

tl_status tl_ranks_serve(tl_ranks *ranks) {
  for (;;) {
    tl_frame frame;
    order o;
    TL_TRY(tl_job_receive(ranks->job, 0, &frame));
    const int32_t kind = frame.kind;
    const int good = frame.bytes == sizeof o;
    if (good) memcpy(&o, frame.data, sizeof o);
    free(frame.data);
    if (!good) return tl_fail(TL_COMM, "rank 0 sends an order that is cut");
    if (kind == ORDER_CLOSE) return TL_OK;
    TL_TRY(serve_one(ranks, kind, &o));
  }
}

void tl_remote_close(tl_ranks *ranks) {
  const order o = {.on = 0};
  if (tl_job_rank(ranks->job) == 0) tell_others(ranks, ORDER_CLOSE, &o);
}
