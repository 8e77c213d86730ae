/* gemm_proof.c - makes the numbers of a trial, runs both sides, compares and times. */
#include "gemm_proof.h"

#include <stdlib.h>
#include <string.h>

#include "../../runtime/random.h"

enum { KINDS = 8, RUNS = 3, POISON = 0x5A };
enum { CHUNK = 32 << 20 }; /* bytes that are compared at a time */

typedef struct trial {
  const tl_gemm_trial *with;
  const tl_gemm_shape *shape;
  tl_gemm_problem *problem;
  void *a, *b, *own, *out; /* factors; the two outputs */
  void *host, *other;      /* one factor, or pieces of both outputs, in host memory */
  void *start, *stop;      /* events */
} trial;

/* ---- memory of the device or the host ---- */

static tl_status take(const trial *t, int64_t bytes, void **out) {
  if (t->with->cuda != NULL) return tl_cuda_alloc(t->with->cuda, bytes, out);
  *out = malloc((size_t)bytes);
  return *out != NULL ? TL_OK : tl_fail(TL_MEMORY, "no room for a trial");
}

static void give_back(const trial *t, void *memory) {
  if (t->with->cuda != NULL)
    tl_cuda_free(t->with->cuda, memory);
  else
    free(memory);
}

static tl_status device(const trial *t, int error) {
  return tl_cuda_check(tl_cuda_calls(t->with->cuda), error, "trial of a product");
}

static tl_status wait_for(const trial *t) {
  const tl_cuda *cuda = t->with->cuda;
  return cuda == NULL ? TL_OK : device(t, tl_cuda_calls(cuda)->stream_wait(tl_cuda_stream(cuda)));
}

static tl_status write(const trial *t, void *to, const void *from, int64_t bytes) {
  const tl_cuda *cuda = t->with->cuda;
  if (cuda == NULL) {
    memcpy(to, from, (size_t)bytes);
    return TL_OK;
  }
  TL_TRY(device(t, tl_cuda_calls(cuda)->copy_in((uint64_t)(uintptr_t)to, from, (size_t)bytes,
                                                tl_cuda_stream(cuda))));
  return wait_for(t);
}

static tl_status read(const trial *t, void *to, const void *from, int64_t bytes) {
  const tl_cuda *cuda = t->with->cuda;
  if (cuda == NULL) {
    memcpy(to, from, (size_t)bytes);
    return TL_OK;
  }
  TL_TRY(device(t, tl_cuda_calls(cuda)->copy_out(to, (uint64_t)(uintptr_t)from, (size_t)bytes,
                                                 tl_cuda_stream(cuda))));
  return wait_for(t);
}

/* ---- numbers ---- */

/* The f32 bits of element k of a row of this kind. Of a row of pairs the second is the first again,
** in a (`turned`) with the other sign and now and then another last bit. */
static uint32_t element(int32_t kind, int32_t turned, uint64_t row, int64_t k) {
  static const uint32_t lowest[KINDS] = {122, 107, 120, 40, 122, 122, 0, 185};
  static const uint32_t spread[KINDS] = {6, 40, 16, 30, 6, 6, 1, 16};
  const int64_t first = kind == 2 ? k & ~INT64_C(1) : k;
  const uint64_t r = tl_mix64(row + (uint64_t)first);
  uint32_t bits = (uint32_t)(r & 0x80000000u) |
                  (lowest[kind] + (uint32_t)(r >> 33) % spread[kind]) << 23 |
                  (uint32_t)(r & 0x7FFFFF);
  if (kind == 2 && k != first && turned) bits ^= 0x80000000u | (r >> 60 == 0 ? 0x10000u : 0);
  if (kind == 4 && r >> 40 & 1) bits &= 0x80000000u;
  if (kind == 5 && (r >> 40 & 255) == 0) bits = r >> 50 & 1 ? 0x7F800000u : 0xFF800000u;
  if (kind == 5 && (r >> 40 & 4095) == 1) bits = 0x7FC00000u;
  return bits;
}

/* Element (i, k) lies at i * depth + k, or across at k * count + i. */
static void make_factor(const trial *t, int32_t along, int32_t turned, int64_t count, void *out) {
  const int64_t depth = t->shape->depth;
  for (int64_t outer = 0; outer < (along ? count : depth); outer++)
    for (int64_t inner = 0; inner < (along ? depth : count); inner++) {
      const int64_t i = along ? outer : inner, k = along ? inner : outer;
      const uint64_t row = ((uint64_t)i * 2 + (uint64_t)turned) << 32;
      const uint32_t bits = element((int32_t)(i % KINDS), turned, row, k);
      const int64_t at = along ? i * depth + k : k * count + i;
      if (t->shape->dtype == TL_BF16)
        ((uint16_t *)out)[at] = (uint16_t)(bits >> 16);
      else
        ((uint32_t *)out)[at] = bits;
    }
}

