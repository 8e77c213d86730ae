/* attention_cuda.c - launches attention on a GPU: attention.cu, attention_grad.cu,
** attention_grad_key.cu and their f32 twins.
**
** A kernel is chosen by the width of the heads and the length of blocks. Entries of cu_seqlens lie
** on the GPU and are not checked here: who makes them (the data source, position by position)
** does. Scratch holds lse and delta of every query row of a launch, then leaves that wait for a
** partner; heads go in several launches when there is no room for all.
*/
#include "../../runtime/cuda.h"
#include "attention_args.h"
#include "attention_call.h"
#include "attention_hopper.h"

/* A kernel for heads of up to `width`. */
typedef struct variant {
  const char *name;
  int32_t width, chunk, rows;
  uint32_t threads;
} variant;

#define BF16(prefix, w, c, warps) \
  { prefix, w, c, 16 * (warps), 32 * (warps) }
#define F32(prefix, w, c) \
  { prefix, w, c, TL_ATTENTION_F32_ROWS, TL_ATTENTION_F32_THREADS }
#define END \
  { NULL, 0, 0, 0, 0 }

#define ROW(w, c, warps) BF16("attention_bf16_" #w "_" #c, w, c, warps),
static const variant forward_bf16[] = {TL_ATTENTION_BF16(ROW) END};
#undef ROW
#define ROW(w, c, warps) BF16("attention_grad_query_bf16_" #w, w, c, warps),
static const variant query_bf16[] = {TL_ATTENTION_GRAD_QUERY_BF16(ROW) END};
#undef ROW
#define ROW(w, c, warps) BF16("attention_grad_key_bf16_" #w, w, c, warps),
static const variant key_bf16[] = {TL_ATTENTION_GRAD_KEY_BF16(ROW) END};
#undef ROW
#define ROW(w, c) F32("attention_f32_" #w "_" #c, w, c),
static const variant forward_f32[] = {TL_ATTENTION_F32(ROW) END};
#undef ROW
#define ROW(w, c) F32("attention_grad_query_f32_" #w, w, c),
static const variant query_f32[] = {TL_ATTENTION_GRAD_F32(ROW) END};
#undef ROW
#define ROW(w, c) F32("attention_grad_key_f32_" #w, w, c),
static const variant key_f32[] = {TL_ATTENTION_GRAD_F32(ROW) END};
#undef ROW

enum {
  ROWS_MAX = INT32_MAX - 4096, /* rows and columns past the last one are counted too */
  SUMS_MAX = TL_CUDA_SCRATCH_BYTES / 8
};

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t quotient_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The first that is wide enough; of those, one whose chunk holds a block, or the longest. */
static const variant *choose(const variant *list, const tl_attention_sizes *z) {
  const int64_t width = z->width > z->value_width ? z->width : z->value_width;
  while (list->width < width) list++;
  while (list->chunk < z->kv_block && list[1].width == list->width) list++;
  return list;
}

static tl_attention_matrix matrix_of(const tl_view *view) {
  const int64_t bytes = tl_dtype_bytes(view->dtype), stride = view->shape[1] * view->shape[2];
  return (tl_attention_matrix){
      .data = view->data,
      .stride = stride,
      .width = (int32_t)view->shape[2],
      .bf16 = view->dtype == TL_BF16,
      .aligned = (uintptr_t)view->data % 16 == 0 && view->shape[2] * bytes % 16 == 0};
}

static tl_attention_output output_of(const tl_view *view) {
  const int64_t pair = 2 * tl_dtype_bytes(view->dtype);
  return (tl_attention_output){
      .data = view->data,
      .stride = view->shape[1] * view->shape[2],
      .width = (int32_t)view->shape[2],
      .bf16 = view->dtype == TL_BF16,
      .pairs = view->shape[2] % 2 == 0 && (uintptr_t)view->data % (uintptr_t)pair == 0};
}

