/* embedding_host.c - gathers rows by id, and adds gradients to them, on the host. */
#include "embedding.h"

#include <string.h>

#include "../rows.h"

typedef struct embedding {
  const int32_t *ids;
  const tl_view *table, *y;
  int64_t first, vocab, dim;
  int32_t in_panels;
} embedding;

/* Of a table in panels a row's numbers lie a panel apart. */
static const float *load(const embedding *k, int64_t id, int64_t at, int64_t n, float *to) {
  if (!k->in_panels) return tl_load(k->table, id * k->dim + at, n, to);
  const float *row =
      (const float *)k->table->data + id / TL_PANEL * k->dim * TL_PANEL + id % TL_PANEL;
  for (int64_t i = 0; i < n; i++) to[i] = row[(at + i) * TL_PANEL];
  return to;
}

static void embedding_row(const void *context, int64_t row) {
  const embedding *k = context;
  const int64_t id = (int64_t)k->ids[row] - k->first;
  const int owned = k->ids[row] >= 0 && id >= 0 && id < k->vocab;
  float in[TL_SPAN], out[TL_SPAN];
  for (int64_t at = 0; at < k->dim; at += TL_SPAN) {
    const int64_t n = k->dim - at < TL_SPAN ? k->dim - at : TL_SPAN;
    float *y = tl_place(k->y, row * k->dim + at, out);
    const float *x = owned ? load(k, id, at, n, in) : NULL;
    for (int64_t i = 0; i < n; i++) y[i] = owned ? x[i] + 0.0f : 0.0f;
    tl_commit(k->y, row * k->dim + at, n, y);
  }
}

tl_status tl_host_embedding(const tl_call *call) {
  TL_TRY(tl_embedding_check(call));
  const tl_view *ids = &call->in[0], *table = &call->in[1];
  const int64_t tokens = tl_view_count(ids), dim = tl_embedding_dim(call);
  const int32_t in_panels = tl_is_panels(table, dim);
  const embedding k = {.ids = ids->data,
                       .table = table,
                       .y = &call->out[0],
                       .first = call->ints[0],
                       .vocab = table->shape[0] * (in_panels ? TL_PANEL : 1),
                       .dim = dim,
                       .in_panels = in_panels};
  tl_each_row(call->team, tokens, dim, embedding_row, &k);
  return TL_OK;
}

/* --- embedding_grad: rows sorted by id; a task owns some columns of the whole table ----------- */

enum { COLUMNS = 64, KEYS_MAX = TL_EMBEDDING_BLOCK_ROWS_MAX }; /* sorting needs room twice */

typedef struct embedding_grad {
  const tl_view *dy;
  float *table;
  const uint64_t *keys; /* id of the part << 32 | row, ascending */
  int64_t key_count, vocab, dim, mode;
} embedding_grad;

/* Merges the sorted runs from[0 .. middle) and from[middle .. n) into `to`. */
static void merge(const uint64_t *from, int64_t middle, int64_t n, uint64_t *to) {
  int64_t a = 0, b = middle;
  for (int64_t i = 0; i < n; i++) {
    to[i] = b >= n || (a < middle && from[a] <= from[b]) ? from[a++] : from[b++];
  }
}

/* Sorts, with `spare` of the same size; returns which of the two holds the result. */
static const uint64_t *sort(uint64_t *keys, uint64_t *spare, int64_t n) {
  for (int64_t run = 1; run < n; run *= 2) {
    for (int64_t i = 0; i < n; i += 2 * run) {
      const int64_t length = n - i < 2 * run ? n - i : 2 * run;
      merge(keys + i, length < run ? length : run, length, spare + i);
    }
    uint64_t *swap = keys;
    keys = spare, spare = swap;
  }
  return keys;
}

/* The keys of rows first .. first + count - 1 whose id is in the part. */
static int64_t collect(const int32_t *ids, int64_t first, int64_t count, int64_t first_id,
                       int64_t vocab, uint64_t *keys) {
  int64_t n = 0;
  for (int64_t row = first; row < first + count; row++) {
    const int64_t id = (int64_t)ids[row] - first_id;
    if (ids[row] >= 0 && id >= 0 && id < vocab) keys[n++] = (uint64_t)id << 32 | (uint64_t)row;
  }
  return n;
}