static int64_t output_bytes(const tl_gemm_shape *s) {
  return s->rows * s->columns * tl_dtype_bytes((tl_dtype)s->out_dtype);
}

/* What both outputs hold before: bytes that no product leaves, or the numbers it is added to. */
static tl_status reset(const trial *t, void *out) {
  const int64_t bytes = output_bytes(t->shape);
  for (int64_t at = 0; at < bytes; at += CHUNK) {
    const int64_t count = bytes - at < CHUNK ? bytes - at : CHUNK;
    memset(t->host, POISON, (size_t)count);
    for (int64_t i = 0; t->shape->add && i < count / 4; i++)
      ((uint32_t *)t->host)[i] = element(0, 0, UINT64_C(1) << 63, at / 4 + i);
    TL_TRY(write(t, (char *)out + at, t->host, count));
  }
  return TL_OK;
}

static tl_status make_numbers(trial *t) {
  const tl_gemm_shape *s = t->shape;
  const int64_t item = tl_dtype_bytes((tl_dtype)s->dtype);
  const int64_t a = s->rows * s->depth * item, b = s->columns * s->depth * item;
  const int64_t room = a > b ? a : b;
  TL_TRY(take(t, a, &t->a));
  TL_TRY(take(t, b, &t->b));
  TL_TRY(take(t, output_bytes(s), &t->own));
  TL_TRY(take(t, output_bytes(s), &t->out));
  t->host = malloc((size_t)(room > CHUNK ? room : CHUNK)), t->other = malloc(CHUNK);
  if (t->host == NULL || t->other == NULL) return tl_fail(TL_MEMORY, "no room for a trial");
  make_factor(t, s->product != TL_GEMM_GRAD_WEIGHT, 1, s->rows, t->host);
  TL_TRY(write(t, t->a, t->host, a));
  make_factor(t, s->product == TL_GEMM_LINEAR, 0, s->columns, t->host);
  TL_TRY(write(t, t->b, t->host, b));
  TL_TRY(reset(t, t->own));
  return reset(t, t->out);
}

/* ---- both sides ---- */

static tl_view matrix(void *data, int32_t dtype, int64_t rows, int64_t columns) {
  return (tl_view){
      .data = data, .dtype = (tl_dtype)dtype, .dims = 2, .shape = {rows, columns}
  };
}

static tl_status run_own(const trial *t) {
  const tl_gemm_shape *s = t->shape;
  const int32_t product = s->product;
  const int64_t mode = s->add ? TL_GEMM_ADD : TL_GEMM_ZERO;
  const int64_t linear[] = {1, 0, 1}, input[] = {1, 1, 0, s->depth};
  const int64_t weight[] = {0, 1, s->depth, s->depth, mode, 1};
  const tl_view a = product == TL_GEMM_GRAD_WEIGHT ? matrix(t->a, s->dtype, s->depth, s->rows)
                                                   : matrix(t->a, s->dtype, s->rows, s->depth);
  const tl_view b = product == TL_GEMM_LINEAR ? matrix(t->b, s->dtype, s->columns, s->depth)
                                              : matrix(t->b, s->dtype, s->depth, s->columns);
  const tl_view in[] = {a, b}, out = matrix(t->own, s->out_dtype, s->rows, s->columns);
  const tl_call call = {.in = in,
                        .out = &out,
                        .in_count = 2,
                        .out_count = 1,
                        .ints = product == TL_GEMM_LINEAR       ? linear
                                : product == TL_GEMM_GRAD_INPUT ? input
                                                                : weight,
                        .int_count = product == TL_GEMM_LINEAR       ? 3
                                     : product == TL_GEMM_GRAD_INPUT ? 4
                                                                     : 6,
                        .team = t->with->team,
                        .cuda = t->with->cuda};
  return t->with->own((tl_gemm_product)product, &call);
}

/* `way` NULL: our own kernel. */
static tl_status run_side(const trial *t, const tl_gemm_way *way) {
  const tl_gemm_operands o = {t->a, t->b, t->out};
  return way == NULL ? run_own(t) : tl_gemm_library_run(t->with->library, t->problem, way, &o);
}

/* Microseconds of a run, the least of some. */
static tl_status time_side(const trial *t, const tl_gemm_way *way, float *us) {
  *us = 0;
  if (t->with->cuda == NULL) return TL_OK;
  const tl_cuda_api *api = tl_cuda_calls(t->with->cuda);
  void *stream = tl_cuda_stream(t->with->cuda);
  TL_TRY(run_side(t, way));
  for (int32_t i = 0; i < RUNS; i++) {
    float ms;
    TL_TRY(device(t, api->event_record(t->start, stream)));
    TL_TRY(run_side(t, way));
    TL_TRY(device(t, api->event_record(t->stop, stream)));
    TL_TRY(device(t, api->event_wait(t->stop)));
    TL_TRY(device(t, api->event_ms(&ms, t->start, t->stop)));
    if (i == 0 || ms * 1e3f < *us) *us = ms * 1e3f;
  }
  return TL_OK;
}