static tl_status fill(const tl_call *call, const tl_view *cu, const tl_attention_sizes *z,
                      tl_attention_args *args) {
  if (z->rows > ROWS_MAX)
    return tl_fail(TL_SHAPE, "attention: %lld rows; a GPU kernel takes %d", (long long)z->rows,
                   ROWS_MAX);
  *args = (tl_attention_args){
      .q = matrix_of(&call->in[0]),
      .k = matrix_of(&call->in[1]),
      .v = matrix_of(&call->in[2]),
      .cu = cu->data,
      .rows = (int32_t)z->rows,
      .segments = (int32_t)z->segments,
      .heads = (int32_t)z->heads,
      .group = (int32_t)(z->heads / z->kv_heads),
      .head_count = (int32_t)z->heads,
      .window = (int32_t)(z->window > 0 ? least(z->window, z->rows) : z->rows),
      .kv_block = (int32_t)z->kv_block,
      .split = (int32_t)least(z->split, INT32_MAX / z->kv_block * z->kv_block),
      .factor = z->factor,
      .scale = z->scale,
  };
  return TL_OK;
}

/* Bytes of shared memory of the forward pass. O of earlier parts stands last, where there may be
** several parts. */
static uint32_t forward_shared(const variant *v, const tl_attention_sizes *z) {
  const int64_t kept = z->rows > z->split ? (int64_t)v->rows * v->width * 4 : 0;
  if (z->dtype == TL_BF16)
    return (uint32_t)((v->rows + 2 * v->chunk) * TL_ATTENTION_PITCH(v->width) + kept);
  return (uint32_t)(4 * (TL_ATTENTION_F32_STAGE(v->width, v->chunk) +
                         v->chunk * TL_ATTENTION_F32_PITCH) +
                    kept);
}

/* Of own rows, twice, and a chunk of the stream, twice, each with `sums` bytes a row. */
static uint32_t gradient_shared(const variant *v, const tl_attention_sizes *z, int32_t weights,
                                int32_t sums) {
  const int32_t pitch = TL_ATTENTION_PITCH(v->width);
  if (z->dtype == TL_BF16)
    return (uint32_t)(2 * v->rows * pitch + 2 * v->chunk * (2 * pitch + sums));
  return 4u * (uint32_t)(TL_ATTENTION_F32_STAGE(v->width, v->chunk) +
                         weights * v->chunk * TL_ATTENTION_F32_PITCH);
}

static tl_status launch(const tl_call *call, const variant *v, int64_t blocks, uint32_t kinds,
                        uint32_t shared, const tl_attention_args *args) {
  if (blocks > INT32_MAX)
    return tl_fail(TL_SHAPE, "attention: %lld tiles; a GPU kernel takes %d", (long long)blocks,
                   INT32_MAX);
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)blocks, kinds},
        .threads = {v->threads               },
        .shared = shared
  };
  return blocks == 0 ? TL_OK : tl_cuda_launch(call->cuda, v->name, &grid, args);
}

tl_status tl_cuda_attention(const tl_call *call) {
  tl_attention_sizes z;
  tl_attention_args args;
  int on_hopper = 0;
  TL_TRY(tl_attention_describe(call, &call->in[3], &z));
  TL_TRY(tl_attention_check_forward(call, &z));
  TL_TRY(fill(call, &call->in[3], &z, &args));
  args.out = output_of(&call->out[0]);
  args.lse = call->out[1].data;
  TL_TRY(tl_attention_hopper_runs(call, &z, &args, &on_hopper));
  if (on_hopper) return tl_attention_hopper(call, &z, &args);
  const variant *v = choose(z.dtype == TL_BF16 ? forward_bf16 : forward_f32, &z);
  args.tiles = quotient_up(z.rows, v->rows);
  return launch(call, v, args.tiles * z.heads, 1, forward_shared(v, &z), &args);
}

static tl_status launch_sums(const tl_call *call, const tl_attention_args *args) {
  static const variant sums = {"attention_grad_sums", 0, 0, 0, 256};
  int64_t lanes = 1;
  while (lanes * 8 < args->o.width) lanes *= 2;
  return launch(call, &sums, quotient_up((int64_t)args->rows * args->head_count * lanes, 256), 1, 0,
                args);
}

