/* product_times.c - microseconds of `linear` in the layers of a 1.1 B model on GPU 0, each product
** replayed as a graph, operands already there:
**
**     build-cuda/support/product_times           our kernels beside cuBLASLt's first choice
**     build-cuda/support/product_times auto      what blocks.gemm.provider = "auto" takes beside it
**     build-cuda/support/product_times 64 32     the tile 64 x 32 wherever a product may have it
**     build-cuda/support/product_times cold      (with any of these) weights come from memory, as
**                                                in a step: products read copies of them in turn,
**                                                which the cache does not hold together
**
** One line a shape: layer, rows, microseconds of the library (algorithm/parts of k), ours, ratio,
** and with "auto" the library's algorithm where it was taken. The last line is the geometric mean.
** `./tl bench gemm` measures the same beside PyTorch.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/gemm/gemm_provider.h"
#include "../../runtime/random.h"

enum { ROWS_MAX = 8192, PARTS_MAX = 3, BATCH = 3 };

typedef struct layer {
  const char *name;
  int32_t parts, widths[PARTS_MAX];
  int64_t depth;
} layer;

static const layer layers[] = {
    {"q k v",   3, {2048, 256, 256}, 2048},
    {"out",     1, {2048},           2048},
    {"gate up", 2, {5632, 5632},     2048},
    {"down",    1, {2048},           5632},
    {"logits",  1, {32000},          2048},
};
static const int64_t rows_of[] = {1, 16, 64, 128, 512, 2048, 8192};

typedef struct bench {
  tl_cuda *cuda;
  const tl_cuda_api *api;
  const tl_cublaslt_api *lt;
  void *stream, *handle, *start, *stop;
  void *x, *weights, *y;
  int64_t weight_bytes;
  int32_t cold, provider;
} bench;

static void need(tl_status status) {
  if (status == TL_OK) return;
  printf("%s\n", tl_last_error());
  exit(1);
}
static void need_call(const bench *b, int error) {
  need(tl_cuda_check(b->api, error, "product_times"));
}
static void need_lt(int error) { need(tl_cublaslt_check(error, "product_times")); }

/* One product, by our kernels or by the library; copies: of its weights, `step` bytes apart. */
typedef struct work {
  int64_t copies, step;
  tl_view in[1 + PARTS_MAX], out[PARTS_MAX];
  int64_t ints[3];
  tl_call call;
  void *product, *a, *b, *c; /* the library's; NULL: ours */
  tl_cublaslt_way way;
} work;

static void queue(const bench *b, const work *w, int64_t copy) {
  const float one = 1, zero = 0;
  char *weights = (char *)b->weights + copy * w->step;
  if (w->product == NULL) {
    work moved = *w;
    tl_call call = w->call;
    for (int32_t i = 1; i < call.in_count; i++)
      moved.in[i].data = (char *)moved.in[i].data + copy * w->step;
    call.in = moved.in;
    need(tl_ops[TL_OP_linear].cuda(&call));
    return;
  }
  need_lt(b->lt->multiply(b->handle, w->product, &one, weights, w->b, b->x, w->a, &zero, b->y, w->c,
                          b->y, w->c, &w->way, tl_cuda_scratch(b->cuda), TL_CUDA_SCRATCH_BYTES,
                          b->stream));
}

/* Microseconds of one of `repeats`, the best of some replays. */
static float time_of(const bench *b, const work *w, int32_t repeats) {
  void *graph = NULL, *ready = NULL;
  float best = INFINITY, ms;
  need_call(b, b->api->capture_begin(b->stream, TL_CUDA_CAPTURE_RELAXED));
  for (int32_t i = 0; i < repeats; i++) queue(b, w, i % w->copies);
  need_call(b, b->api->capture_end(b->stream, &graph));
  need_call(b, b->api->graph_build(&ready, graph, 0));
  need_call(b, b->api->graph_launch(ready, b->stream));
  for (int32_t i = 0; i < BATCH; i++) {
    need_call(b, b->api->event_record(b->start, b->stream));
    need_call(b, b->api->graph_launch(ready, b->stream));
    need_call(b, b->api->event_record(b->stop, b->stream));
    need_call(b, b->api->event_wait(b->stop));
    need_call(b, b->api->event_ms(&ms, b->start, b->stop));
    if (ms < best) best = ms;
  }
  b->api->graph_close(ready);
  b->api->graph_free(graph);
  return best / (float)repeats * 1e3f;
}

