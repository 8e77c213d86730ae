/* attention_grad_whole.c - the backward pass of a whole segment by one worker.
**
**   for each leaf, head of it, tile of queries, block of keys:
**     scores and g once         [key][query]
**     dq of the tile            += k * ds           a sum for each channel and query
**     dk, dv of the block       += ds * q, p * do   a sum for each key and channel
**
** Each sum still meets its terms in the order of attention.h: dq keys ascending; dk and dv heads,
** then queries ascending.
*/
#include <string.h>

#include "attention_grad.h"

enum { BLOCK = TL_ATTENTION_STREAM, PAD = 16 };

typedef tl_attention_backward backward;

typedef struct scratch {
  tl_tile_row score[BLOCK], g[BLOCK];
  tl_tile_row acc[TL_ATTENTION_WIDTH_MAX];
  tl_attention_sums sums;
  char first[TL_TILE_BYTES] __attribute__((aligned(64)));
  char second[TL_TILE_BYTES] __attribute__((aligned(64)));
  float q[TL_TILE * TL_ATTENTION_WIDTH_MAX], grad[TL_TILE * TL_ATTENTION_WIDTH_MAX];
  float levels[]; /* a stack: dk (length, padded width), dv (length, padded value width) */
} scratch;

static int64_t padded(int64_t width) { return (width + PAD - 1) / PAD * PAD; }

/* Floats of one entry of the stack. */
static int64_t level_size(const backward *b, int64_t length) {
  return length * (padded(b->sizes.width) + padded(b->sizes.value_width));
}

int tl_attention_goes_whole(const backward *b, int64_t length) {
  const int64_t workers = tl_team_workers(b->team);
  const int64_t room = (TL_SCRATCH_BYTES - (int64_t)sizeof(scratch)) / (int64_t)sizeof(float);
  int64_t levels = 1;
  for (int64_t leaves = b->leaves; leaves > 1; leaves /= 2) levels++;
  if (b->sizes.dtype != TL_F32 || levels * level_size(b, length) > room) return 0;
  /* Two rounds of work for every worker, or a long segment would keep the others waiting. */
  return workers == 1 || 2 * workers * length <= b->sizes.used_rows * b->sizes.kv_heads;
}

/* Rows of the tile, channels padded with zeros. */
static void copy_rows(tl_rows rows, int64_t count, int64_t width, float *out) {
  const int64_t stride = padded(width);
  for (int64_t i = 0; i < count; i++) {
    memcpy(out + i * stride, (const float *)rows.data + i * rows.stride,
           (size_t)width * sizeof *out);
    for (int64_t c = width; c < stride; c++) out[i * stride + c] = 0.0f;
  }
}

/* Keys first .. end - 1 against a tile of queries. */
static void whole_block(const backward *b, const tl_attention_tile *tile, scratch *s, int64_t first,
                        int64_t end, float *dk, float *dv) {
  const tl_attention_sizes *z = &b->sizes;
  const int64_t head = tile->head / (z->heads / z->kv_heads), ahead = first - tile->offset;
  const int64_t width = padded(z->width), value_width = padded(z->value_width);
  const tl_band band = {ahead, z->window > 0 ? ahead + z->window : z->rows + TL_TILE};
  const tl_rows k = tl_attention_rows(b->k, tile->start + first, head);
  const tl_rows v = tl_attention_rows(b->v, tile->start + first, head);
  const tl_tile_row *p = (const tl_tile_row *)s->score, *ds = (const tl_tile_row *)s->g;
  z->products->dot(k, end - first, z->width, s->first, s->score);
  z->products->dot(v, end - first, z->value_width, s->second, s->g);
  z->elementwise->weights(s->score, s->g, end - first, z->factor, s->sums.lse, s->sums.delta, 0);
  z->products->accumulate(k, end - first, z->width, ds, band, s->acc);
  z->elementwise->collect(ds, end - first, band, tile->count, s->q, width, dk + first * width);
  z->elementwise->collect(p, end - first, band, tile->count, s->grad, value_width,
                          dv + first * value_width);
}

