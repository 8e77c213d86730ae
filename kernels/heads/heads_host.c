/* heads_host.c - the operators on heads on the host. */
#include <string.h>

#include "../rows.h"
#include "heads.h"

/* --- split_heads, join_heads ------------------------------------------------------------------ */

/* One row of a piece: all heads. Equal dtypes are bytes. */
static void copy_row(const void *context, int64_t row) {
  const tl_heads_piece *p = context;
  const int64_t size = tl_dtype_bytes(p->to->dtype);
  float buffer[TL_SPAN], rounded[TL_SPAN];
  for (int64_t head = 0; head < p->heads; head++) {
    const int64_t source = p->from_heads == 1 ? row : row * p->heads + head;
    const int64_t from = source * p->from_channels + p->from_first;
    const int64_t to = (row * p->heads + head) * p->to_channels + p->to_first;
    if (p->from->dtype == p->to->dtype) {
      memcpy((char *)p->to->data + to * size, (const char *)p->from->data + from * size,
             (size_t)(p->width * size));
      continue;
    }
    const float *values = tl_load(p->from, from, p->width, buffer);
    float *place = tl_place(p->to, to, rounded);
    memcpy(place, values, (size_t)p->width * sizeof *place);
    tl_commit(p->to, to, p->width, place);
  }
}

static void copy(tl_team *team, const tl_heads_piece *piece) {
  tl_each_row(team, piece->rows, piece->heads * piece->width, copy_row, piece);
}

tl_status tl_host_split_heads(const tl_call *call) {
  TL_TRY(tl_split_heads_check(call));
  for (int32_t i = 0; i < call->out_count; i++) {
    const tl_heads_piece piece = tl_split_heads_piece(call, i);
    copy(call->team, &piece);
  }
  return TL_OK;
}

tl_status tl_host_join_heads(const tl_call *call) {
  TL_TRY(tl_join_heads_check(call));
  for (int32_t i = 0; i < call->in_count; i++) {
    const tl_heads_piece piece = tl_join_heads_piece(call, i);
    copy(call->team, &piece);
  }
  return TL_OK;
}

/* --- sum_heads -------------------------------------------------------------------------------- */

enum { CHUNK = 64 }; /* channels at a time, so that the runs of all leaves lie on the stack */

typedef struct sum {
  const tl_view *x, *y;
  int64_t heads, channels, width, first, leaves;
} sum;

/* The chain over the heads of a run. */
static void sum_run(const sum *s, int64_t row, int64_t leaf, int64_t at, int64_t n, float *out) {
  const int64_t run = s->heads / s->leaves;
  float buffer[CHUNK];
  for (int64_t c = 0; c < n; c++) out[c] = 0.0f;
  for (int64_t head = leaf * run; head < (leaf + 1) * run; head++) {
    const int64_t place = (row * s->heads + head) * s->channels + s->first + at;
    const float *x = tl_load(s->x, place, n, buffer);
    for (int64_t c = 0; c < n; c++) out[c] = out[c] + x[c];
  }
}

static void sum_row(const void *context, int64_t row) {
  const sum *s = context;
  float runs[TL_HEADS_LEAVES_MAX][CHUNK], rounded[CHUNK];
  for (int64_t at = 0; at < s->width; at += CHUNK) {
    const int64_t n = s->width - at < CHUNK ? s->width - at : CHUNK;
    const int64_t to = row * s->width + at;
    for (int64_t leaf = 0; leaf < s->leaves; leaf++) sum_run(s, row, leaf, at, n, runs[leaf]);
    for (int64_t count = s->leaves; count > 1; count /= 2) {
      for (int64_t i = 0; i < count / 2; i++) {
        for (int64_t c = 0; c < n; c++) runs[i][c] = runs[2 * i][c] + runs[2 * i + 1][c];
      }
    }
    float *place = tl_place(s->y, to, rounded);
    memcpy(place, runs[0], (size_t)n * sizeof *place);
    tl_commit(s->y, to, n, place);
  }
}

tl_status tl_host_sum_heads(const tl_call *call) {
  const tl_view *x = &call->in[0], *y = &call->out[0];
  TL_TRY(tl_sum_heads_check(call));
  const sum s = {.x = x,
                 .y = y,
                 .heads = x->shape[1],
                 .channels = x->shape[2],
                 .width = tl_view_row(y),
                 .first = call->ints[0],
                 .leaves = call->ints[1]};
  tl_each_row(call->team, x->shape[0], s.heads * s.width, sum_row, &s);
  return TL_OK;
}