static tl_view matrix(void *data, int64_t rows, int64_t columns) {
  return (tl_view){
      .data = data, .dtype = TL_BF16, .dims = 2, .shape = {rows, columns}
  };
}

static void make_own(const bench *b, const layer *l, int64_t rows, work *w) {
  int64_t at = 0;
  *w = (work){
      .ints = {l->parts, 0, 1}
  };
  w->in[0] = matrix(b->x, rows, l->depth);
  for (int32_t i = 0; i < l->parts; at += l->widths[i++]) {
    w->in[1 + i] = matrix((uint16_t *)b->weights + at * l->depth, l->widths[i], l->depth);
    w->out[i] = matrix((uint16_t *)b->y + at * rows, rows, l->widths[i]);
  }
  w->call = (tl_call){.in = w->in,
                      .out = w->out,
                      .in_count = 1 + l->parts,
                      .out_count = l->parts,
                      .ints = w->ints,
                      .int_count = 3,
                      .cuda = b->cuda};
}

/* All parts as one matrix; what the library would take by itself. */
static void make_library(const bench *b, int64_t rows, int64_t columns, int64_t depth, work *w) {
  const int32_t turned = 1;
  const uint64_t room = TL_CUDA_SCRATCH_BYTES;
  tl_cublaslt_found found;
  void *wish;
  int count = 0;
  *w = (work){.product = NULL};
  need_lt(b->lt->product_make(&w->product, TL_CUBLASLT_COMPUTE_F32, TL_CUBLASLT_F32));
  need_lt(b->lt->product_set(w->product, TL_CUBLASLT_PRODUCT_TURN_A, &turned, sizeof turned));
  need_lt(b->lt->layout_make(&w->b, TL_CUBLASLT_BF16, (uint64_t)depth, (uint64_t)columns, depth));
  need_lt(b->lt->layout_make(&w->a, TL_CUBLASLT_BF16, (uint64_t)depth, (uint64_t)rows, depth));
  need_lt(b->lt->layout_make(&w->c, TL_CUBLASLT_BF16, (uint64_t)columns, (uint64_t)rows, columns));
  need_lt(b->lt->wish_make(&wish));
  need_lt(b->lt->wish_set(wish, TL_CUBLASLT_WISH_WORKSPACE, &room, sizeof room));
  need_lt(b->lt->list(b->handle, w->product, w->b, w->a, w->c, w->c, wish, 1, &found, &count));
  need_lt(count == 1 ? found.error : -1);
  w->way = found.way;
  b->lt->wish_free(wish);
}

static void free_library(const bench *b, work *w) {
  b->lt->product_free(w->product);
  b->lt->layout_free(w->a), b->lt->layout_free(w->b), b->lt->layout_free(w->c);
}

