/* rows.c - reading, rounding and sharing out rows; checks of operands. */
#include "rows.h"

enum { TASK_ELEMENTS = 16 * TL_SPAN }; /* enough work to be worth a task */

float tl_tree(float *values, int64_t n) {
  for (; n > 1; n /= 2) {
    for (int64_t i = 0; i < n / 2; i++) values[i] = values[2 * i] + values[2 * i + 1];
  }
  return values[0];
}

TL_INLINE void widen_body(const uint16_t *from, float *to, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) to[i] = tl_f32_from_bf16(from[i]);
}
TL_SIMD_VERSIONS(widen, (const uint16_t *from, float *to, int64_t n), (from, to, n))

TL_INLINE void narrow_body(const float *from, uint16_t *to, int64_t n) {
  TL_LANES
  for (int64_t i = 0; i < n; i++) {
    const uint32_t bits = tl_bits_from_f32(from[i]);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const uint32_t quiet = bits >> 16 | 0x40u;
    to[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}
TL_SIMD_VERSIONS(narrow, (const float *from, uint16_t *to, int64_t n), (from, to, n))

const float *tl_load(const tl_view *view, int64_t first, int64_t n, float *buffer) {
  if (view->dtype == TL_F32) return (const float *)view->data + first;
  widen((const uint16_t *)view->data + first, buffer, n);
  return buffer;
}

float *tl_place(const tl_view *view, int64_t first, float *buffer) {
  return view->dtype == TL_F32 ? (float *)view->data + first : buffer;
}

void tl_commit(const tl_view *view, int64_t first, int64_t n, const float *values) {
  if (view->dtype == TL_BF16) narrow(values, (uint16_t *)view->data + first, n);
}

typedef struct span_loop {
  tl_span_task span;
  const void *context;
  int64_t count;
} span_loop;

static void run_spans(void *context, int64_t index, int32_t worker) {
  const span_loop *l = context;
  const int64_t first = index * TASK_ELEMENTS;
  const int64_t end = first + TASK_ELEMENTS < l->count ? first + TASK_ELEMENTS : l->count;
  (void)worker;
  for (int64_t i = first; i < end; i += TL_SPAN) {
    l->span(l->context, i, end - i < TL_SPAN ? end - i : TL_SPAN);
  }
}

void tl_each_span(tl_team *team, int64_t count, tl_span_task span, const void *context) {
  span_loop l = {.span = span, .context = context, .count = count};
  tl_team_for(team, (count + TASK_ELEMENTS - 1) / TASK_ELEMENTS, run_spans, &l);
}

typedef struct row_loop {
  tl_row_task row;
  const void *context;
  int64_t rows, rows_each;
} row_loop;

static void run_rows(void *context, int64_t index, int32_t worker) {
  const row_loop *l = context;
  const int64_t first = index * l->rows_each;
  const int64_t end = first + l->rows_each < l->rows ? first + l->rows_each : l->rows;
  (void)worker;
  for (int64_t i = first; i < end; i++) l->row(l->context, i);
}

void tl_each_row(tl_team *team, int64_t rows, int64_t width, tl_row_task row, const void *context) {
  const int64_t each = width < TASK_ELEMENTS ? TASK_ELEMENTS / (width > 0 ? width : 1) : 1;
  row_loop l = {.row = row, .context = context, .rows = rows, .rows_each = each};
  tl_team_for(team, (rows + each - 1) / each, run_rows, &l);
}

tl_status tl_expect(const char *op, const char *operand, const tl_view *view, tl_kind kind,
                    int64_t count) {
  static const char *const wanted[] = {"f32 or bf16", "f32", "i32", "i64"};
  const tl_dtype dtype = view->dtype;
  const int fits = kind == TL_KIND_FLOAT ? dtype == TL_F32 || dtype == TL_BF16
                   : kind == TL_KIND_F32 ? dtype == TL_F32
                   : kind == TL_KIND_I32 ? dtype == TL_I32
                                         : dtype == TL_I64;
  if (!fits) {
    return tl_fail(TL_DTYPE, "%s: %s is %s, must be %s", op, operand, tl_dtype_name(dtype),
                   wanted[kind]);
  }
  if (tl_view_count(view) != count) {
    return tl_fail(TL_SHAPE, "%s: %s has %lld elements, must have %lld", op, operand,
                   (long long)tl_view_count(view), (long long)count);
  }
  return TL_OK;
}

tl_status tl_expect_range(const char *op, const char *name, int64_t value, int64_t low,
                          int64_t high) {
  if (value >= low && value <= high) return TL_OK;
  return tl_fail(TL_ARGUMENT, "%s: %s is %lld, must be %lld to %lld", op, name, (long long)value,
                 (long long)low, (long long)high);
}

tl_status tl_expect_segments(const char *op, const tl_view *cu, int64_t rows) {
  const int64_t count = tl_view_count(cu);
  TL_TRY(tl_expect(op, "cu_seqlens", cu, TL_KIND_I32, count));
  TL_TRY(tl_expect_range(op, "entries of cu_seqlens", count, 1, INT32_MAX));
  const int32_t *start = cu->data;
  if (start[0] != 0) {
    return tl_fail(TL_ARGUMENT, "%s: cu_seqlens: entry 0 is %d, must be 0", op, start[0]);
  }
  for (int64_t i = 1; i < count; i++) {
    if (start[i] < start[i - 1]) {
      return tl_fail(TL_ARGUMENT, "%s: cu_seqlens: entry %lld is %d, less than %d", op,
                     (long long)i, start[i], start[i - 1]);
    }
    if (start[i] > rows) {
      return tl_fail(TL_ARGUMENT, "%s: cu_seqlens: entry %lld is %d, but there are %lld rows", op,
                     (long long)i, start[i], (long long)rows);
    }
  }
  if (start[count - 1] != rows) {
    return tl_fail(TL_ARGUMENT, "%s: cu_seqlens: the last entry is %d, but there are %lld rows", op,
                   start[count - 1], (long long)rows);
  }
  return TL_OK;
}

int64_t tl_segment_of(const tl_view *cu, int64_t row) {
  const int32_t *start = cu->data;
  int64_t low = 0, high = tl_view_count(cu) - 1; /* start[low] <= row < start[high] */
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (start[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}
