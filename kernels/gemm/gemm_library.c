/* gemm_library.c - describes products to cuBLASLt and runs them. */
#include "gemm_library.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNED = 16, STEP = 16, FOUND_MAX = 24 };

struct tl_gemm_library {
  const tl_cublaslt_api *api;
  tl_cuda *cuda;
  void *handle;
};

/* ---- shapes ---- */

static int32_t is_aligned(const void *data, int64_t width, int32_t dtype) {
  return (uintptr_t)data % ALIGNED == 0 && width * tl_dtype_bytes((tl_dtype)dtype) % ALIGNED == 0;
}

static int32_t finish(tl_gemm_shape *s, const tl_view *a, const tl_view *b, const tl_view *out,
                      tl_gemm_operands *o) {
  s->dtype = a->dtype, s->out_dtype = out->dtype, s->parts = 1;
  o->b = b->data, o->out = out->data;
  return a->dtype == b->dtype && s->rows > 0 && s->columns > 0 && s->depth > 0 &&
         s->rows < INT32_MAX && s->columns < INT32_MAX && s->depth < INT32_MAX &&
         is_aligned(o->a, tl_view_row(a), a->dtype) && is_aligned(o->b, tl_view_row(b), b->dtype) &&
         is_aligned(o->out, tl_view_row(out), out->dtype);
}

/* ints: parts biases leaves */
static int32_t shape_of_linear(const tl_call *call, int32_t part, tl_gemm_shape *s,
                               tl_gemm_operands *o) {
  const tl_view *x = &call->in[0], *weight = &call->in[1 + part];
  if (call->ints[1] != 0 || call->ints[2] != 1) return 0;
  s->rows = x->shape[0], s->columns = weight->shape[0], s->depth = tl_view_row(x);
  o->a = x->data;
  return finish(s, x, weight, &call->out[part], o);
}

/* ints: parts leaves, then (first, count) for each part */
static int32_t shape_of_grad_input(const tl_call *call, tl_gemm_shape *s, tl_gemm_operands *o) {
  const tl_view *dy = &call->in[0], *weight = &call->in[1];
  if (call->ints[0] != 1 || call->ints[1] != 1) return 0;
  if (call->ints[2] != 0 || call->ints[3] != weight->shape[0]) return 0;
  s->rows = dy->shape[0], s->columns = tl_view_row(weight), s->depth = weight->shape[0];
  o->a = dy->data;
  return finish(s, dy, weight, &call->out[0], o);
}

/* ints: first samples length stride mode leaves. Pieces are one chain where they lie side by side
** and end on whole steps. */
static int32_t shape_of_grad_weight(const tl_call *call, tl_gemm_shape *s, tl_gemm_operands *o) {
  const tl_view *dy = &call->in[0], *x = &call->in[1];
  const int64_t first = call->ints[0], samples = call->ints[1], length = call->ints[2];
  const int32_t joined = call->ints[3] == length && (dy->dtype == TL_F32 || length % STEP == 0);
  if (call->ints[5] != 1 || call->ints[4] == TL_GEMM_RESUME) return 0;
  if (samples > 1 && !joined) return 0;
  s->rows = tl_view_row(dy), s->columns = tl_view_row(x), s->depth = samples * length;
  s->add = call->ints[4] == TL_GEMM_ADD;
  const int64_t bytes = tl_dtype_bytes(dy->dtype);
  tl_view from = *x;
  from.data = (char *)x->data + first * s->columns * bytes;
  o->a = (const char *)dy->data + first * s->rows * bytes;
  return finish(s, dy, &from, &call->out[0], o);
}

