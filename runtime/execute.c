/* execute.c - the loop over instructions. */
#include "execute.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "execute_cuda.h"
#include "execute_inner.h"
#include "nvtx.h"
#include "random.h"

void tl_executor_resolve(tl_executor *e) {
  const tl_program *p = e->program;
  for (int32_t i = 0; i < p->operand_count; i++) {
    const int32_t tensor = p->operands[i];
    e->views[i] = (tl_view){.data = NULL};
    if (tensor == TL_NO_TENSOR) continue;
    e->views[i] = p->places[tensor].view;
    e->views[i].data = e->arena + p->places[tensor].offset;
  }
}

static tl_status run_kernel(const tl_executor *e, const tl_instruction *i, const tl_step *step) {
  const tl_program *p = e->program;
  const tl_call call = {
      .in = e->views + i->in.first,
      .out = e->views + i->out.first,
      .in_count = i->in.count,
      .out_count = i->out.count,
      .ints = p->ints + i->ints.first,
      .int_count = i->ints.count,
      .floats = p->floats + i->floats.first,
      .float_count = i->floats.count,
      .step = step,
      .team = e->team,
  };
  return tl_ops[i->op].host(&call);
}

/* The ints of the row, by position: group share waves wave home hops island experts... */
static tl_status run_exchange(const tl_executor *e, const tl_instruction *i, const int64_t *ints,
                              tl_comm *comm) {
  const tl_view *x = e->views + i->in.first, *y = e->views + i->out.first;
  tl_swap s = {.hops = (tl_hops)ints[5], .island = (int32_t)ints[6], .home = (int32_t)ints[4]};
  s.plan = (tl_exchange){.listing = ints + 7, .ranks = comm->size, .share = ints[1]};
  s.plan.waves = ints[2], s.plan.wave = ints[3], s.plan.whole = s.home;
  TL_TRY(tl_exchange_check("exchange", &x[1], &s.plan, i->ints.count - 7));
  s.row_bytes = tl_view_row(x) * tl_dtype_bytes(x->dtype);
  s.x = x->data, s.y = y[0].data, s.stage = y[1].data;
  s.x_rows = x->shape[0], s.y_rows = y->shape[0];
  s.stage_rows = s.stage == NULL ? 0 : y[1].shape[0];
  return tl_comm_exchange(comm, &s);
}

/* The ints of the rows, by position: group outer | group peer channel. */
static tl_status run_comm(const tl_executor *e, const tl_instruction *i) {
  const int64_t *ints = e->program->ints + i->ints.first;
  tl_comm *comm = e->comms[ints[0]];
  const tl_view *x = e->views + i->in.first, *y = e->views + i->out.first;
  switch (i->op) {
    case TL_OP_all_gather:
      return tl_comm_all_gather(comm, x->data, y->data, ints[1], tl_view_bytes(x) / ints[1]);
    case TL_OP_reduce_scatter:
      return tl_comm_reduce_scatter(comm, x->data, y->data, ints[1], tl_view_count(y) / ints[1]);
    case TL_OP_all_reduce: return tl_comm_all_reduce(comm, x->data, y->data, tl_view_count(x));
    case TL_OP_all_reduce_max:
      return tl_comm_all_reduce_max(comm, x->data, y->data, tl_view_count(x));
    case TL_OP_all_reduce_count:
      return tl_comm_all_reduce_count(comm, x->data, y->data, tl_view_count(x));
    case TL_OP_exchange: return run_exchange(e, i, ints, comm);
    case TL_OP_send:
      return tl_comm_send(comm, (int32_t)ints[1], (int32_t)ints[2], x->data, tl_view_bytes(x));
    case TL_OP_recv:
      return tl_comm_recv(comm, (int32_t)ints[1], (int32_t)ints[2], y->data, tl_view_bytes(y));
    default: return tl_fail(TL_PROGRAM, "no way to communicate by %s", tl_ops[i->op].name);
  }
}

