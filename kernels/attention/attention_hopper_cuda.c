/* attention_hopper_cuda.c - chooses Hopper's kernels of attention and fills their arguments.
**
**   scratch   [sums of the backward pass][list of tiles][state of parts, or leaves that wait]
**
** The list is made on the GPU before each launch (attention_plan): cu_seqlens lies there. The
** copy engine's maps name whole arrays, so they hold for every step of a captured section.
*/
#include "attention_hopper.h"

#include "../../runtime/cuda.h"
#include "attention_hopper_args.h"

/* A kernel for q and k of up to `width`, v of up to `values` channels; `block` keys where that
** matters, else 0; its boxes have `box` rows. */
typedef struct variant {
  const char *name;
  int32_t width, values, block, box;
  uint32_t shared;
} variant;

#define ROW(name, w, v, b, k_slots, v_slots) \
  {"attention_wgmma_" #name "_" #b,          \
   w,                                        \
   v,                                        \
   b,                                        \
   b,                                        \
   TL_ATTENTION_WGMMA_SHARED(w, v, b, k_slots, v_slots)},
static const variant forward[] = {
    TL_ATTENTION_WGMMA(ROW){NULL, 0, 0, 0, 0, 0}
};
#undef ROW
#define ROW(w, step, slots)          \
  {"attention_grad_query_wgmma_" #w, \
   w,                                \
   w,                                \
   0,                                \
   step,                             \
   TL_ATTENTION_GRAD_SHARED(TL_ATTENTION_TILE, w, step, slots)},