/* Parts of the same shape at even distances, forwards, are one product. */
static void join(tl_gemm_cut *c) {
  const int64_t item = tl_dtype_bytes((tl_dtype)c->shapes[0].dtype);
  const int64_t out_item = tl_dtype_bytes((tl_dtype)c->shapes[0].out_dtype);
  const tl_gemm_operands *o = c->operands;
  const int64_t b = (const char *)o[1].b - (const char *)o[0].b;
  const int64_t out = (const char *)o[1].out - (const char *)o[0].out;
  const tl_gemm_shape *s = &c->shapes[0];
  if (b < s->columns * s->depth * item || out < s->rows * s->columns * out_item) return;
  for (int32_t i = 1; i < c->count; i++) {
    if (memcmp(&c->shapes[i], s, sizeof *s) != 0) return;
    if ((const char *)o[i].b - (const char *)o[0].b != i * b) return;
    if ((const char *)o[i].out - (const char *)o[0].out != i * out) return;
  }
  c->operands[0].b_step = b / item, c->operands[0].out_step = out / out_item;
  c->shapes[0].parts = c->count, c->count = 1;
}

static void cut_linear(const tl_call *call, tl_gemm_cut *out) {
  const int64_t parts = call->ints[0];
  for (int32_t i = 0; i < parts && parts <= TL_GEMM_LIBRARY_PARTS; i++) {
    out->shapes[i].product = TL_GEMM_LINEAR;
    if (!shape_of_linear(call, i, &out->shapes[i], &out->operands[i])) return;
  }
  out->count = parts <= TL_GEMM_LIBRARY_PARTS ? (int32_t)parts : 0;
  if (out->count > 1) join(out);
}

void tl_gemm_cut_call(tl_gemm_product product, const tl_call *call, tl_gemm_cut *out) {
  memset(out, 0, sizeof *out);
  if (product == TL_GEMM_LINEAR) {
    cut_linear(call, out);
    return;
  }
  out->shapes[0].product = product;
  out->count = product == TL_GEMM_GRAD_INPUT
                   ? shape_of_grad_input(call, &out->shapes[0], &out->operands[0])
                   : shape_of_grad_weight(call, &out->shapes[0], &out->operands[0]);
}

/* ---- the library ---- */

tl_status tl_gemm_library_open(tl_cuda *cuda, tl_gemm_library **out) {
  const tl_cublaslt_api *api;
  TL_TRY(tl_cublaslt_find(&api));
  tl_gemm_library *library = calloc(1, sizeof *library);
  if (library == NULL) return tl_fail(TL_MEMORY, "no room for a library");
  library->api = api, library->cuda = cuda;
  const tl_status status = tl_cublaslt_check(api->open(&library->handle), "start");
  if (status == TL_OK)
    *out = library;
  else
    free(library);
  return status;
}

void tl_gemm_library_close(tl_gemm_library *library) {
  if (library == NULL) return;
  library->api->close(library->handle);
  free(library);
}

/* A factor whose index i is `count` and runs over rows of the output (columns); `turned` is what
** the library must do to it. Along: (k, i), across: (i, k), columns first. */
static tl_status make_factor(const tl_cublaslt_api *api, const tl_gemm_shape *s, int32_t along,
                             int64_t count, void **out) {
  const int type = s->dtype == TL_BF16 ? TL_CUBLASLT_BF16 : TL_CUBLASLT_F32;
  const int64_t first = along ? s->depth : count, second = along ? count : s->depth;
  return tl_cublaslt_check(api->layout_make(out, type, (uint64_t)first, (uint64_t)second, first),
                           "layout of a factor");
}

static int set_layout(const tl_cublaslt_api *api, void *layout, int32_t parts, int64_t step) {
  const int error = api->layout_set(layout, TL_CUBLASLT_LAYOUT_BATCH, &parts, sizeof parts);
  return error != 0 ? error
                    : api->layout_set(layout, TL_CUBLASLT_LAYOUT_STRIDE, &step, sizeof step);
}

/* All parts of a product read the same a. */
static tl_status set_steps(tl_gemm_library *library, const tl_gemm_problem *p,
                           const tl_gemm_operands *o) {
  const tl_cublaslt_api *api = library->api;
  const int32_t parts = (int32_t)p->shape.parts;
  int error = set_layout(api, p->a, parts, 0);
  if (error == 0) error = set_layout(api, p->b, parts, o->b_step);
  if (error == 0) error = set_layout(api, p->out, parts, o->out_step);
  return tl_cublaslt_check(error, "parts");
}