/* The ints of the rows, by position: first samples length source | samples length source. */
tl_status tl_execute_data(const tl_executor *e, const tl_instruction *i, int64_t step,
                          const tl_view *out) {
  const int64_t *ints = e->program->ints + i->ints.first;
  if (i->op == TL_OP_count_targets) {
    const tl_feed *feed = &e->feeds[ints[2]];
    return tl_data_targets(feed->data, step, feed->samples, feed->sample_base, (int32_t)ints[0],
                           (int32_t)ints[1], out->data);
  }
  const tl_feed *feed = &e->feeds[ints[3]];
  return tl_data_micro(feed->data, step, feed->samples, feed->sample_base + ints[0],
                       (int32_t)ints[1], (int32_t)ints[2], out[0].data, out[1].data, out[2].data);
}

/* -1 when all elements are finite, or the index of the first that is not. */
static int64_t first_not_finite(const tl_view *view) {
  const int64_t count = tl_view_count(view);
  if (view->dtype == TL_F32) {
    const uint32_t *bits = view->data;
    for (int64_t i = 0; i < count; i++)
      if ((bits[i] & 0x7f800000u) == 0x7f800000u) return i;
  } else if (view->dtype == TL_BF16) {
    const uint16_t *bits = view->data;
    for (int64_t i = 0; i < count; i++)
      if ((bits[i] & 0x7f80u) == 0x7f80u) return i;
  }
  return -1;
}

static tl_status report_element(const tl_executor *e, int32_t index, int32_t position,
                                const tl_view *view, int64_t element) {
  const float value = view->dtype == TL_F32
                          ? ((const float *)view->data)[element]
                          : tl_f32_from_bf16(((const uint16_t *)view->data)[element]);
  char name[160], where[96];
  int64_t at[TL_DIMS_MAX], rest = element;
  int used = 0;
  for (int32_t dim = view->dims - 1; dim >= 0; dim--) {
    at[dim] = rest % view->shape[dim];
    rest /= view->shape[dim];
  }
  for (int32_t dim = 0; dim < view->dims; dim++)
    used += snprintf(where + used, sizeof where - (size_t)used, "%s%lld", dim == 0 ? "" : ", ",
                     (long long)at[dim]);
  tl_program_describe_operand(e->program, index, 1, position, name, sizeof name);
  return tl_fail(TL_NUMERIC, "element [%s] of %s is %s", where, name,
                 value != value ? "NaN"
                 : value > 0    ? "Inf"
                                : "-Inf");
}

/* Infinities belong to the contract of two outputs: lse of a row that sees no key, and the maximum
** of a row without columns. Rows past the last of a routed output are not part of it; what is wrong
** in the others shows in what is combined of them. */
tl_status tl_execute_check(const tl_executor *e, int32_t index, int32_t position,
                           const tl_view *view) {
  const tl_instruction *i = &e->program->instructions[index];
  const int allowed = (i->op == TL_OP_attention && position == 1) || i->op == TL_OP_row_max ||
                      tl_ops[i->op].traits & TL_TRAIT_ROUTED;
  if (allowed || view->data == NULL) return TL_OK;
  const int64_t element = first_not_finite(view);
  return element < 0 ? TL_OK : report_element(e, index, position, view, element);
}

static tl_status check_outputs(const tl_executor *e, int32_t index) {
  const tl_instruction *i = &e->program->instructions[index];
  for (int32_t k = 0; k < i->out.count; k++)
    TL_TRY(tl_execute_check(e, index, k, e->views + i->out.first + k));
  return TL_OK;
}

/* A different time for each rank, instruction and step. */
int64_t tl_execute_delay(const tl_executor *e, int32_t index, int64_t step) {
  const uint64_t word = tl_mix64((uint64_t)e->rank << 48 ^ (uint64_t)index << 24 ^ (uint64_t)step);
  return (int64_t)(word % ((uint64_t)e->delay_us * 1000 + 1));
}

