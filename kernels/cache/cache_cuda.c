/* cache_cuda.c - launches the kernels of the cache. */
#include "../launch_cuda.h"
#include "cache.h"
#include "../math.h"
#include "cache_args.h"
#include "cache_cuda.h"
#include "cache_hopper_args.h"
#include "cache_prompt_args.h"

enum {
  WARP_ROWS = 16,  /* of a step in which a warp has a row and a KV head */
  MANY_ROWS = 512, /* of one that is not for decoding alone; blocks.attention.q: all are */
  BOX = 64,        /* positions and channels of a box of cache_hopper.cu */
  MULTIPROCESSOR = 228 << 10, /* bytes of shared memory, of which every block takes some more */
  RESERVED = 1 << 10
};

/* A kernel for heads of up to `width`, `chunk` keys at a time. */
typedef struct variant {
  const char *name;
  int32_t width, chunk;
  int64_t shared; /* without blocks of keys */
} variant;

#define ROW(w, chunk, slots) \
  {"attention_cached_one_" #w, w, chunk, TL_CACHED_SHARED(w, chunk, slots, 16, 0)},
static const variant one[] = {TL_CACHED_ONE(ROW)};
#undef ROW
#define ROW(w, chunk, slots) \
  {"attention_cached_many_" #w, w, chunk, TL_CACHED_SHARED(w, chunk, slots, TL_CACHED_VECTORS, 0)},
static const variant many[] = {TL_CACHED_MANY(ROW)};
#undef ROW

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static tl_status fill_places(const char *op, const tl_cache_sizes *z, tl_cache_places *out) {
  TL_TRY(tl_expect_range(op, "rows", z->rows, 0, INT32_MAX));
  TL_TRY(tl_expect_range(op, "requests", z->requests, 0, INT32_MAX));
  TL_TRY(tl_expect_range(op, "pages", z->pages, 0, INT32_MAX));
  TL_TRY(tl_expect_range(op, "positions of a request", z->pages_max * z->page, 0, INT32_MAX));
  *out = (tl_cache_places){.request = z->request,
                           .position = z->position,
                           .table = z->table,
                           .rows = (int32_t)z->rows,
                           .requests = (int32_t)z->requests,
                           .pages_max = (int32_t)z->pages_max,
                           .pages = (int32_t)z->pages,
                           .page = (int32_t)z->page,
                           .shift = -1};
  if ((z->page & (z->page - 1)) != 0) return TL_OK;
  while (z->page >> (out->shift + 1) > 0) out->shift++;
  return TL_OK;
}

tl_status tl_cache_write_args_of(const tl_call *call, tl_cache_write_args *out) {
  tl_cache_sizes z;
  TL_TRY(tl_cache_write_check(call, &z));
  *out = (tl_cache_write_args){.k = call->in[0].data,
                               .v = call->in[1].data,
                               .keys = call->out[0].data,
                               .values = call->out[1].data,
                               .bytes = (int32_t)tl_dtype_bytes(z.dtype),
                               .kv_heads = (int32_t)z.kv_heads,
                               .width = (int32_t)z.width,
                               .value_width = (int32_t)z.value_width};
  return fill_places("cache_write", &z, &out->at);
}

tl_status tl_cuda_cache_write(const tl_call *call) {
  tl_cache_write_args k;
  TL_TRY(tl_cache_write_args_of(call, &k));
  const int64_t width = (int64_t)k.kv_heads * (k.width + k.value_width);
  return tl_overlap_threads(call->cuda, k.bytes == 2 ? "cache_write_2" : "cache_write_4",
                            k.at.rows * width, &k);
}

static tl_status launch_f32(tl_cuda *cuda, const tl_cached_args *k) {
  const tl_cuda_grid grid = {.blocks = {(uint32_t)(k->at.rows * k->kv_heads)},
                             .threads = {TL_CACHED_F32_THREADS},
                             .shared = (uint32_t)TL_CACHED_F32_SHARED(k->width, k->kv_block),
                             .overlaps = tl_cuda_device(cuda)->major >= 9};
  return tl_cuda_launch(cuda, "attention_cached_f32", &grid, k);
}

/* Whether cache_hopper.cu is for it: heads, pages and blocks of its boxes, one part, no window. */
static int fits_boxes(const tl_cached_args *k, const tl_cuda_facts *facts) {
  const int64_t most = (int64_t)k->at.pages_max * k->at.page;
  return facts->major == 9 && facts->minor == 0 && k->at.rows >= WARP_ROWS && k->width == BOX &&
         k->value_width == BOX && k->group <= 8 && k->at.shift >= 6 && k->pages_are_shared &&
         k->kv_block == TL_CACHED_HOPPER_KEYS && k->window >= most && k->split >= most &&
         (uintptr_t)k->q % 8 == 0;
}

/* All blocks run at once, and each has as many units as any other, or one less. A block takes its
** share of a multiprocessor's shared memory, as far as boxes fill it: so no multiprocessor gets
** more of them than another because it was free first. */
tl_cached_plan tl_cached_hopper_plan(int64_t units, int64_t multiprocessors) {
  const int64_t blocks = least(units, TL_CACHED_HOPPER_TOGETHER * multiprocessors);
  const int64_t together = (blocks + multiprocessors - 1) / multiprocessors;
  const int64_t share = MULTIPROCESSOR / (together > 0 ? together : 1) - RESERVED;
  const int64_t slots = (share - TL_CACHED_HOPPER_REST) / TL_CACHED_HOPPER_BOX;
  const int64_t depth = least(slots, TL_CACHED_HOPPER_SLOTS);
  return (tl_cached_plan){.blocks = blocks,
                          .shared = depth * TL_CACHED_HOPPER_BOX + TL_CACHED_HOPPER_REST,
                          .depth = (int32_t)depth};
}

/* Maps of boxes of 64 positions, of which the first `seen` are read. */
static tl_status make_maps(tl_cuda *cuda, const tl_cached_args *k, int64_t seen,
                           tl_tensor_map *keys, tl_tensor_map *values) {
  const int64_t page = k->at.page, heads = k->kv_heads, boxes = page / BOX;
  const tl_tensor_box of_keys = {
      .data = k->keys,
      .dtype = TL_BF16,
      .dims = 4,
      .plain = 1,
      .size = {seen, boxes, BOX,  k->at.pages * heads},
      .stride = {1,    BOX,   page, BOX * page         },
      .box = {BOX,  1,     BOX,  1                  }
  };
  const tl_tensor_box of_values = {
      .data = k->values,
      .dtype = TL_BF16,
      .dims = 4,
      .plain = 1,
      .size = {BOX, heads, seen,        k->at.pages * boxes},
      .stride = {1,   BOX,   BOX * heads, BOX * BOX * heads  },
      .box = {BOX, 1,     BOX,         1                  }
  };
  TL_TRY(tl_tensor_map_make(cuda, "map of keys", &of_keys, keys));
  return tl_tensor_map_make(cuda, "map of values", &of_values, values);
}

static tl_status launch_boxes(tl_cuda *cuda, const tl_cached_args *k, int32_t early) {
  const int64_t units = (int64_t)k->at.rows * k->kv_heads;
  const tl_cached_plan plan = tl_cached_hopper_plan(units, tl_cuda_device(cuda)->multiprocessors);
  tl_cached_hopper_args args = {.a = *k,
                                .depth = plan.depth,
                                .spread = plan.blocks <= tl_cuda_device(cuda)->multiprocessors,
                                .early = early && k->ahead};
  for (int32_t i = 0; i < TL_CACHED_HOPPER_MAPS; i++)
    TL_TRY(
        make_maps(cuda, k, (i + 1) * BOX / TL_CACHED_HOPPER_MAPS, &args.keys[i], &args.values[i]));
  const tl_cuda_grid grid = {.blocks = {(uint32_t)plan.blocks},
                             .threads = {TL_CACHED_HOPPER_THREADS},
                             .shared = (uint32_t)plan.shared,
                             .overlaps = 1};
  return tl_cuda_launch(cuda, "attention_cached_hopper_64", &grid, &args);
}

/* Whether cache_prompt_hopper.cu is for it: heads and pages of its boxes, one part, no window. */
static int fits_prompt(const tl_cached_args *k, const tl_cuda_facts *facts) {
  const int64_t most = (int64_t)k->at.pages_max * k->at.page;
  return facts->major == 9 && facts->minor == 0 && k->width == BOX && k->value_width == BOX &&
         k->group <= TL_CACHED_PROMPT_GROUP && k->at.shift >= 6 && k->pages_are_shared &&
         (k->kv_block == BOX || k->kv_block == 2 * BOX) && k->window >= most && k->split >= most &&
         k->at.rows <= TL_CACHED_PROMPT_ROWS && (uintptr_t)k->q % 16 == 0 &&
         (uintptr_t)k->o % 16 == 0;
}

static tl_status launch_prompt(tl_cuda *cuda, const tl_cached_args *k) {
  tl_cached_prompt_args args = {.a = *k};
  args.a.tile = TL_CACHED_PROMPT_PAIRS / k->group;
  const tl_tensor_box queries = {
      .data = k->q,
      .dtype = TL_BF16,
      .dims = 3,
      .size = {BOX, k->heads, k->at.rows             },
      .stride = {1,   BOX,      (int64_t)k->heads * BOX},
      .box = {BOX, k->group, args.a.tile            }
  };
  TL_TRY(tl_tensor_map_make(cuda, "map of queries", &queries, &args.q));
  TL_TRY(make_maps(cuda, k, BOX, &args.keys, &args.values));
  const int64_t units = (int64_t)k->at.rows * k->kv_heads;
  const tl_cuda_grid grid = {
      .blocks = {(uint32_t)least(units, tl_cuda_device(cuda)->multiprocessors)},
      .threads = {TL_CACHED_PROMPT_THREADS},
      .shared = (uint32_t)TL_CACHED_PROMPT_SHARED(k->at.rows),
      .overlaps = 1};
  const char *name =
      k->kv_block == BOX ? "attention_cached_prompt_64_64" : "attention_cached_prompt_64_128";
  return tl_cuda_launch(cuda, name, &grid, &args);
}

/* O of earlier parts waits behind everything else, where there may be several parts. */
static tl_status launch_bf16(tl_cuda *cuda, tl_cached_args *k, int32_t early) {
  const int32_t width = k->width > k->value_width ? k->width : k->value_width;
  const variant *v = many;
  const int32_t are_many = k->at.rows >= MANY_ROWS || tl_cuda_get_blocks(cuda)->attention_rows > 0;
  if (!are_many && fits_boxes(k, tl_cuda_device(cuda))) return launch_boxes(cuda, k, early);
  if (are_many && fits_prompt(k, tl_cuda_device(cuda))) return launch_prompt(cuda, k);
  while (v->width < width) v++;
  if (are_many && k->group <= TL_CACHED_VECTORS / 2 && k->kv_block <= v->chunk)
    k->tile = TL_CACHED_VECTORS / k->group;
  else
    v = &one[v - many];
  const int64_t block = (k->kv_block + v->chunk - 1) / v->chunk * v->chunk;
  int64_t shared = v->shared + TL_CACHED_SCORES(block) - TL_CACHED_SCORES(0) +
                   TL_CACHED_WEIGHTS(block) - TL_CACHED_WEIGHTS(0);
  if (k->tile > 1 && (int64_t)k->at.pages_max * k->at.page > k->split)
    shared += (int64_t)TL_CACHED_VECTORS * v->width * 4;
  const int64_t tiles = (k->at.rows + k->tile - 1) / k->tile;
  const tl_cuda_grid grid = {.blocks = {(uint32_t)(tiles * k->kv_heads)},
                             .threads = {TL_CACHED_THREADS},
                             .shared = (uint32_t)shared,
                             .overlaps = tl_cuda_device(cuda)->major >= 9};
  return tl_cuda_launch(cuda, v->name, &grid, k);
}

tl_status tl_attention_cached_args_of(const tl_call *call, tl_cached_args *out) {
  const tl_view *q = &call->in[0], *keys = &call->in[1], *values = &call->in[2];
  const int64_t window = call->ints[0], block = call->ints[1], split = call->ints[2];
  tl_cache_sizes z;
  TL_TRY(tl_attention_cached_check(call, &z));
  TL_TRY(tl_expect_range("attention_cached", "rows times KV heads", z.rows * z.kv_heads, 0,
                         INT32_MAX));
  const int64_t heads = q->shape[1], most = z.pages_max * z.page;
  *out = (tl_cached_args){
      .q = q->data,
      .keys = keys->data,
      .values = values->data,
      .o = call->out[0].data,
      .heads = (int32_t)heads,
      .kv_heads = (int32_t)z.kv_heads,
      .group = (int32_t)(heads / z.kv_heads),
      .width = (int32_t)z.width,
      .value_width = (int32_t)z.value_width,
      .pages_are_shared = z.page >= 8 && (z.page & (z.page - 1)) == 0 && z.value_width % 8 == 0 &&
                          (uintptr_t)keys->data % 16 == 0 && (uintptr_t)values->data % 16 == 0,
      .o_is_bf16 = call->out[0].dtype == TL_BF16,
      .tile = 1,
      .ahead = (call->ahead >> 3 & 7) == 7,
      .window = (int32_t)(window > 0 && window < most ? window : most),
      .kv_block = (int32_t)block,
      .split = (int32_t)least(split, INT32_MAX / block * block),
      .factor = call->floats[0] * TL_LOG2E,
  };
  return fill_places("attention_cached", &z, &out->at);
}

tl_status tl_cuda_attention_cached(const tl_call *call) {
  tl_cached_args k;
  TL_TRY(tl_attention_cached_args_of(call, &k));
  const int32_t early = (call->ahead >> 1 & 3) == 3;
  return call->in[0].dtype == TL_BF16 ? launch_bf16(call->cuda, &k, early)
                                      : launch_f32(call->cuda, &k);
}