static tl_status describe(tl_gemm_library *library, tl_gemm_problem *p) {
  const tl_cublaslt_api *api = library->api;
  const tl_gemm_shape *s = &p->shape;
  /* The library's first factor is b: its output, columns first, is the transpose of ours. */
  const int32_t a_along = s->product != TL_GEMM_GRAD_WEIGHT;
  const int32_t b_along = s->product == TL_GEMM_LINEAR;
  const int32_t turn_first = b_along, turn_second = !a_along;
  const int type = s->out_dtype == TL_BF16 ? TL_CUBLASLT_BF16 : TL_CUBLASLT_F32;
  TL_TRY(tl_cublaslt_check(api->product_make(&p->product, TL_CUBLASLT_COMPUTE_F32, TL_CUBLASLT_F32),
                           "product"));
  TL_TRY(tl_cublaslt_check(
      api->product_set(p->product, TL_CUBLASLT_PRODUCT_TURN_A, &turn_first, sizeof turn_first),
      "first factor"));
  TL_TRY(tl_cublaslt_check(
      api->product_set(p->product, TL_CUBLASLT_PRODUCT_TURN_B, &turn_second, sizeof turn_second),
      "second factor"));
  TL_TRY(make_factor(api, s, a_along, s->rows, &p->a));
  TL_TRY(make_factor(api, s, b_along, s->columns, &p->b));
  TL_TRY(tl_cublaslt_check(
      api->layout_make(&p->out, type, (uint64_t)s->columns, (uint64_t)s->rows, s->columns),
      "layout of an output"));
  const tl_gemm_operands side_by_side = {.b_step = s->columns * s->depth,
                                         .out_step = s->rows * s->columns};
  return s->parts > 1 ? set_steps(library, p, &side_by_side) : TL_OK;
}

tl_status tl_gemm_problem_make(tl_gemm_library *library, const tl_gemm_shape *shape,
                               tl_gemm_problem *out) {
  *out = (tl_gemm_problem){.shape = *shape};
  const tl_status status = describe(library, out);
  if (status != TL_OK) tl_gemm_problem_free(library, out);
  return status;
}

void tl_gemm_problem_free(tl_gemm_library *library, tl_gemm_problem *p) {
  if (p->product != NULL) library->api->product_free(p->product);
  if (p->a != NULL) library->api->layout_free(p->a);
  if (p->b != NULL) library->api->layout_free(p->b);
  if (p->out != NULL) library->api->layout_free(p->out);
  p->product = p->a = p->b = p->out = NULL;
}

static int32_t is_of_class(int32_t dtype, int32_t id) {
  return dtype == TL_BF16 ? id == 21 || id == 23 || id == 66 : id == 20 || id == 55;
}

/* The way with k whole: as it was offered, or changed so. 0: there is none. */
static int32_t keep_whole(tl_gemm_library *library, const tl_gemm_problem *p, tl_gemm_way *way) {
  const tl_cublaslt_api *api = library->api;
  const int32_t one = 1;
  const uint32_t none = 0;
  tl_cublaslt_found found;
  size_t written;
  int32_t parts = 0;
  uint32_t reduction = 0;
  if (api->way_get(&way->way, TL_CUBLASLT_WAY_ID, &way->id, sizeof way->id, &written) != 0 ||
      !is_of_class(p->shape.dtype, way->id))
    return 0;
  if (api->way_get(&way->way, TL_CUBLASLT_WAY_SPLIT, &parts, sizeof parts, &written) != 0 ||
      api->way_get(&way->way, TL_CUBLASLT_WAY_REDUCTION, &reduction, sizeof reduction, &written) !=
          0)
    return 0;
  if (parts == 1 && reduction == 0) return 1;
  if (api->way_set(&way->way, TL_CUBLASLT_WAY_SPLIT, &one, sizeof one) != 0 ||
      api->way_set(&way->way, TL_CUBLASLT_WAY_REDUCTION, &none, sizeof none) != 0)
    return 0;
  return api->way_check(library->handle, p->product, p->b, p->a, p->out, p->out, &way->way,
                        &found) == 0 &&
         found.error == 0 && found.workspace <= TL_CUDA_SCRATCH_BYTES;
}