static void delay(const tl_executor *e, int32_t index, int64_t step) {
  const int64_t ns = tl_execute_delay(e, index, step);
  nanosleep(&(struct timespec){.tv_nsec = ns % 1000000000, .tv_sec = ns / 1000000000}, NULL);
}

static tl_status run_operator(const tl_executor *e, const tl_instruction *i, const tl_step *step) {
  const int32_t traits = tl_ops[i->op].traits;
  if (traits & TL_TRAIT_COMM) return run_comm(e, i);
  if (traits & TL_TRAIT_DATA) return tl_execute_data(e, i, step->step, e->views + i->out.first);
  return run_kernel(e, i, step);
}

/* An element of the first output, wherever that is. */
static tl_status change_output(const tl_executor *e, const tl_instruction *i, const tl_fault *f) {
  const tl_view *y = e->views + i->out.first;
  uint32_t word = 0;
  if (i->out.count == 0 || y->data == NULL || f->element >= tl_view_count(y)) return TL_OK;
  const int64_t bytes = tl_dtype_bytes(y->dtype);
  char *at = (char *)y->data + f->element * bytes;
  if (y->dtype != TL_F32 && y->dtype != TL_BF16) return TL_OK;
  if (e->gpu != NULL)
    TL_TRY(tl_gpu_read(e->gpu, at, bytes, &word));
  else
    memcpy(&word, at, (size_t)bytes);
  word = tl_fault_word(f->kind, y->dtype, word);
  if (e->gpu != NULL) return tl_gpu_write(e->gpu, at, bytes, &word);
  memcpy(at, &word, (size_t)bytes);
  return TL_OK;
}

/* Failing and stalling come before the instruction, a changed element after it; swapped rows are
** swapped back. */
tl_status tl_execute_faults(const tl_executor *e, int32_t index, int64_t step, int32_t after) {
  const tl_instruction *i = &e->program->instructions[index];
  const tl_fault *f = tl_fault_at(e->faults, e->fault_count, e->rank, index, step);
  if (f == NULL) return TL_OK;
  if (e->gpu != NULL && f->kind > TL_FAULT_ULP)
    return tl_fail(TL_ARGUMENT, "this fault is for the host: a kernel in a graph cannot have it");
  switch (f->kind) {
    case TL_FAULT_FAIL: return after ? TL_OK : tl_fail(TL_STOPPED, "a test made it fail");
    case TL_FAULT_STALL:
      if (after) return TL_OK;
      tl_world_stall(e->world);
      return tl_world_stopped(e->world);
    case TL_FAULT_NAN:
    case TL_FAULT_ULP: return after ? change_output(e, i, f) : TL_OK;
    case TL_FAULT_SWAP: tl_fault_swap(e->views + i->in.first, i->in.count); return TL_OK;
    default: return TL_OK;
  }
}

static tl_status run_instruction(const tl_executor *e, int32_t index, const tl_run *run,
                                 const tl_step *step) {
  const tl_instruction *i = &e->program->instructions[index];
  const tl_fault *f = tl_fault_at(e->faults, e->fault_count, e->rank, index, step->step);
  tl_step own = *step;
  if (e->delay_us > 0) delay(e, index, step->step);
  TL_TRY(tl_execute_faults(e, index, step->step, 0));
  if (f != NULL && f->kind == TL_FAULT_SEED) own.seed ^= 1;
  if (f == NULL || f->kind != TL_FAULT_STALE) TL_TRY(run_operator(e, i, &own));
  if (f != NULL && f->kind == TL_FAULT_TWICE) TL_TRY(run_operator(e, i, &own));
  TL_TRY(tl_execute_faults(e, index, step->step, 1));
  return run->check ? check_outputs(e, index) : TL_OK;
}