/* lse and delta of the launch's heads, in whole runs of 256 bytes. */
static int64_t sums_floats(const tl_attention_args *args) {
  return quotient_up((int64_t)args->rows * args->head_count * 2, 64) * 64;
}

/* One block for each tile, or as many as have room for the leaves that wait. */
static tl_status launch_key(const tl_call *call, const tl_attention_sizes *z,
                            tl_attention_args *args) {
  const variant *v = choose(z->dtype == TL_BF16 ? key_bf16 : key_f32, z);
  const uint32_t kinds = z->dtype == TL_BF16 && v->width > TL_ATTENTION_BOTH_MAX ? 2 : 1;
  const int64_t sums = sums_floats(args);
  const int64_t room = TL_CUDA_SCRATCH_BYTES / 4 - sums;
  const int64_t each = (int64_t)args->leaves_log * 2 * v->rows * v->width * kinds;
  args->tiles = quotient_up(z->rows, v->rows);
  args->stack = args->sums + sums;
  int64_t blocks = args->tiles * (args->head_count / args->group);
  if (each > 0) blocks = least(blocks, room / each);
  return launch(call, v, blocks, kinds, gradient_shared(v, z, 2, 8), args);
}

static tl_status launch_query(const tl_call *call, const tl_attention_sizes *z,
                              tl_attention_args *args) {
  const variant *v = choose(z->dtype == TL_BF16 ? query_bf16 : query_f32, z);
  args->tiles = quotient_up(z->rows, v->rows);
  return launch(call, v, args->tiles * args->head_count, 1, gradient_shared(v, z, 1, 0), args);
}

/* Query heads that one launch takes, whole groups: half of the scratch is for their sums. */
static tl_status heads_at_once(const tl_attention_sizes *z, int64_t *out) {
  const int64_t group = z->heads / z->kv_heads, each = z->rows * group;
  const int64_t room = each > SUMS_MAX / 2 ? SUMS_MAX * 3 / 4 : SUMS_MAX / 2;
  if (each > room)
    return tl_fail(TL_SHAPE,
                   "attention_grad: %lld rows of %lld query heads to a KV head; a GPU"
                   " takes %lld in all",
                   (long long)z->rows, (long long)group, (long long)room);
  *out = each == 0 ? z->heads : least(z->heads, room / each * group);
  return TL_OK;
}

/* The backward pass of some heads. */
static tl_status launch_heads(const tl_call *call, const tl_attention_sizes *z,
                              tl_attention_args *args) {
  int on_hopper = 0;
  TL_TRY(tl_attention_hopper_runs_grad(call, z, args, &on_hopper));
  TL_TRY(launch_sums(call, args));
  if (on_hopper) {
    void *behind = args->sums + sums_floats(args);
    return tl_attention_hopper_grad(call, z, args, behind, args->first_head == 0);
  }
  TL_TRY(launch_key(call, z, args));
  return launch_query(call, z, args);
}

tl_status tl_cuda_attention_grad(const tl_call *call) {
  const tl_view *in = call->in, *out = call->out;
  tl_attention_sizes z;
  tl_attention_args args;
  int64_t heads = 0;
  TL_TRY(tl_attention_describe(call, &in[6], &z));
  TL_TRY(tl_attention_check_backward(call, &z));
  TL_TRY(fill(call, &in[6], &z, &args));
  TL_TRY(heads_at_once(&z, &heads));
  args.o = matrix_of(&in[3]), args.lse = in[4].data, args.grad = matrix_of(&in[5]);
  args.out = output_of(&out[0]), args.dk = output_of(&out[1]), args.dv = output_of(&out[2]);
  args.sums = tl_cuda_scratch(call->cuda);
  args.dk_scale = call->floats[1];
  args.leaf_heads = (int32_t)(args.group / call->ints[3]);
  while (INT64_C(1) << args.leaves_log < call->ints[3]) args.leaves_log++;
  for (int64_t first = 0; first < z.heads; first += heads) {
    args.first_head = (int32_t)first;
    args.head_count = (int32_t)least(heads, z.heads - first);
    TL_TRY(launch_heads(call, &z, &args));
  }
  return TL_OK;
}