static void add_columns(void *context, int64_t index, int32_t worker) {
  const embedding_grad *k = context;
  const int64_t column = index * COLUMNS;
  const int64_t n = k->dim - column < COLUMNS ? k->dim - column : COLUMNS;
  float chain[COLUMNS], buffer[COLUMNS];
  (void)worker;
  if (k->mode == 0) {
    for (int64_t id = 0; id < k->vocab; id++) {
      memset(k->table + id * k->dim + column, 0, (size_t)n * sizeof *k->table);
    }
  }
  for (int64_t i = 0; i < k->key_count;) {
    const uint64_t id = k->keys[i] >> 32;
    float *stored = k->table + (int64_t)id * k->dim + column;
    for (int64_t c = 0; c < n; c++) chain[c] = k->mode == 1 ? stored[c] : 0.0f;
    for (; i < k->key_count && k->keys[i] >> 32 == id; i++) {
      const int64_t row = (int64_t)(k->keys[i] & 0xffffffffu);
      const float *dy = tl_load(k->dy, row * k->dim + column, n, buffer);
      for (int64_t c = 0; c < n; c++) chain[c] = chain[c] + dy[c];
    }
    for (int64_t c = 0; c < n; c++) stored[c] = k->mode == 2 ? stored[c] + chain[c] : chain[c];
  }
}

tl_status tl_host_embedding_grad(const tl_call *call) {
  TL_TRY(tl_embedding_grad_check(call));
  const tl_view *ids = &call->in[0], *dy = &call->in[1], *table = &call->out[0];
  const int64_t dim = tl_view_row(table), vocab = table->shape[0];
  const int64_t first = call->ints[1], count = call->ints[2] * call->ints[3];
  const int64_t mode = call->ints[4];
  embedding_grad k = {.dy = dy, .table = table->data, .vocab = vocab, .dim = dim, .mode = mode};
  uint64_t *keys = tl_team_scratch(call->team, 0);
  int64_t done = 0;
  do { /* more rows than fit are resumed: mode 1 goes on with the chains of modes 0 and 1 */
    const int64_t n = count - done < KEYS_MAX ? count - done : KEYS_MAX;
    k.key_count = collect(ids->data, first + done, n, call->ints[0], vocab, keys);
    k.keys = sort(keys, keys + KEYS_MAX, k.key_count);
    tl_team_for(call->team, (dim + COLUMNS - 1) / COLUMNS, add_columns, &k);
    k.mode = mode == 2 ? 2 : 1;
    done += n;
  } while (done < count);
  return TL_OK;
}

tl_status tl_host_position_ids(const tl_call *call) {
  const tl_view *cu = &call->in[0], *ids = &call->out[0];
  const int64_t rows = tl_view_count(ids);
  TL_TRY(tl_position_ids_check(call));
  TL_TRY(tl_expect_segments("position_ids", cu, rows));
  const int32_t *start = cu->data;
  int32_t *out = ids->data;
  for (int64_t segment = 0; segment + 1 < tl_view_count(cu); segment++) {
    for (int32_t t = start[segment]; t < start[segment + 1]; t++) out[t] = t - start[segment];
  }
  return TL_OK;
}

/* --- pick_rows -------------------------------------------------------------------------------- */

tl_status tl_host_pick_rows(const tl_call *call) {
  TL_TRY(tl_pick_rows_check(call));
  const tl_view *x = &call->in[0];
  const int32_t *rows = call->in[1].data;
  const int64_t count = tl_view_count(&call->in[1]), all = x->shape[0];
  const int64_t bytes = tl_view_row(x) * tl_dtype_bytes(x->dtype);
  char *y = call->out[0].data;
  for (int64_t t = 0; t < count; t++)
    if (rows[t] >= all)
      return tl_fail(TL_ARGUMENT, "pick_rows: row %lld takes row %d; there are %lld", (long long)t,
                     rows[t], (long long)all);
  for (int64_t t = 0; t < count; t++) {
    if (rows[t] < 0)
      memset(y + t * bytes, 0, (size_t)bytes);
    else
      memcpy(y + t * bytes, (const char *)x->data + rows[t] * bytes, (size_t)bytes);
  }
  return TL_OK;
}