static int32_t is_nan(int32_t dtype, uint32_t bits) {
  if (dtype == TL_BF16) return (bits & 0x7FFF) > 0x7F80;
  return (bits & 0x7FFFFFFF) > 0x7F800000;
}

static int32_t same(const trial *t, int64_t bytes) {
  const int32_t dtype = t->shape->out_dtype;
  if (memcmp(t->host, t->other, (size_t)bytes) == 0) return 1;
  for (int64_t i = 0; i < bytes / tl_dtype_bytes((tl_dtype)dtype); i++) {
    const uint32_t x = dtype == TL_BF16 ? ((uint16_t *)t->host)[i] : ((uint32_t *)t->host)[i];
    const uint32_t y = dtype == TL_BF16 ? ((uint16_t *)t->other)[i] : ((uint32_t *)t->other)[i];
    if (x != y && !(is_nan(dtype, x) && is_nan(dtype, y))) return 0;
  }
  return 1;
}

/* Whether `way` gives the bits that t->own holds. */
static tl_status prove(const trial *t, const tl_gemm_way *way, int32_t *equal) {
  const int64_t bytes = output_bytes(t->shape);
  *equal = 0;
  TL_TRY(reset(t, t->out));
  TL_TRY(run_side(t, way));
  for (int64_t at = 0; at < bytes; at += CHUNK) {
    const int64_t count = bytes - at < CHUNK ? bytes - at : CHUNK;
    TL_TRY(read(t, t->host, (char *)t->own + at, count));
    TL_TRY(read(t, t->other, (char *)t->out + at, count));
    if (!same(t, count)) return TL_OK;
  }
  *equal = 1;
  return TL_OK;
}

/* ---- the choice ---- */

/* The next fastest of the ways that are left: its index, or -1. Equal times: the first. */
static int32_t next_fastest(const float *us, int32_t count) {
  int32_t best = -1;
  for (int32_t i = 0; i < count; i++)
    if (us[i] >= 0 && (best < 0 || us[i] < us[best])) best = i;
  return best;
}

static tl_status try_ways(trial *t, int32_t always, tl_gemm_choice *out) {
  tl_gemm_way ways[TL_GEMM_WAYS_MAX];
  float us[TL_GEMM_WAYS_MAX], own_us;
  TL_TRY(tl_gemm_library_list(t->with->library, t->problem, ways, &out->offered));
  if (out->offered == 0) return TL_OK;
  TL_TRY(time_side(t, NULL, &own_us));
  TL_TRY(reset(t, t->own));
  TL_TRY(run_own(t));
  TL_TRY(wait_for(t));
  out->own_us = out->us = own_us;
  for (int32_t i = 0; i < out->offered; i++)
    if (time_side(t, &ways[i], &us[i]) != TL_OK) us[i] = -1, out->refused++;
  for (int32_t i; (i = next_fastest(us, out->offered)) >= 0; us[i] = -1) {
    int32_t equal;
    if (!always && us[i] >= own_us && own_us > 0) return TL_OK; /* so are all that are left */
    TL_TRY(prove(t, &ways[i], &equal));
    if (equal) {
      out->way = ways[i], out->id = ways[i].id, out->us = us[i];
      return TL_OK;
    }
    out->refused++;
  }
  return TL_OK;
}

static tl_status try_all(trial *t, int32_t always, tl_gemm_choice *out) {
  if (t->with->cuda != NULL) {
    const tl_cuda_api *api = tl_cuda_calls(t->with->cuda);
    TL_TRY(device(t, api->event_create(&t->start, 0)));
    TL_TRY(device(t, api->event_create(&t->stop, 0)));
  }
  TL_TRY(make_numbers(t));
  return try_ways(t, always, out);
}

static void end(trial *t) {
  give_back(t, t->a), give_back(t, t->b), give_back(t, t->own), give_back(t, t->out);
  free(t->host), free(t->other);
  if (t->start != NULL) tl_cuda_calls(t->with->cuda)->event_destroy(t->start);
  if (t->stop != NULL) tl_cuda_calls(t->with->cuda)->event_destroy(t->stop);
}

tl_status tl_gemm_choose(const tl_gemm_trial *with, const tl_gemm_shape *shape, int32_t always,
                         tl_gemm_choice *out) {
  *out = (tl_gemm_choice){.id = 0};
  TL_TRY(tl_gemm_problem_make(with->library, shape, &out->problem));
  trial t = {.with = with, .shape = shape, .problem = &out->problem};
  tl_status status = try_all(&t, always, out);
  wait_for(&t);
  end(&t);
  if (status == TL_MEMORY) status = TL_OK, out->id = 0;
  if (status != TL_OK) tl_gemm_problem_free(with->library, &out->problem);
  return status;
}