/* The communicator of an instruction that moves bytes between ranks. */
static int64_t moved_by(const tl_executor *e, int32_t index) {
  const tl_instruction *i = &e->program->instructions[index];
  if (!(tl_ops[i->op].traits & TL_TRAIT_COMM)) return 0;
  return e->comms[e->program->ints[i->ints.first]]->moved;
}

/* The same with hashes, copies and times around it; they are no part of its time. */
static tl_status run_traced(const tl_executor *e, int32_t index, const tl_run *run,
                            const tl_step *step) {
  const tl_trace_source source = {.views = e->views, .team = e->team};
  tl_trace_record call = {.calls = 1};
  TL_TRY(tl_trace_before(e->trace, &source, index));
  const int64_t waited = tl_world_waited(e->world, e->rank, 0), moved = moved_by(e, index);
  call.start_ns = tl_now_ns();
  TL_TRY(run_instruction(e, index, run, step));
  call.end_ns = tl_now_ns();
  call.wait_ns = tl_world_waited(e->world, e->rank, 0) - waited;
  call.moved = moved_by(e, index) - moved;
  tl_trace_note(e->trace, index, &call);
  return tl_trace_after(e->trace, &source, index);
}

/* What is wrong with data begins with the line that made the data, as the instruction's place does:
** once is enough. Of a mixture it is the line of a source, and stays. */
static const char *without_site(const tl_executor *e, int32_t index, const char *text) {
  const int32_t site = e->program->instructions[index].site;
  if (site < 0) return text;
  const size_t length = strlen(e->program->texts[site]);
  const int same = strncmp(text, e->program->texts[site], length) == 0;
  return same && strncmp(text + length, ": ", 2) == 0 ? text + length + 2 : text;
}

tl_status tl_execute_locate(const tl_executor *e, int32_t index, const tl_step *step,
                            tl_status status) {
  char text[TL_ERROR_BYTES], place[256];
  snprintf(text, sizeof text, "%s", tl_last_error());
  tl_program_describe(e->program, index, place, sizeof place);
  return tl_fail(status, "rank %d of %d: step %lld, micro-batch %d, %s: %s", e->rank, e->ranks,
                 (long long)step->step + 1, e->program->instructions[index].micro, place,
                 without_site(e, index, text));
}

tl_status tl_execute(tl_executor *e, const tl_run *run) {
  if (e->gpu != NULL) return tl_gpu_execute(e->gpu, e, run);
  const tl_range section = e->program->sections[run->section];
  tl_step step = run->step;
  step.sample_base = e->sample_base;
  tl_spans spans;
  tl_status status = TL_OK;
  tl_spans_begin(&spans, e->program, run->profile & TL_PROFILE_RANGES, step.step);
  for (int32_t index = section.first; index < section.first + section.count; index++) {
    if (tl_world_aborted(e->world)) {
      status = tl_world_stopped(e->world);
      break;
    }
    tl_world_at(e->world, e->rank, index);
    tl_spans_enter(&spans, index);
    status =
        e->trace == NULL ? run_instruction(e, index, run, &step) : run_traced(e, index, run, &step);
    tl_spans_leave(&spans);
    if (status != TL_OK) {
      status = tl_execute_locate(e, index, &step, status);
      break;
    }
  }
  tl_spans_end(&spans);
  if (status == TL_OK) tl_world_at(e->world, e->rank, -1);
  return status;
}

tl_status tl_execute_kernels(const tl_program *p) {
  for (int32_t i = 0; i < p->instruction_count; i++) {
    const tl_op_row *row = &tl_ops[p->instructions[i].op];
    char place[256];
    if (row->traits & (TL_TRAIT_DATA | TL_TRAIT_COMM) || row->cuda != NULL) continue;
    tl_program_describe(p, i, place, sizeof place);
    return tl_fail(TL_DEVICE, "%s: this build has no GPU kernel for it; use device = \"host\"",
                   place);
  }
  return TL_OK;
}