static int32_t is_new(const tl_gemm_way *ways, int32_t count, const tl_gemm_way *way) {
  for (int32_t i = 0; i < count; i++)
    if (memcmp(&ways[i].way, &way->way, sizeof way->way) == 0) return 0;
  return 1;
}

/* First among ways that do not split k, then among all, of which the split ones are made whole. */
static tl_status list_under(tl_gemm_library *library, const tl_gemm_problem *p, uint32_t reductions,
                            tl_gemm_way *out, int32_t *count) {
  const tl_cublaslt_api *api = library->api;
  const uint64_t room = TL_CUDA_SCRATCH_BYTES;
  tl_cublaslt_found found[FOUND_MAX];
  void *wish = NULL;
  int all = 0;
  TL_TRY(tl_cublaslt_check(api->wish_make(&wish), "preferences"));
  int error = api->wish_set(wish, TL_CUBLASLT_WISH_WORKSPACE, &room, sizeof room);
  if (error == 0)
    error = api->wish_set(wish, TL_CUBLASLT_WISH_REDUCTIONS, &reductions, sizeof reductions);
  const tl_status status = tl_cublaslt_check(error, "preferences");
  /* An error of the list itself says that there is none. */
  if (status == TL_OK && api->list(library->handle, p->product, p->b, p->a, p->out, p->out, wish,
                                   FOUND_MAX, found, &all) != 0)
    all = 0;
  api->wish_free(wish);
  for (int i = 0; i < all && *count < TL_GEMM_WAYS_MAX; i++) {
    tl_gemm_way way = {.way = found[i].way};
    if (found[i].error == 0 && keep_whole(library, p, &way) && is_new(out, *count, &way))
      out[(*count)++] = way;
  }
  return status;
}

tl_status tl_gemm_library_list(tl_gemm_library *library, const tl_gemm_problem *problem,
                               tl_gemm_way *out, int32_t *count) {
  *count = 0;
  TL_TRY(list_under(library, problem, 0, out, count));
  return list_under(library, problem, UINT32_MAX, out, count);
}

/* The library's kernels begin while the one before them ends; behind a fill they do not. */
static tl_status keep_apart(tl_cuda *cuda, void *room) {
  const tl_cuda_api *api = tl_cuda_calls(cuda);
  return tl_cuda_check(api, api->fill((uint64_t)(uintptr_t)room, 0, 4, tl_cuda_stream(cuda)),
                       "product");
}

tl_status tl_gemm_library_run(tl_gemm_library *library, const tl_gemm_problem *p,
                              const tl_gemm_way *way, const tl_gemm_operands *o) {
  const float one = 1, beta = p->shape.add ? 1 : 0;
  tl_cuda *cuda = library->cuda;
  void *room = cuda == NULL ? NULL : tl_cuda_scratch(cuda);
  if (p->shape.parts > 1) TL_TRY(set_steps(library, p, o));
  if (cuda != NULL && tl_cuda_apart(cuda)) TL_TRY(keep_apart(cuda, room));
  return tl_cublaslt_check(
      library->api->multiply(library->handle, p->product, &one, o->b, p->b, o->a, p->a, &beta,
                             o->out, p->out, o->out, p->out, &way->way, room,
                             cuda == NULL ? 0 : TL_CUDA_SCRATCH_BYTES,
                             cuda == NULL ? NULL : tl_cuda_stream(cuda)),
      "product");
}