/* Returns log(the library's time / ours). */
static double measure(const bench *b, const layer *l, int64_t rows) {
  work own, library;
  int32_t id = 0, parts = 0;
  size_t written;
  int64_t columns = 0;
  for (int32_t i = 0; i < l->parts; i++) columns += l->widths[i];
  const double all = 4e11 / (2.0 * (double)rows * (double)columns * (double)l->depth);
  const int32_t repeats = all > 100 ? 100 : all < 2 ? 2 : (int32_t)all;
  make_own(b, l, rows, &own);
  make_library(b, rows, columns, l->depth, &library);
  own.step = library.step = columns * l->depth * 2;
  own.copies = library.copies = b->cold ? b->weight_bytes / own.step : 1;
  need(tl_gemm_prepare(TL_OP_linear, &own.call));
  need_lt(b->lt->way_get(&library.way, TL_CUBLASLT_WAY_ID, &id, sizeof id, &written));
  need_lt(b->lt->way_get(&library.way, TL_CUBLASLT_WAY_SPLIT, &parts, sizeof parts, &written));
  const float before = time_of(b, &library, repeats), us = time_of(b, &own, repeats);
  const float after = time_of(b, &library, repeats), theirs = before < after ? before : after;
  free_library(b, &library);
  printf("%-8s %5lld %9.2f (%d/%d) %9.2f %7.3f", l->name, (long long)rows, theirs, id, parts, us,
         theirs / us);
  const tl_gemm_choice *chosen = NULL, *next;
  for (int32_t i = 0; (next = tl_gemm_chosen(b->cuda, i)) != NULL; i++) {
    const tl_gemm_shape *s = &next->problem.shape;
    if (s->rows == rows && s->depth == l->depth && s->columns * s->parts == columns) chosen = next;
  }
  if (chosen != NULL && chosen->id != 0) printf("  by %d", chosen->id);
  printf("\n");
  return log(theirs / us);
}

static void fill(const bench *b, void *to, int64_t bytes) {
  uint16_t *noise = malloc((size_t)bytes);
  if (noise == NULL) need(tl_fail(TL_MEMORY, "no room"));
  for (int64_t i = 0; i < bytes / 2; i++) {
    const uint64_t r = tl_mix64((uint64_t)i);
    noise[i] = (uint16_t)((r & 0x8000) | (120 + (r >> 16) % 8) << 7 | (r & 0x7f));
  }
  need_call(b, b->api->copy_in((uint64_t)(uintptr_t)to, noise, (size_t)bytes, b->stream));
  need_call(b, b->api->stream_wait(b->stream));
  free(noise);
}

static void read_arguments(bench *b, int argc, char **argv) {
  int32_t sizes[2] = {0, 0}, count = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "cold") == 0)
      b->cold = 1;
    else if (strcmp(argv[i], "auto") == 0)
      b->provider = TL_GEMM_AUTO;
    else if (count < 2)
      sizes[count++] = atoi(argv[i]);
  }
  tl_cuda_set_blocks(
      b->cuda, &(tl_cuda_blocks){
                   .gemm_rows = sizes[0], .gemm_columns = sizes[1], .gemm_provider = b->provider});
}

int main(int argc, char **argv) {
  const int64_t x_bytes = (int64_t)ROWS_MAX * 5632 * 2;
  bench b = {.cuda = NULL, .weight_bytes = 3 * INT64_C(32000) * 2048 * 2};
  double sum = 0;
  int32_t count = 0;
  need(tl_cuda_open(0, &b.cuda));
  need(tl_cuda_enter(b.cuda));
  need(tl_cublaslt_find(&b.lt));
  b.api = tl_cuda_calls(b.cuda), b.stream = tl_cuda_stream(b.cuda);
  need_lt(b.lt->open(&b.handle));
  need_call(&b, b.api->event_create(&b.start, 0));
  need_call(&b, b.api->event_create(&b.stop, 0));
  need(tl_cuda_alloc(b.cuda, x_bytes, &b.x));
  need(tl_cuda_alloc(b.cuda, b.weight_bytes, &b.weights));
  need(tl_cuda_alloc(b.cuda, (int64_t)ROWS_MAX * 32000 * 2, &b.y));
  fill(&b, b.x, x_bytes), fill(&b, b.weights, b.weight_bytes);
  read_arguments(&b, argc, argv);
  for (size_t l = 0; l < sizeof layers / sizeof layers[0]; l++)
    for (size_t r = 0; r < sizeof rows_of / sizeof rows_of[0]; r++, count++)
      sum += measure(&b, &layers[l], rows_of[r]);
  printf("geometric mean %.3f over %d\n", exp(sum / count), count);
  tl_cuda_free(b.cuda, b.x), tl_cuda_free(b.cuda, b.weights), tl_cuda_free(b.cuda, b.y);
  b.lt->close(b.handle);
  tl_cuda_close(b.cuda);
  return 0;
}
