/* gemm_proof.c - makes the numbers of a trial, runs both sides, compares and times. */
#include "gemm_proof.h"

#include <stdlib.h>
#include <string.h>

#include "gemm_proof_args.h"

enum { RUNS = 3, POISON = 0x5A, THREADS = 256, BLOCKS = 2048, REPEATS_MAX = 20 };

typedef struct trial {
  const tl_gemm_trial *with;
  const tl_gemm_shape *shape;
  tl_gemm_problem *problem;
  void *a, *b, *own, *out; /* factors; the two outputs */
  int32_t copies;          /* of b: side by side, the same numbers */
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

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

static tl_status launch(const trial *t, const char *kernel, const void *arguments) {
  const tl_cuda_grid grid = {.blocks = {BLOCKS}, .threads = {THREADS}};
  return tl_cuda_launch(t->with->cuda, kernel, &grid, arguments);
}

/* ---- numbers ---- */

static int64_t output_count(const tl_gemm_shape *s) { return s->rows * s->columns * s->parts; }
static int64_t output_bytes(const tl_gemm_shape *s) {
  return output_count(s) * tl_dtype_bytes((tl_dtype)s->out_dtype);
}

static tl_status make_factor(const trial *t, int32_t along, int32_t turned, int64_t count,
                             void *out) {
  const tl_proof_factor f = {.out = out,
                             .count = count,
                             .depth = t->shape->depth,
                             .along = along,
                             .turned = turned,
                             .bf16 = t->shape->dtype == TL_BF16};
  if (t->with->cuda != NULL) return launch(t, "proof_factor", &f);
  for (int64_t at = 0; at < f.count * f.depth; at++) {
    const uint32_t bits = tl_proof_factor_at(&f, at);
    if (f.bf16)
      ((uint16_t *)out)[at] = (uint16_t)(bits >> 16);
    else
      ((uint32_t *)out)[at] = bits;
  }
  return TL_OK;
}

/* What both outputs hold before: bytes that no product leaves, or the numbers it is added to. */
static tl_status reset(const trial *t, void *out) {
  const tl_cuda *cuda = t->with->cuda;
  const size_t bytes = (size_t)output_bytes(t->shape);
  const tl_proof_output o = {.out = out, .count = output_count(t->shape)};
  if (t->shape->add && cuda != NULL) return launch(t, "proof_output", &o);
  if (t->shape->add)
    for (int64_t i = 0; i < o.count; i++) o.out[i] = tl_proof_output_at(i);
  else if (cuda == NULL)
    memset(out, POISON, bytes);
  else
    return device(t, tl_cuda_calls(cuda)->fill(address(out), POISON, bytes, tl_cuda_stream(cuda)));
  return TL_OK;
}

static int64_t b_bytes(const tl_gemm_shape *s) {
  return s->columns * s->depth * s->parts * tl_dtype_bytes((tl_dtype)s->dtype);
}

/* A step reads each weight once, so it comes from memory and not from the cache: runs that are
** timed read copies in turn, which do not fit there together. */
static int32_t count_copies(const trial *t) {
  if (t->with->cuda == NULL || t->shape->product == TL_GEMM_GRAD_WEIGHT) return 1;
  const int64_t most = 1 + 2 * (int64_t)tl_cuda_device(t->with->cuda)->cache / b_bytes(t->shape);
  return (int32_t)(most > REPEATS_MAX ? REPEATS_MAX : most);
}

static tl_status make_numbers(trial *t) {
  const tl_gemm_shape *s = t->shape;
  const int64_t item = tl_dtype_bytes((tl_dtype)s->dtype);
  t->copies = count_copies(t);
  TL_TRY(take(t, s->rows * s->depth * item, &t->a));
  TL_TRY(take(t, b_bytes(s) * t->copies, &t->b));
  TL_TRY(take(t, output_bytes(s), &t->own));
  TL_TRY(take(t, output_bytes(s), &t->out));
  TL_TRY(make_factor(t, s->product != TL_GEMM_GRAD_WEIGHT, 1, s->rows, t->a));
  for (int32_t i = 0; i < t->copies; i++)
    TL_TRY(make_factor(t, s->product == TL_GEMM_LINEAR, 0, s->columns * s->parts,
                       (char *)t->b + i * b_bytes(s)));
  TL_TRY(reset(t, t->own));
  return reset(t, t->out);
}

/* ---- both sides ---- */

static tl_view matrix(void *data, int32_t dtype, int64_t rows, int64_t columns) {
  return (tl_view){
      .data = data, .dtype = (tl_dtype)dtype, .dims = 2, .shape = {rows, columns}
  };
}

static tl_status run_own(const trial *t, char *from) {
  const tl_gemm_shape *s = t->shape;
  const int32_t product = s->product, parts = (int32_t)s->parts;
  const int64_t mode = s->add ? TL_GEMM_ADD : TL_GEMM_ZERO;
  const int64_t linear[] = {parts, 0, 1}, input[] = {1, 1, 0, s->depth};
  const int64_t weight[] = {0, 1, s->depth, s->depth, mode, 1};
  tl_view in[1 + TL_GEMM_LIBRARY_PARTS], out[TL_GEMM_LIBRARY_PARTS];
  in[0] = product == TL_GEMM_GRAD_WEIGHT ? matrix(t->a, s->dtype, s->depth, s->rows)
                                         : matrix(t->a, s->dtype, s->rows, s->depth);
  for (int32_t i = 0; i < parts; i++) {
    void *b = from + i * (b_bytes(s) / parts),
         *own = (char *)t->own + i * (output_bytes(s) / parts);
    in[1 + i] = product == TL_GEMM_LINEAR ? matrix(b, s->dtype, s->columns, s->depth)
                                          : matrix(b, s->dtype, s->depth, s->columns);
    out[i] = matrix(own, s->out_dtype, s->rows, s->columns);
  }
  const tl_call call = {.in = in,
                        .out = out,
                        .in_count = 1 + parts,
                        .out_count = parts,
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

/* `way` NULL: our own kernel; with one of the copies of b. */
static tl_status run_side(const trial *t, const tl_gemm_way *way, int32_t copy) {
  const tl_gemm_shape *s = t->shape;
  char *b = (char *)t->b + copy % t->copies * b_bytes(s);
  const tl_gemm_operands o = {t->a, b, t->out, s->columns * s->depth, s->rows * s->columns};
  return way == NULL ? run_own(t, b) : tl_gemm_library_run(t->with->library, t->problem, way, &o);
}

/* A graph of `repeats` runs, as a captured step holds them: the host's part is not timed. */
static tl_status capture_side(const trial *t, const tl_gemm_way *way, int32_t repeats, void **out) {
  const tl_cuda_api *api = tl_cuda_calls(t->with->cuda);
  void *stream = tl_cuda_stream(t->with->cuda), *graph = NULL;
  TL_TRY(device(t, api->capture_begin(stream, TL_CUDA_CAPTURE_RELAXED)));
  tl_status status = TL_OK;
  for (int32_t i = 0; i < repeats && status == TL_OK; i++) status = run_side(t, way, i);
  const int error = api->capture_end(stream, &graph);
  if (status == TL_OK) status = device(t, error);
  if (status == TL_OK) status = device(t, api->graph_build(out, graph, 0));
  if (graph != NULL) api->graph_free(graph);
  return status;
}

/* Milliseconds of the graph, the least of some replays. */
static tl_status time_graph(const trial *t, void *graph, float *least) {
  const tl_cuda_api *api = tl_cuda_calls(t->with->cuda);
  void *stream = tl_cuda_stream(t->with->cuda);
  TL_TRY(device(t, api->graph_launch(graph, stream)));
  for (int32_t i = 0; i < RUNS; i++) {
    float ms;
    TL_TRY(device(t, api->event_record(t->start, stream)));
    TL_TRY(device(t, api->graph_launch(graph, stream)));
    TL_TRY(device(t, api->event_record(t->stop, stream)));
    TL_TRY(device(t, api->event_wait(t->stop)));
    TL_TRY(device(t, api->event_ms(&ms, t->start, t->stop)));
    if (i == 0 || ms < *least) *least = ms;
  }
  return TL_OK;
}

/* Microseconds of a run. */
static tl_status time_side(const trial *t, const tl_gemm_way *way, float *us) {
  const double all = 1e11 / ((double)output_count(t->shape) * (double)t->shape->depth);
  const int32_t repeats = all > REPEATS_MAX ? REPEATS_MAX : all < 2 ? 2 : (int32_t)all;
  void *graph = NULL;
  float ms = 0;
  *us = 0;
  if (t->with->cuda == NULL) return TL_OK;
  TL_TRY(run_side(t, way, 0)); /* loads what it needs; a way that fails does so here */
  TL_TRY(capture_side(t, way, repeats, &graph));
  const tl_status status = time_graph(t, graph, &ms);
  tl_cuda_calls(t->with->cuda)->graph_close(graph);
  *us = ms / (float)repeats * 1e3f;
  return status;
}

static int32_t same_on_host(const tl_proof_outputs *o) {
  for (int64_t i = 0; i < o->count; i++) {
    const uint32_t x = o->bf16 ? ((const uint16_t *)o->one)[i] : ((const uint32_t *)o->one)[i];
    const uint32_t y = o->bf16 ? ((const uint16_t *)o->other)[i] : ((const uint32_t *)o->other)[i];
    if (!tl_proof_same(o->bf16, x, y)) return 0;
  }
  return 1;
}

static tl_status compare(const trial *t, int32_t *equal) {
  tl_cuda *cuda = t->with->cuda;
  uint32_t differ = 0;
  tl_proof_outputs o = {.one = t->own,
                        .other = t->out,
                        .count = output_count(t->shape),
                        .bf16 = t->shape->out_dtype == TL_BF16};
  if (cuda == NULL) {
    *equal = same_on_host(&o);
    return TL_OK;
  }
  const tl_cuda_api *api = tl_cuda_calls(cuda);
  void *stream = tl_cuda_stream(cuda);
  o.differ = tl_cuda_scratch(cuda);
  TL_TRY(device(t, api->fill(address(o.differ), 0, sizeof differ, stream)));
  TL_TRY(launch(t, "proof_compare", &o));
  TL_TRY(device(t, api->copy_out(&differ, address(o.differ), sizeof differ, stream)));
  TL_TRY(wait_for(t));
  *equal = !differ;
  return TL_OK;
}

/* Whether `way` gives the bits that t->own holds. */
static tl_status prove(const trial *t, const tl_gemm_way *way, int32_t *equal) {
  TL_TRY(reset(t, t->out));
  TL_TRY(run_side(t, way, 0));
  return compare(t, equal);
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
  TL_TRY(run_side(t, NULL, 0));
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