static const variant query[] = {
    TL_ATTENTION_GRAD_QUERY_WGMMA(ROW){NULL, 0, 0, 0, 0, 0}
};
#undef ROW
#define KEY(own, w, step, slots) \
  {"attention_grad_key_wgmma_" #w, w, w, 0, step, TL_ATTENTION_GRAD_SHARED(own, w, step, slots)},
#define ROW(w, step, slots) KEY(TL_ATTENTION_TILE, w, step, slots)
#define WIDE(w, step, slots) KEY(TL_ATTENTION_TILE / 2, w, step, slots)
static const variant key[] = {
    TL_ATTENTION_GRAD_KEY_WGMMA(ROW) TL_ATTENTION_GRAD_WIDE_WGMMA(WIDE){NULL, 0, 0, 0, 0, 0}
};
#undef WIDE
#undef ROW
#undef KEY

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first that is wide enough and has blocks of `block` keys; NULL: none. */
static const variant *find(const variant *list, const tl_attention_sizes *z, int64_t block) {
  for (; list->name != NULL; list++)
    if (list->width >= z->width && list->values >= z->value_width && list->block == block)
      return list;
  return NULL;
}

static int is_hopper(const tl_call *call) {
  const tl_cuda_facts *facts = tl_cuda_device(call->cuda);
  return facts->major == 9 && facts->minor == 0;
}

/* Tiles of all segments together: each may end with a part of one. */
static int64_t tiles_max(const tl_attention_sizes *z) {
  return z->rows / TL_ATTENTION_TILE + least(z->segments, z->rows);
}

static int64_t plan_bytes(const tl_attention_sizes *z) {
  const int64_t bytes =
      (int64_t)sizeof(tl_attention_plan) + tiles_max(z) * (int64_t)sizeof(tl_attention_listed);
  return (bytes + 255) / 256 * 256;
}

static uint32_t processors(const tl_call *call) {
  return (uint32_t)tl_cuda_device(call->cuda)->multiprocessors;
}

static int is_whole(const tl_view *view) {
  return (uintptr_t)view->data % 16 == 0 && view->shape[2] % 8 == 0;
}

static int takes_inputs(const tl_call *call, const tl_attention_sizes *z) {
  return is_hopper(call) && z->dtype == TL_BF16 && z->rows > 0 && is_whole(&call->in[0]) &&
         is_whole(&call->in[1]) && is_whole(&call->in[2]) &&
         tiles_max(z) * z->heads < INT32_MAX / 2;
}

static int takes(const tl_call *call, const tl_attention_sizes *z, const tl_attention_args *args) {
  const variant *v = find(forward, z, z->kv_block);
  const int64_t kept = (int64_t)processors(call) * (v ? v->values / 2 + 4 : 0) * 256 * 4;
  return v != NULL && takes_inputs(call, z) && args->out.bf16 && is_whole(&call->out[0]) &&
         plan_bytes(z) + kept <= TL_CUDA_SCRATCH_BYTES;
}

static int takes_grad(const tl_call *call, const tl_attention_sizes *z,
                      const tl_attention_args *args) {
  const int64_t sums = (int64_t)args->rows * args->head_count * 8 + 256;
  const variant *v = find(key, z, 0);
  if (v == NULL) return 0;
  const int64_t stack = args->leaves_log * 2 * TL_ATTENTION_TILE * v->width * 4;
  return takes_inputs(call, z) && is_whole(&call->in[5]) && is_whole(&call->out[0]) &&
         is_whole(&call->out[1]) && is_whole(&call->out[2]) &&
         sums + plan_bytes(z) + stack <= TL_CUDA_SCRATCH_BYTES;
}

/* What blocks.attention.q asks for; unset takes what there is. */
static tl_status runs(const tl_call *call, const tl_attention_sizes *z, int takes, int *out) {
  const int32_t rows = tl_cuda_get_blocks(call->cuda)->attention_rows;
  if (rows != 0 && rows != TL_ATTENTION_PLAIN_ROWS && rows != TL_ATTENTION_TILE)
    return tl_fail(TL_ARGUMENT,
                   "attention: tiles of %d query rows; kernels have %d (mma.sync) and %d (wgmma)",
                   rows, TL_ATTENTION_PLAIN_ROWS, TL_ATTENTION_TILE);
  *out = takes && rows != TL_ATTENTION_PLAIN_ROWS;
  if (takes || rows != TL_ATTENTION_TILE) return TL_OK;
  return tl_fail(TL_ARGUMENT,
                 "attention: tiles of %d query rows are for sm_90 and bf16 (outputs of the forward"
                 " pass too), widths that are multiples of 8 up to 256, in the forward pass blocks"
                 " of 64 keys, up to 128 channels also of 128,"
                 " addresses that are multiples of 16; here: %s, widths %lld and %lld, blocks of"
                 " %lld; tiles of %d take all",
                 TL_ATTENTION_TILE, tl_dtype_name(z->dtype), (long long)z->width,
                 (long long)z->value_width, (long long)z->kv_block, TL_ATTENTION_PLAIN_ROWS);
}

tl_status tl_attention_hopper_runs(const tl_call *call, const tl_attention_sizes *z,
                                   const tl_attention_args *args, int *out) {
  return runs(call, z, takes(call, z, args), out);
}

tl_status tl_attention_hopper_runs_grad(const tl_call *call, const tl_attention_sizes *z,
                                        const tl_attention_args *args, int *out) {
  return runs(call, z, takes_grad(call, z, args), out);
}

/* Boxes of `rows` rows and 64 channels of one head. */
static tl_status map_of(const tl_call *call, const tl_view *view, int32_t rows, const char *name,
                        tl_tensor_map *out) {
  const int64_t heads = view->shape[1], width = view->shape[2];
  const tl_tensor_box box = {
      .data = view->data,
      .dtype = view->dtype,
      .dims = 3,
      .size = {width, heads, view->shape[0]},
      .stride = {1,     width, heads * width },
      .box = {64,    1,     rows          },
  };
  return tl_tensor_map_make(call->cuda, name, &box, out);
}

static tl_status make_maps(const tl_call *call, const variant *v, tl_attention_hopper_args *args) {
  TL_TRY(map_of(call, &call->in[0], v->box, "attention: q", &args->q));
  TL_TRY(map_of(call, &call->in[1], v->box, "attention: k", &args->k));
  TL_TRY(map_of(call, &call->in[2], v->box, "attention: v", &args->v));
  if (call->in_count < 6) return TL_OK;
  return map_of(call, &call->in[5], v->box, "attention_grad: do", &args->grad);
}

static tl_attention_hopper_args with_scratch(const tl_attention_args *args, void *scratch,
                                             const tl_attention_sizes *z) {
  return (tl_attention_hopper_args){
      .g = *args, .plan = scratch, .kept = (float *)((char *)scratch + plan_bytes(z))};
}

static tl_attention_plan_args plan_args(const tl_attention_args *args, tl_attention_plan *plan) {
  return (tl_attention_plan_args){.cu = args->cu,
                                  .segments = args->segments,
                                  .rows = args->rows,
                                  .window = args->window,
                                  .heads = args->heads,
                                  .plan = plan};
}

static void clear_output(const tl_attention_output *out, int32_t at, tl_attention_plan_args *plan) {
  plan->out[at] = out->data;
  plan->row_bytes[at] = out->stride * (out->bf16 ? 2 : 4);
}

/* One block makes the list, the others write rows of no segment. */
static tl_status launch_plan(const tl_call *call, const tl_attention_plan_args *plan) {
  const tl_cuda_grid grid = {.blocks = {plan->out[0] == NULL ? 1 : 65},
                             .threads = {TL_ATTENTION_PLAN_THREADS}};
  return tl_cuda_launch(call->cuda, "attention_plan", &grid, plan);
}

static tl_status launch(const tl_call *call, const variant *v, int64_t blocks,
                        tl_attention_hopper_args *args) {
  TL_TRY(make_maps(call, v, args));
  const tl_cuda_grid grid = {.blocks = {(uint32_t)least(blocks, processors(call))},
                             .threads = {TL_ATTENTION_WGMMA_THREADS},
                             .shared = v->shared};
  return tl_cuda_launch(call->cuda, v->name, &grid, args);
}

tl_status tl_attention_hopper(const tl_call *call, const tl_attention_sizes *z,
                              const tl_attention_args *args) {
  tl_attention_hopper_args filled = with_scratch(args, tl_cuda_scratch(call->cuda), z);
  tl_attention_plan_args plan = plan_args(args, filled.plan);
  clear_output(&args->out, 0, &plan);
  plan.lse = args->lse;
  TL_TRY(launch_plan(call, &plan));
  return launch(call, find(forward, z, z->kv_block), tiles_max(z) * z->heads, &filled);
}

/* As many blocks as have room for the leaves that wait. */
static tl_status launch_key(const tl_call *call, const tl_attention_sizes *z,
                            tl_attention_hopper_args *args, int is_first) {
  const variant *v = find(key, z, 0);
  const int64_t each = args->g.leaves_log * 2 * TL_ATTENTION_TILE * v->width;
  const int64_t room =
      (float *)((char *)tl_cuda_scratch(call->cuda) + TL_CUDA_SCRATCH_BYTES) - args->kept;
  int64_t blocks = tiles_max(z) * (args->g.head_count / args->g.group);
  tl_attention_plan_args plan = plan_args(&args->g, args->plan);
  plan.by_key = 1;
  if (is_first) {
    clear_output(&args->g.dk, 0, &plan);
    clear_output(&args->g.dv, 1, &plan);
  }
  args->g.stack = args->kept;
  if (each > 0) blocks = least(blocks, room / each);
  TL_TRY(launch_plan(call, &plan));
  return launch(call, v, blocks, args);
}

tl_status tl_attention_hopper_grad(const tl_call *call, const tl_attention_sizes *z,
                                   const tl_attention_args *args, void *scratch, int is_first) {
  tl_attention_hopper_args filled = with_scratch(args, scratch, z);
  TL_TRY(launch_key(call, z, &filled, is_first));
  tl_attention_plan_args plan = plan_args(args, filled.plan);
  if (is_first) clear_output(&args->out, 0, &plan);
  TL_TRY(launch_plan(call, &plan));
  return launch(call, find(query, z, 0), tiles_max(z) * args->head_count, &filled);
}
