/* attention_grad_host.c - the backward pass by tiles, and the operator.
**
**   dq        a tile of queries, keys streaming by       owned by a query head
**   dk, dv    a tile of keys, queries streaming by       owned by a KV head
*/
#include <math.h>
#include <string.h>

#include "attention_grad.h"

enum { BLOCK = TL_ATTENTION_STREAM };

_Static_assert(1 << (TL_ATTENTION_LEVELS - 1) == TL_ATTENTION_LEAVES_MAX, "one for each doubling");

typedef tl_attention_backward backward;

typedef struct leaf {
  tl_tile_row dk[TL_ATTENTION_WIDTH_MAX], dv[TL_ATTENTION_WIDTH_MAX];
} leaf;

typedef struct scratch {
  tl_tile_row score[BLOCK], g[BLOCK];
  tl_tile_row acc[TL_ATTENTION_WIDTH_MAX];
  leaf leaves[TL_ATTENTION_LEVELS + 1]; /* a stack: entry i holds 2^level leaves, levels falling */
  tl_attention_sums sums;
  char first[TL_TILE_BYTES] __attribute__((aligned(64)));
  char second[TL_TILE_BYTES] __attribute__((aligned(64)));
} scratch;

_Static_assert(sizeof(scratch) <= TL_SCRATCH_BYTES, "a worker's scratch holds one tile");

/* `count` rows of one head in f32: where they lie, or widened into `buffer`. */
static tl_rows widen(const tl_view *view, int64_t row, int64_t head, int64_t count, float *buffer) {
  const tl_rows rows = tl_attention_rows(view, row, head);
  const int64_t width = view->shape[2];
  if (view->dtype == TL_F32) return rows;
  for (int64_t i = 0; i < count; i++) {
    const uint16_t *from = (const uint16_t *)rows.data + i * rows.stride;
    for (int64_t c = 0; c < width; c++) buffer[i * width + c] = tl_f32_from_bf16(from[c]);
  }
  return (tl_rows){buffer, width};
}

void tl_attention_load_sums(const backward *b, int64_t row, int64_t head, int64_t count,
                            tl_attention_sums *out) {
  const float *lse = b->lse->data;
  const tl_rows grad = widen(b->grad, row, head, count, out->grad[0]);
  const tl_rows o = widen(b->o, row, head, count, out->o[0]);
  for (int lane = 0; lane < TL_TILE; lane++) out->lse[lane] = out->delta[lane] = 0.0f;
  for (int64_t i = 0; i < count; i++) out->lse[i] = lse[(row + i) * b->sizes.heads + head];
  b->sizes.elementwise->delta(grad, o, count, b->sizes.value_width, out->delta);
}

/* Keys first .. end - 1 into acc, the sums of dq. */
static void query_block(const backward *b, const tl_attention_tile *tile, scratch *s, int64_t first,
                        int64_t end) {
  const tl_attention_sizes *z = &b->sizes;
  const int64_t head = tile->head / (z->heads / z->kv_heads), ahead = first - tile->offset;
  const tl_band band = {ahead, z->window > 0 ? ahead + z->window : z->rows + TL_TILE};
  const tl_rows k = tl_attention_rows(b->k, tile->start + first, head);
  const tl_rows v = tl_attention_rows(b->v, tile->start + first, head);
  z->products->dot(k, end - first, z->width, s->first, s->score);
  z->products->dot(v, end - first, z->value_width, s->second, s->g);
  z->elementwise->weights(s->score, s->g, end - first, z->factor, s->sums.lse, s->sums.delta, 0);
  z->products->accumulate(k, end - first, z->width, (const tl_tile_row *)s->g, band, s->acc);
}

static void query_tile(void *context, const tl_attention_tile *tile) {
  const backward *b = context;
  const tl_attention_sizes *z = &b->sizes;
  scratch *s = tl_team_scratch(b->team, tile->worker);
  const int64_t row = tile->start + tile->offset, end = tile->offset + tile->count;
  if (tl_attention_goes_whole(b, tile->length)) return;
  int64_t first = z->window > 0 ? tile->offset - z->window + 1 : 0;
  first = first < 0 ? 0 : first / 16 * 16;
  z->products->pack(tl_attention_rows(b->q, row, tile->head), tile->count, z->width, s->first);
  z->products->pack(tl_attention_rows(b->grad, row, tile->head), tile->count, z->value_width,
                    s->second);
  tl_attention_load_sums(b, row, tile->head, tile->count, &s->sums);
  memset(s->acc, 0, (size_t)z->width * sizeof(tl_tile_row));
  for (; first < end; first += BLOCK) {
    query_block(b, tile, s, first, end - first < BLOCK ? end : first + BLOCK);
  }
  tl_attention_store((const tl_tile_row *)s->acc, tile, z->scale, b->dq);
}

