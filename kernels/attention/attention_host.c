/* attention_host.c - the forward pass: a tile of queries, keys streaming by. */
#include <math.h>
#include <string.h>

#include "../math.h"
#include "attention_call.h"

typedef struct forward {
  tl_attention_sizes sizes;
  const tl_view *q, *k, *v, *o, *lse;
  tl_team *team;
} forward;

/* The state (t, l, O) of 32 rows; `begun` lanes have one. */
typedef struct row_state {
  tl_tile_row t, l, o[TL_ATTENTION_WIDTH_MAX];
  uint8_t begun[TL_TILE];
} row_state;

typedef struct scratch {
  tl_tile_row score[TL_ATTENTION_BLOCK_MAX];
  tl_softmax softmax;
  row_state part, total;
  tl_tile_row log;
  char query[TL_TILE_BYTES] __attribute__((aligned(64)));
} scratch;

_Static_assert(sizeof(scratch) <= TL_SCRATCH_BYTES, "a worker's scratch holds one tile");

/* Keys first .. end - 1 of the segment, which lie in one block that begins at `block`. */
static void forward_block(const forward *f, const tl_attention_tile *tile, scratch *s,
                          int64_t first, int64_t end) {
  const tl_attention_sizes *z = &f->sizes;
  const int64_t head = tile->head / (z->heads / z->kv_heads), ahead = first - tile->offset;
  const tl_band band = {ahead, z->window > 0 ? ahead + z->window : z->rows + TL_TILE};
  const tl_rows k = tl_attention_rows(f->k, tile->start + first, head);
  const tl_rows v = tl_attention_rows(f->v, tile->start + first, head);
  z->products->dot(k, end - first, z->width, s->query, s->score);
  z->elementwise->softmax(s->score, end - first, band, z->factor, &s->softmax);
  z->elementwise->scale(s->part.o, z->value_width, s->softmax.factor);
  z->products->accumulate(v, end - first, z->value_width, (const tl_tile_row *)s->score, band,
                          s->part.o);
}

/* Keys first .. end - 1 of the segment, which lie in one part. */
static void forward_part(const forward *f, const tl_attention_tile *tile, scratch *s, int64_t first,
                         int64_t end) {
  const int64_t kv_block = f->sizes.kv_block;
  memset(&s->softmax, 0, sizeof s->softmax);
  memset(s->part.o, 0, (size_t)f->sizes.value_width * sizeof(tl_tile_row));
  for (int lane = 0; lane < TL_TILE; lane++) s->softmax.m[lane] = s->softmax.t[lane] = -INFINITY;
  while (first < end) {
    const int64_t border = (first / kv_block + 1) * kv_block;
    const int64_t block_end = border < end ? border : end;
    forward_block(f, tile, s, first, block_end);
    first = block_end;
  }
  for (int lane = 0; lane < TL_TILE; lane++) {
    const tl_softmax *state = &s->softmax;
    s->part.t[lane] = state->t[lane];
    const float low = state->l[0][lane] + state->l[1][lane];
    s->part.l[lane] = low + (state->l[2][lane] + state->l[3][lane]);
  }
}

static void merge_lane(row_state *total, const row_state *part, int64_t channels, int lane) {
  if (!total->begun[lane]) {
    total->begun[lane] = 1, total->t[lane] = part->t[lane], total->l[lane] = part->l[lane];
    for (int64_t i = 0; i < channels; i++) total->o[i][lane] = part->o[i][lane];
    return;
  }
  const float old = total->t[lane], new = part->t[lane], t = old > new ? old : new;
  const float f_old = old == t ? 1.0f : tl_exp2(old - t);
  const float f_new = new == t ? 1.0f : tl_exp2(new - t);
  total->t[lane] = t;
  total->l[lane] = total->l[lane] * f_old + part->l[lane] * f_new;
  for (int64_t i = 0; i < channels; i++) {
    total->o[i][lane] = total->o[i][lane] * f_old + part->o[i][lane] * f_new;
  }
}

/* Lanes whose row sees a key in first .. end - 1. */
static void merge_part(const forward *f, const tl_attention_tile *tile, scratch *s, int64_t first,
                       int64_t end) {
  for (int lane = 0; lane < tile->count; lane++) {
    const int64_t row = tile->offset + lane, window = f->sizes.window;
    const int64_t oldest = window > 0 ? row - window + 1 : 0;
    if (row >= first && oldest < end) merge_lane(&s->total, &s->part, f->sizes.value_width, lane);
  }
}

static void forward_finish(const forward *f, const tl_attention_tile *tile, scratch *s,
                           row_state *state) {
  float *lse = f->lse->data;
  tl_log2_many(state->l, s->log, TL_TILE);
  for (int64_t i = 0; i < f->sizes.value_width; i++) {
    for (int lane = 0; lane < TL_TILE; lane++) state->o[i][lane] /= state->l[lane];
  }
  tl_attention_store((const tl_tile_row *)state->o, tile, 1.0f, f->o);
  for (int64_t lane = 0; lane < tile->count; lane++) {
    const int64_t row = tile->start + tile->offset + lane;
    lse[row * f->sizes.heads + tile->head] = state->t[lane] + s->log[lane];
  }
}

static void forward_tile(void *context, const tl_attention_tile *tile) {
  const forward *f = context;
  const tl_attention_sizes *z = &f->sizes;
  scratch *s = tl_team_scratch(f->team, tile->worker);
  const int64_t end = tile->offset + tile->count;
  int64_t first = z->window > 0 ? tile->offset - z->window + 1 : 0;
  first = first < 0 ? 0 : first / 16 * 16; /* steps of 16 count from the segment's start */
  z->products->pack(tl_attention_rows(f->q, tile->start + tile->offset, tile->head), tile->count,
                    z->width, s->query);
  if (first / z->split == (end - 1) / z->split) {
    forward_part(f, tile, s, first, end);
    forward_finish(f, tile, s, &s->part);
    return;
  }
  memset(s->total.begun, 0, sizeof s->total.begun);
  while (first < end) {
    const int64_t border = (first / z->split + 1) * z->split;
    const int64_t part_end = border < end ? border : end;
    forward_part(f, tile, s, first, part_end);
    merge_part(f, tile, s, first, part_end);
    first = part_end;
  }
  forward_finish(f, tile, s, &s->total);
}

tl_status tl_host_attention(const tl_call *call) {
  forward f = {.q = &call->in[0], .k = &call->in[1], .v = &call->in[2], .team = call->team};
  f.o = &call->out[0], f.lse = &call->out[1];
  tl_attention_sizes *z = &f.sizes;
  TL_TRY(tl_attention_check(call, &call->in[3], z));
  TL_TRY(tl_attention_check_forward(call, z));
  tl_attention_for(call->team, z, z->heads, forward_tile, &f);
  tl_attention_clear(f.o, z->used_rows);
  float *lse = f.lse->data;
  for (int64_t i = z->used_rows * z->heads; i < z->rows * z->heads; i++) lse[i] = -INFINITY;
  return TL_OK;
}