static void whole_tile(const backward *b, const tl_attention_tile *tile, scratch *s, float *dk,
                       float *dv) {
  const tl_attention_sizes *z = &b->sizes;
  const int64_t row = tile->start + tile->offset, end = tile->offset + tile->count;
  const tl_rows q = tl_attention_rows(b->q, row, tile->head);
  const tl_rows grad = tl_attention_rows(b->grad, row, tile->head);
  int64_t first = z->window > 0 ? tile->offset - z->window + 1 : 0;
  if (first < 0) first = 0;
  z->products->pack(q, tile->count, z->width, s->first);
  z->products->pack(grad, tile->count, z->value_width, s->second);
  copy_rows(q, tile->count, z->width, s->q);
  copy_rows(grad, tile->count, z->value_width, s->grad);
  tl_attention_load_sums(b, row, tile->head, tile->count, &s->sums);
  memset(s->acc, 0, (size_t)z->width * sizeof(tl_tile_row));
  for (; first < end; first += BLOCK) {
    whole_block(b, tile, s, first, end - first < BLOCK ? end : first + BLOCK, dk, dv);
  }
  tl_attention_store((const tl_tile_row *)s->acc, tile, z->scale, b->dq);
}

static void whole_leaf(const backward *b, const tl_attention_tile *segment, scratch *s,
                       int64_t index, float *sum) {
  const int64_t group = b->sizes.heads / b->sizes.kv_heads, heads = group / b->leaves;
  const int64_t first = segment->head * group + index * heads;
  float *dv = sum + segment->length * padded(b->sizes.width);
  memset(sum, 0, (size_t)level_size(b, segment->length) * sizeof *sum);
  for (int64_t head = first; head < first + heads; head++) {
    for (int64_t offset = 0; offset < segment->length; offset += TL_TILE) {
      const int64_t left = segment->length - offset;
      tl_attention_tile tile = *segment;
      tile.offset = offset, tile.count = left < TL_TILE ? left : TL_TILE, tile.head = head;
      whole_tile(b, &tile, s, sum, dv);
    }
  }
}

/* Rows of one KV head, `factor` times the sums, rounded once. */
static void store_rows(const tl_view *out, const tl_attention_tile *segment, const float *sum,
                       float factor) {
  const tl_rows rows = tl_attention_rows(out, segment->start, segment->head);
  const int64_t width = out->shape[2], stride = padded(width);
  for (int64_t i = 0; i < segment->length; i++) {
    for (int64_t c = 0; c < width; c++) {
      const float value = factor * sum[i * stride + c];
      if (out->dtype == TL_F32)
        ((float *)rows.data)[i * rows.stride + c] = value;
      else
        ((uint16_t *)rows.data)[i * rows.stride + c] = tl_bf16_from_f32(value);
    }
  }
}

/* A task sees all tiles that begin in it; the first of a segment stands for the whole of it. */
static void whole_segment(void *context, const tl_attention_tile *segment) {
  const backward *b = context;
  if (segment->offset != 0 || !tl_attention_goes_whole(b, segment->length)) return;
  scratch *s = tl_team_scratch(b->team, segment->worker);
  const int64_t size = level_size(b, segment->length);
  int64_t depth = 0;
  for (int64_t index = 0; index < b->leaves; index++) {
    whole_leaf(b, segment, s, index, s->levels + size * depth++);
    for (int64_t done = index + 1; done % 2 == 0; done /= 2, depth--) { /* equal levels meet */
      float *left = s->levels + size * (depth - 2);
      for (int64_t i = 0; i < size; i++) left[i] += left[size + i];
    }
  }
  store_rows(b->dk, segment, s->levels, b->dk_scale);
  store_rows(b->dv, segment, s->levels + segment->length * padded(b->sizes.width), 1.0f);
}

void tl_attention_grad_whole(const backward *b) {
  tl_attention_for(b->team, &b->sizes, b->sizes.kv_heads, whole_segment, (void *)b);
}
