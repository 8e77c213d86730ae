/* reduce_host.c - sums over tokens and leaves on the host. */
#include "reduce.h"

#include "../rows.h"

/* --- sum_tokens: a task owns some columns of one run, so no sum is shared --------------------- */

enum { COLUMNS = 128, BLOCK = 64 };

typedef struct sum_tokens {
  const tl_view *dy, *x;
  const float *rstd, *mean;
  float *acc;
  int64_t dim, first, samples, length, runs, kind, mode;
  int64_t parts; /* of a row, each with its own rstd and mean */
} sum_tokens;

/* One row's term for n columns. */
TL_INLINE void add_term_body(float *s, const float *dy, const float *x, float mean, float rstd,
                             int64_t n, int64_t kind) {
  if (kind == 0) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) s[i] = s[i] + dy[i];
  } else if (kind == 1) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) s[i] = fmaf(dy[i], x[i], s[i]);
  } else if (kind == 2) {
    TL_LANES
    for (int64_t i = 0; i < n; i++) s[i] = fmaf(dy[i], x[i] * rstd, s[i]);
  } else {
    TL_LANES
    for (int64_t i = 0; i < n; i++) s[i] = fmaf(dy[i], (x[i] - mean) * rstd, s[i]);
  }
}

typedef struct block {
  int64_t first, rows, column, columns; /* of dy */
} block;

/* One row's terms, part after part. */
TL_INLINE void add_row_body(const sum_tokens *k, const block *b, int64_t row, float *s,
                            const float *dy, const float *x) {
  const int64_t width = k->dim / k->parts;
  for (int64_t at = 0, n; at < b->columns; at += n) {
    const int64_t part = (b->column + at) / width, left = (part + 1) * width - b->column - at;
    const int64_t place = row * k->parts + part;
    n = left < b->columns - at ? left : b->columns - at;
    add_term_body(s + at, dy + at, x == NULL ? NULL : x + at, k->kind == 3 ? k->mean[place] : 0.0f,
                  k->kind >= 2 ? k->rstd[place] : 1.0f, n, k->kind);
  }
}

/* acc[0 .. columns - 1] += the chain over the block's rows. */
TL_INLINE void add_block_body(const sum_tokens *k, const block *b, float *acc) {
  float s[COLUMNS], dy_buffer[COLUMNS], x_buffer[COLUMNS];
  for (int64_t i = 0; i < b->columns; i++) s[i] = 0.0f;
  for (int64_t row = b->first; row < b->first + b->rows; row++) {
    const int64_t at = row * k->dim + b->column;
    const float *dy = tl_load(k->dy, at, b->columns, dy_buffer);
    const float *x = k->kind == 0 ? NULL : tl_load(k->x, at, b->columns, x_buffer);
    add_row_body(k, b, row, s, dy, x);
  }
  for (int64_t i = 0; i < b->columns; i++) acc[i] = acc[i] + s[i];
}
TL_SIMD_VERSIONS(add_block, (const sum_tokens *k, const block *b, float *acc), (k, b, acc))

static void sum_columns(void *context, int64_t index, int32_t worker) {
  const sum_tokens *k = context;
  const int64_t tiles = (k->dim + COLUMNS - 1) / COLUMNS;
  const int64_t run = index / tiles, column = index % tiles * COLUMNS;
  const int64_t columns = k->dim - column < COLUMNS ? k->dim - column : COLUMNS;
  float *acc = k->acc + run * k->dim + column;
  (void)worker;
  if (k->mode == 0) memset(acc, 0, (size_t)columns * sizeof *acc);
  const int64_t start = tl_border(run, k->runs, k->length);
  const int64_t end = tl_border(run + 1, k->runs, k->length);
  for (int64_t sample = 0; sample < k->samples; sample++) {
    for (int64_t at = start; at < end; at += BLOCK) {
      const block b = {.first = k->first + sample * k->length + at,
                       .rows = end - at < BLOCK ? end - at : BLOCK,
                       .column = column,
                       .columns = columns};
      add_block(k, &b, acc);
    }
  }
}

tl_status tl_sum_tokens_parts(const tl_call *call, int64_t rows, int64_t dim, int64_t *out) {
  const char *op = "sum_tokens";
  const int64_t kind = call->ints[0];
  *out = 1;
  if (kind < 2) return TL_OK;
  const int64_t parts = rows > 0 ? tl_view_count(&call->in[2]) / rows : 1;
  if (parts > 1 && dim % parts != 0) {
    return tl_fail(TL_SHAPE, "%s: rstd has %lld numbers for a row of %lld columns", op,
                   (long long)parts, (long long)dim);
  }
  *out = parts > 1 ? parts : 1;
  TL_TRY(tl_expect(op, "rstd", &call->in[2], TL_KIND_F32, rows * *out));
  if (kind == 3) TL_TRY(tl_expect(op, "mean", &call->in[3], TL_KIND_F32, rows * *out));
  return TL_OK;
}