/* Queries first .. end - 1 of query head `head` into `sum`. */
static void key_block(const backward *b, const tl_attention_tile *tile, scratch *s, int64_t head,
                      int64_t first, int64_t end, leaf *sum) {
  const tl_attention_sizes *z = &b->sizes;
  const int64_t count = end - first, ahead = first - tile->offset, row = tile->start + first;
  const tl_band band = {z->window > 0 ? ahead - z->window + 1 : -z->rows - TL_TILE, ahead + 1};
  const tl_rows q = tl_attention_rows(b->q, row, head);
  const tl_rows grad = tl_attention_rows(b->grad, row, head);
  tl_attention_load_sums(b, row, head, count, &s->sums);
  z->products->dot(q, count, z->width, s->first, s->score);
  z->products->dot(grad, count, z->value_width, s->second, s->g);
  z->elementwise->weights(s->score, s->g, count, z->factor, s->sums.lse, s->sums.delta, 1);
  z->products->accumulate(grad, count, z->value_width, (const tl_tile_row *)s->score, band,
                          sum->dv);
  z->products->accumulate(q, count, z->width, (const tl_tile_row *)s->g, band, sum->dk);
}

static void key_leaf(const backward *b, const tl_attention_tile *tile, scratch *s, int64_t index,
                     leaf *sum) {
  const tl_attention_sizes *z = &b->sizes;
  const int64_t group = z->heads / z->kv_heads, heads = group / b->leaves;
  const int64_t first_head = tile->head * group + index * heads;
  int64_t end = tile->length; /* queries that see one of the keys */
  if (z->window > 0 && tile->offset + tile->count - 1 + z->window < end) {
    end = tile->offset + tile->count - 1 + z->window;
  }
  memset(sum->dk, 0, (size_t)z->width * sizeof(tl_tile_row));
  memset(sum->dv, 0, (size_t)z->value_width * sizeof(tl_tile_row));
  for (int64_t head = first_head; head < first_head + heads; head++) {
    for (int64_t first = tile->offset; first < end; first += BLOCK) {
      key_block(b, tile, s, head, first, end - first < BLOCK ? end : first + BLOCK, sum);
    }
  }
}

static void add_rows(tl_tile_row *sum, const tl_tile_row *more, int64_t channels) {
  for (int64_t i = 0; i < channels; i++) {
    for (int lane = 0; lane < TL_TILE; lane++) sum[i][lane] += more[i][lane];
  }
}

static void key_tile(void *context, const tl_attention_tile *tile) {
  const backward *b = context;
  const tl_attention_sizes *z = &b->sizes;
  scratch *s = tl_team_scratch(b->team, tile->worker);
  const int64_t row = tile->start + tile->offset;
  if (tl_attention_goes_whole(b, tile->length)) return;
  z->products->pack(tl_attention_rows(b->k, row, tile->head), tile->count, z->width, s->first);
  z->products->pack(tl_attention_rows(b->v, row, tile->head), tile->count, z->value_width,
                    s->second);
  int64_t depth = 0;
  for (int64_t index = 0; index < b->leaves; index++) {
    key_leaf(b, tile, s, index, &s->leaves[depth++]);
    for (int64_t done = index + 1; done % 2 == 0; done /= 2, depth--) { /* equal levels meet */
      leaf *left = &s->leaves[depth - 2], *right = &s->leaves[depth - 1];
      add_rows(left->dk, (const tl_tile_row *)right->dk, z->width);
      add_rows(left->dv, (const tl_tile_row *)right->dv, z->value_width);
    }
  }
  tl_attention_store((const tl_tile_row *)s->leaves[0].dk, tile, b->dk_scale, b->dk);
  tl_attention_store((const tl_tile_row *)s->leaves[0].dv, tile, 1.0f, b->dv);
}

tl_status tl_host_attention_grad(const tl_call *call) {
  const tl_view *in = call->in, *out = call->out;
  backward b = {.q = &in[0], .k = &in[1], .v = &in[2], .o = &in[3], .lse = &in[4], .grad = &in[5]};
  b.dq = &out[0], b.dk = &out[1], b.dv = &out[2];
  b.leaves = call->ints[3], b.dk_scale = call->floats[1], b.team = call->team;
  TL_TRY(tl_attention_check(call, &in[6], &b.sizes));
  TL_TRY(tl_attention_check_backward(call, &b.sizes));
  tl_attention_grad_whole(&b);
  tl_attention_for(call->team, &b.sizes, b.sizes.kv_heads, key_tile, &b);
  tl_attention_for(call->team, &b.sizes, b.sizes.heads, query_tile, &b);
  tl_attention_clear(b.dq, b.sizes.used_rows);
  tl_attention_clear(b.dk, b.sizes.used_rows);
  tl_attention_clear(b.dv, b.sizes.used_rows);
  return TL_OK;
}
