/* lane_call.c - copies a call, so that it can run later. */
#include "lane_call.h"

#include <stdlib.h>
#include <string.h>

typedef struct job {
  tl_op op;
  tl_call call;
  tl_step step;
  tl_tensor **tensors;
  int32_t tensor_count; /* held so far */
} job;

static void free_job(job *j) {
  for (int32_t i = 0; i < j->tensor_count; i++) tl_tensor_release(j->tensors[i]);
  free(j->tensors);
  free((void *)j->call.in);
  free((void *)j->call.out);
  free((void *)j->call.ints);
  free((void *)j->call.floats);
  free((void *)j->step.scalars);
  free(j);
}

static tl_status run_job(void *context, tl_team *team, int32_t skipped) {
  job *j = context;
  tl_status status = TL_OK;
  j->call.team = team;
  if (!skipped) status = tl_ops[j->op].host(&j->call);
  free_job(j);
  return status;
}

/* A copy of `count` elements, never NULL unless memory is short. */
static void *copy(const void *from, int32_t count, size_t element) {
  void *to = malloc(((size_t)count + 1) * element);
  if (to != NULL && count > 0) memcpy(to, from, (size_t)count * element);
  return to;
}

static tl_status hold(job *j, tl_tensor *const *tensors, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    const tl_view *view = tl_tensor_view(tensors[i]);
    TL_TRY(tl_tensor_narrow(tensors[i], 0, view->shape[0], &j->tensors[i]));
    j->tensor_count++;
  }
  return TL_OK;
}

tl_status tl_lane_call(tl_lane *lane, tl_op op, const tl_call *call, tl_tensor *const *tensors,
                       int32_t count, int64_t *event) {
  tl_status status = TL_OK;
  job *j = calloc(1, sizeof *j);
  if (j == NULL) return tl_fail(TL_MEMORY, "no room for a call");
  j->op = op, j->call = *call, j->step = *call->step;
  j->call.in = copy(call->in, call->in_count, sizeof *call->in);
  j->call.out = copy(call->out, call->out_count, sizeof *call->out);
  j->call.ints = copy(call->ints, call->int_count, sizeof *call->ints);
  j->call.floats = copy(call->floats, call->float_count, sizeof *call->floats);
  j->step.scalars = copy(call->step->scalars, call->step->scalar_count, sizeof(float));
  j->call.step = &j->step;
  j->tensors = calloc((size_t)count + 1, sizeof *j->tensors);
  if (j->call.in == NULL || j->call.out == NULL || j->call.ints == NULL || j->call.floats == NULL ||
      j->step.scalars == NULL || j->tensors == NULL)
    TL_TRY_GOTO(status, tl_fail(TL_MEMORY, "no room for a call"), done);
  TL_TRY_GOTO(status, hold(j, tensors, count), done);
  return tl_lane_submit(lane, run_job, j, event);
done:
  free_job(j);
  return status;
}