tl_status tl_host_sum_tokens(const tl_call *call) {
  const char *op = "sum_tokens";
  const tl_view *dy = &call->in[0], *acc = &call->out[0];
  const int64_t *ints = call->ints, count = tl_view_count(dy), sums = tl_view_count(acc);
  sum_tokens k = {.dy = dy,
                  .x = &call->in[1],
                  .acc = acc->data,
                  .kind = ints[0],
                  .first = ints[1],
                  .samples = ints[2],
                  .length = ints[3],
                  .runs = ints[4],
                  .mode = ints[5]};
  TL_TRY(tl_expect_range(op, "kind", k.kind, 0, 3));
  TL_TRY(tl_expect_range(op, "mode", k.mode, 0, 1));
  TL_TRY(tl_expect_range(op, "runs", k.runs, 1, sums));
  k.dim = sums / k.runs;
  TL_TRY(tl_expect(op, "acc", acc, TL_KIND_F32, k.runs * k.dim));
  TL_TRY(tl_expect(op, "dy", dy, TL_KIND_FLOAT, count / k.dim * k.dim));
  TL_TRY(tl_expect_range(op, "first", k.first, 0, count / k.dim));
  TL_TRY(tl_expect_range(op, "samples * length", k.samples * k.length, 0, count / k.dim - k.first));
  if (k.kind >= 1) TL_TRY(tl_expect(op, "x", k.x, TL_KIND_FLOAT, count));
  TL_TRY(tl_sum_tokens_parts(call, count / k.dim, k.dim, &k.parts));
  k.rstd = call->in[2].data;
  k.mean = call->in[3].data;
  tl_team_for(call->team, k.runs * ((k.dim + COLUMNS - 1) / COLUMNS), sum_columns, &k);
  return TL_OK;
}

/* --- fold: a binary counter of partial trees, one level a buffer ------------------------------ */

enum { FOLD_COLUMNS = 256, LEVELS = 24 };

typedef struct fold {
  const tl_view *x, *y;
  int64_t n, dim;
} fold;

TL_INLINE void add_arrays_body(float *a, const float *b, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) a[i] = a[i] + b[i];
}
TL_SIMD_VERSIONS(add_arrays, (float *a, const float *b, int64_t n), (a, b, n))

static void fold_columns(void *context, int64_t index, int32_t worker) {
  const fold *k = context;
  const int64_t column = index * FOLD_COLUMNS;
  const int64_t n = k->dim - column < FOLD_COLUMNS ? k->dim - column : FOLD_COLUMNS;
  float level[LEVELS][FOLD_COLUMNS], buffer[FOLD_COLUMNS];
  int32_t top = 0; /* levels in use: level[i] holds a finished subtree */
  (void)worker;
  for (int64_t row = 0; row < k->n; row++) {
    const float *x = tl_load(k->x, row * k->dim + column, n, buffer);
    memcpy(level[top++], x, (size_t)n * sizeof *x);
    for (int64_t done = row + 1; done % 2 == 0; done /= 2) { /* left subtree + right subtree */
      top--;
      add_arrays(level[top - 1], level[top], n);
    }
  }
  float *y = tl_place(k->y, column, buffer);
  memcpy(y, level[0], (size_t)n * sizeof *y);
  tl_commit(k->y, column, n, y);
}

tl_status tl_host_fold(const tl_call *call) {
  const tl_view *x = &call->in[0];
  const fold k = {.x = x, .y = &call->out[0], .n = x->shape[0], .dim = tl_view_row(x)};
  if (k.n < 1 || (k.n & (k.n - 1)) != 0 || k.n >= (int64_t)1 << (LEVELS - 1)) {
    return tl_fail(TL_SHAPE, "fold: x has %lld rows, must be a power of two", (long long)k.n);
  }
  TL_TRY(tl_expect("fold", "x", x, TL_KIND_FLOAT, k.n * k.dim));
  TL_TRY(tl_expect("fold", "y", k.y, TL_KIND_FLOAT, k.dim));
  tl_team_for(call->team, (k.dim + FOLD_COLUMNS - 1) / FOLD_COLUMNS, fold_columns, (void *)&k);
  return TL_OK;
}
