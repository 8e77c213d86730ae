/* pass_cuda.c - finds the calls that a pass can do, and launches it. */
#include "pass.h"

#include <string.h>

#include "../cache/cache_cuda.h"
#include "../elementwise/elementwise.h"
#include "../elementwise/rope_cuda.h"
#include "../gemm/gemm_few_cuda.h"
#include "../launch_cuda.h"
#include "../norm/norm.h"
#include "pass_boxes.h"
#include "pass_share.h"

enum {
  PRODUCTS_MIN = 4, /* fewer are not worth a launch that takes the whole device */
  WINDOW = 128      /* calls without a meeting */
};

/* The calls that are looked at. */
typedef struct walk {
  const tl_fused_call *calls;
  int32_t count, at;
  int32_t apart; /* first call of the phases since blocks met: they may be at any of these */
  tl_pass_phase *phases;
  int32_t phase_count;
  int64_t mail, mail_most; /* pieces that phases use, that there are */
  int64_t x;               /* bytes of the largest x in shared memory */
  int64_t desk;            /* that attention works on */
  int32_t tasks;           /* of the largest attention */
  int32_t width;           /* of heads */
  int32_t blocks;          /* an even number: two are a cluster */
  tl_cache_places places;  /* of the first attention */
} walk;

static const tl_call *call_at(const walk *w, int32_t at, tl_op op) {
  return at < w->count && w->calls[at].op == op ? &w->calls[at].call : NULL;
}

/* ---- memory ---- */

static int are_apart(const tl_view *a, const tl_view *b) {
  const uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
  return x + (uintptr_t)tl_view_bytes(a) <= y || y + (uintptr_t)tl_view_bytes(b) <= x;
}

static int is_same(const tl_view *a, const tl_view *b) {
  return a->data == b->data && a->dtype == b->dtype && tl_view_count(a) == tl_view_count(b);
}

/* Whether a call before `end` makes this value, from `first` on. */
static int is_made(const walk *w, int32_t first, int32_t end, const tl_view *value) {
  for (int32_t i = first; i < end; i++)
    for (int32_t k = 0; k < w->calls[i].call.out_count; k++)
      if (is_same(&w->calls[i].call.out[k], value)) return 1;
  return 0;
}

static int is_written(const tl_fused_call *f, int32_t output) {
  if (f->op == TL_OP_rms_norm && output == 1) return !f->rstd_is_unread;
  return f->op != TL_OP_rope_rows || !f->only_next_reads;
}

/* Output `output` of call `i` meets nothing else that calls first .. end - 1 read or write. */
static int is_alone(const walk *w, int32_t first, int32_t end, int32_t i, int32_t output) {
  const tl_view *y = &w->calls[i].call.out[output];
  for (int32_t j = first; j < end; j++) {
    const tl_call *c = &w->calls[j].call;
    for (int32_t k = 0; k < c->in_count; k++)
      if (!is_made(w, first, j, &c->in[k]) && !are_apart(y, &c->in[k])) return 0;
    for (int32_t k = 0; k < c->out_count; k++)
      if ((j != i || k != output) && is_written(&w->calls[j], k) && !are_apart(y, &c->out[k]))
        return 0;
  }
  return 1;
}

/* All outputs of calls `from` .. end - 1 are. */
static int are_alone(const walk *w, int32_t first, int32_t from, int32_t end) {
  for (int32_t i = from; i < end; i++)
    for (int32_t k = 0; k < w->calls[i].call.out_count; k++)
      if (is_written(&w->calls[i], k) && !is_alone(w, first, end, i, k)) return 0;
  return 1;
}

/* ---- mail ---- */

/* The piece of the mail where output `output` of call `i` is; -1: it is not sent. */
static int32_t piece_of(const walk *w, int32_t i, int32_t output) {
  const tl_pass_phase *p = &w->phases[w->phase_count - 1];
  while (p->first > i) p--;
  if (w->calls[i].op == TL_OP_cache_write) return output == 0 ? p->to_k : p->to_v;
  if (output != 0) return -1;
  switch (w->calls[i].op) {
    case TL_OP_binary: return p->to_sum;
    case TL_OP_swiglu:
    case TL_OP_attention_cached: return p->to;
    case TL_OP_rope_rows: return w->calls[i + 1].op == TL_OP_rope_rows ? p->to : -1; /* of q */
    case TL_OP_linear: return p->after == TL_PASS_STORE ? p->to : -1;
    default: return -1;
  }
}

/* Whether a call before call `end` writes into this value. */
static int is_touched(const walk *w, int32_t end, const tl_view *value) {
  for (int32_t i = 0; i < end; i++)
    for (int32_t k = 0; k < w->calls[i].call.out_count; k++)
      if (is_written(&w->calls[i], k) && !are_apart(&w->calls[i].call.out[k], value)) return 1;
  return 0;
}

/* Where a phase that begins with call `first` finds a value: a piece of the mail; -1: where it
** lies, after a meeting if an earlier phase writes there. */
static int32_t find_mail(const walk *w, int32_t first, const tl_view *value, tl_pass_phase *p) {
  for (int32_t i = first - 1; i >= 0; i--)
    for (int32_t k = 0; k < w->calls[i].call.out_count; k++) {
      const tl_view *made = &w->calls[i].call.out[k];
      if (!is_written(&w->calls[i], k) || are_apart(made, value)) continue;
      const int32_t fills = w->calls[i].op == TL_OP_cache_write && is_touched(w, i, value);
      const int32_t piece = is_same(made, value) && !fills ? piece_of(w, i, k) : -1;
      if (piece < 0) p->meets = 1;
      return piece;
    }
  return -1;
}

/* Room for `elements` bf16. -1: there is none, and they are not sent. */
static int32_t take_mail(walk *w, int64_t elements) {
  const int64_t piece = w->mail, pieces = (elements + 7) / 8;
  if (piece + pieces > w->mail_most) return -1;
  w->mail += pieces;
  return (int32_t)piece;
}

/* What the phase reads beside x. */
static void find_others(const walk *w, int32_t first, const tl_view *x, const tl_view *a,
                        tl_pass_phase *p) {
  for (int32_t j = first; j < w->at; j++)
    for (int32_t k = 0; k < w->calls[j].call.in_count; k++) {
      const tl_view *value = &w->calls[j].call.in[k];
      if (value->data == NULL || is_made(w, first, j, value)) continue;
      if ((x != NULL && is_same(value, x)) || (a != NULL && is_same(value, a))) continue;
      if (find_mail(w, first, value, p) >= 0) p->meets = 1;
    }
}

static void find_sources(walk *w, int32_t first, tl_pass_phase *p) {
  const tl_call *c = &w->calls[first].call;
  const tl_view *x = &c->in[p->before == TL_PASS_ADD_NORM], *a = &c->in[0];
  p->from = p->from_a = p->from_k = p->from_v = -1;
  if (p->kind == TL_PASS_ATTENTION) {
    p->from = find_mail(w, first, &c->in[0], p);
    p->from_k = find_mail(w, first, &c->in[1], p);
    p->from_v = find_mail(w, first, &c->in[2], p);
    for (int32_t k = 3; k < c->in_count; k++)
      if (find_mail(w, first, &c->in[k], p) >= 0) p->meets = 1;
    return;
  }
  if (p->before != TL_PASS_AS_IT_IS || p->product.x_stride == p->product.depth)
    p->from = find_mail(w, first, x, p);
  if (p->before == TL_PASS_ADD_NORM) p->from_a = find_mail(w, first, a, p);
  find_others(w, first, p->before == TL_PASS_AS_IT_IS && p->from < 0 ? NULL : x,
              p->before == TL_PASS_ADD_NORM ? a : NULL, p);
}

static void find_targets(walk *w, tl_pass_phase *p) {
  const tl_cached_args *o = &p->attention;
  const tl_gemm_few_args *g = &p->product;
  p->to = p->to_k = p->to_v = p->to_sum = -1;
  const int64_t each =
      p->kind == TL_PASS_ATTENTION ? (int64_t)o->heads * o->value_width : (int64_t)g->columns[0];
  const int64_t rows = p->kind == TL_PASS_ATTENTION ? o->at.rows : g->rows;
  const int32_t sends = p->kind == TL_PASS_ATTENTION
                            ? o->o_is_bf16 && o->value_width % 2 == 0
                            : p->after == TL_PASS_SWIGLU || p->after == TL_PASS_ROPE ||
                                  (p->after == TL_PASS_STORE && g->parts == 1 && g->out_is_bf16);
  if (sends && each % 8 == 0) p->to = take_mail(w, rows * each);
  if (p->kind == TL_PASS_LINEAR && p->after == TL_PASS_ROPE) {
    p->to_k = take_mail(w, rows * g->columns[1]);
    p->to_v = take_mail(w, rows * g->columns[2]);
  }
  if (p->kind == TL_PASS_LINEAR && p->before == TL_PASS_ADD_NORM)
    p->to_sum = take_mail(w, g->rows * p->norm.norm.dim);
}

/* ---- what comes before a product ---- */

static void fill_norm(const tl_call *norm, int rstd_is_unread, tl_pass_phase *p) {
  const int64_t dim = tl_view_count(&norm->in[1]);
  p->normed = norm->out[0].data;
  p->norm.norm = (tl_norm_args){.x = tl_array_of(&norm->in[0]),
                                .gain = tl_array_of(&norm->in[1]),
                                .out = tl_array_of(&norm->out[0]),
                                .rstd = rstd_is_unread ? NULL : norm->out[1].data,
                                .rows = tl_view_count(&norm->in[0]) / dim,
                                .dim = dim,
                                .lanes = tl_row_lanes(dim),
                                .eps = norm->floats[0]};
}

static int is_whole(const tl_array *a, int64_t dim) { return tl_whole(a, dim); }

/* Takes [binary] rms_norm. *fits: 0: what begins here is for no product of a pass. */
static tl_status take_before(walk *w, tl_pass_phase *p, int *fits) {
  const tl_call *sum = call_at(w, w->at, TL_OP_binary);
  const tl_call *norm = call_at(w, w->at + (sum != NULL), TL_OP_rms_norm);
  p->before = TL_PASS_AS_IT_IS;
  *fits = sum == NULL || norm != NULL;
  if (norm == NULL) return TL_OK;
  TL_TRY(tl_rms_norm_check(norm));
  fill_norm(norm, w->calls[w->at + (sum != NULL)].rstd_is_unread, p);
  const int64_t dim = p->norm.norm.dim;
  *fits = is_whole(&p->norm.norm.x, dim) && is_whole(&p->norm.norm.out, dim) &&
          p->norm.norm.gain.aligned;
  p->before = TL_PASS_NORM;
  w->at++;
  if (sum == NULL) return TL_OK;
  TL_TRY(tl_binary_check(sum));
  p->before = TL_PASS_ADD_NORM;
  p->norm.a = tl_array_of(&sum->in[0]), p->norm.b = tl_array_of(&sum->in[1]);
  *fits = *fits && sum->ints[0] == 0 && sum->ints[1] == 0 && is_same(&sum->out[0], &norm->in[0]) &&
          is_whole(&p->norm.a, dim) && is_whole(&p->norm.b, dim);
  w->at++;
  return TL_OK;
}

/* ---- the product ---- */

static int has_room(const tl_gemm_few_args *g) {
  if (g->rows > TL_PASS_ROWS || !g->ahead || g->depth % TL_DEVICE_PIECE != 0) return 0;
  for (int32_t i = 0; i < g->parts; i++) {
    if (g->columns[i] % TL_PASS_FEATURES != 0 || g->weight_stride[i] != g->weight_stride[0])
      return 0;
    if ((uintptr_t)g->weight[i] % 16 != 0 || g->weight_stride[i] % 8 != 0) return 0;
    if ((uintptr_t)g->out[i] % (g->out_is_bf16 ? 4 : 8) != 0) return 0;
  }
  return 1;
}

static tl_status take_product(walk *w, tl_pass_phase *p, const tl_call **linear, int *fits) {
  tl_gemm gemm;
  int32_t is_few = 0;
  *fits = 0;
  *linear = call_at(w, w->at, TL_OP_linear);
  if (*linear == NULL) return TL_OK;
  TL_TRY(tl_gemm_of_linear(*linear, &gemm));
  TL_TRY(tl_gemm_few_args_of(&gemm, *linear, &p->product, &is_few));
  if (!is_few || !has_room(&p->product)) return TL_OK;
  tl_gemm_few_args *g = &p->product;
  if (p->before != TL_PASS_AS_IT_IS && (g->x != p->normed || g->depth != p->norm.norm.dim ||
                                        g->rows != p->norm.norm.rows || g->x_stride != g->depth))
    return TL_OK;
  g->run = g->depth / g->leaves, g->tiles = 0;
  while (1 << p->leaves_log < g->leaves) p->leaves_log++;
  for (int32_t i = 0; i < g->parts; i++) {
    g->first_tile[i] = g->tiles;
    g->tiles += g->columns[i] / TL_PASS_FEATURES;
  }
  *fits = 1;
  w->at++;
  return TL_OK;
}

/* ---- what comes after it ---- */

static int fits_rope(const tl_call *linear, const tl_fused_call *f, const tl_pass_phase *p,
                     const tl_rope_args *q, const tl_rope_args *k) {
  const tl_cache_write_args *write = &p->write;
  const tl_call *c = &f[2].call;
  if (!f[1].only_next_reads || p->product.parts != 3 || !p->product.out_is_bf16) return 0;
  if (!is_same(&f[0].call.in[0], &linear->out[0]) || !is_same(&f[1].call.in[0], &linear->out[1]))
    return 0;
  if (!is_same(&c->in[0], &f[1].call.out[0]) || !is_same(&c->in[1], &linear->out[2])) return 0;
  if (q->placed != write->at.position || k->placed != q->placed) return 0;
  if (q->table.data != k->table.data || q->positions > INT32_MAX || q->interleaved ||
      k->interleaved || q->sign < 0.0f || k->sign < 0.0f)
    return 0;
  if (q->pairs != k->pairs || q->channels != 2 * q->pairs || k->channels != q->channels) return 0;
  return q->pairs % 4 == 0 && q->y.bf16 && write->bytes == 2 && write->width == q->channels &&
         write->value_width % 2 == 0 && (uintptr_t)write->values % 4 == 0;
}

static tl_status take_rope(walk *w, const tl_call *linear, tl_pass_phase *p, int *fits) {
  const tl_fused_call *f = w->calls + w->at;
  tl_rope_args q, k;
  *fits = 0;
  if (call_at(w, w->at + 1, TL_OP_rope_rows) == NULL ||
      call_at(w, w->at + 2, TL_OP_cache_write) == NULL)
    return TL_OK;
  TL_TRY(tl_rope_rows_check(&f[0].call));
  TL_TRY(tl_rope_rows_check(&f[1].call));
  tl_rope_rows_args(&f[0].call, &q);
  tl_rope_rows_args(&f[1].call, &k);
  TL_TRY(tl_cache_write_args_of(&f[2].call, &p->write));
  if (!fits_rope(linear, f, p, &q, &k)) return TL_OK;
  p->after = TL_PASS_ROPE;
  const uint64_t quads = (uint64_t)q.pairs / 4;
  if (quads > 1) p->half_inverse = (uint32_t)((((uint64_t)1 << 32) + quads - 1) / quads);
  p->half = (int32_t)q.pairs, p->positions = (int32_t)q.positions;
  p->angles = q.table.data, p->turned = q.y.data;
  w->at += 3;
  *fits = 1;
  return TL_OK;
}

static tl_status take_after(walk *w, const tl_call *linear, tl_pass_phase *p, int *fits) {
  const tl_call *gate = call_at(w, w->at, TL_OP_swiglu);
  tl_gemm_few_args *g = &p->product;
  p->after = TL_PASS_STORE;
  *fits = 1;
  if (call_at(w, w->at, TL_OP_rope_rows) != NULL) return take_rope(w, linear, p, fits);
  if (gate == NULL) return TL_OK;
  *fits = g->parts == 2 && g->columns[0] == g->columns[1] && g->out_is_bf16 &&
          is_same(&gate->in[0], &linear->out[0]) && is_same(&gate->in[1], &linear->out[1]) &&
          gate->out[0].dtype == TL_BF16;
  if (!*fits) return TL_OK;
  p->after = TL_PASS_SWIGLU;
  p->gated = gate->out[0].data;
  g->tiles = g->columns[0] / 4;
  w->at++;
  return TL_OK;
}

/* ---- phases ---- */

/* A row and KV head, a unit, is cut into so many tasks that a quarter of the blocks has one. */
static int32_t shares_of(const walk *w, int64_t units) {
  const int64_t most = w->blocks / 4;
  return units * 4 <= most ? 2 : units * 2 <= most ? 1 : 0;
}
/* Blocks that attend next and shall not multiply: there are others. */
static int32_t spare_blocks(const walk *w, const tl_pass_phase *p) {
  const int64_t units = (int64_t)p->product.rows * p->write.kv_heads;
  const int64_t tasks = ((units << shares_of(w, units)) + 1) / 2 * 2; /* both of a pair */
  if (p->after != TL_PASS_ROPE || call_at(w, w->at, TL_OP_attention_cached) == NULL) return 0;
  return tasks <= w->blocks / 4 ? (int32_t)tasks : 0;
}

/* Blocks that have something to do in an attention, as far as there are so many. */
static int32_t tasks_of(const tl_pass_phase *p) {
  return p->attention.at.rows * p->attention.kv_heads << p->shares_log;
}

static tl_status take_attention(walk *w, tl_pass_phase *p, int *fits) {
  const tl_call *call = call_at(w, w->at, TL_OP_attention_cached);
  *fits = 0;
  if (call == NULL || call->in[0].dtype != TL_BF16) return TL_OK;
  p->kind = TL_PASS_ATTENTION;
  TL_TRY(tl_attention_cached_args_of(call, &p->attention));
  const tl_cached_args *g = &p->attention;
  const int32_t width = g->width > g->value_width ? g->width : g->value_width;
  if (g->at.rows > TL_PASS_ROWS || width > TL_PASS_WIDTH || g->kv_block != TL_PASS_KEYS ||
      !g->pages_are_shared || !g->o_is_bf16 || g->width % 8 != 0 || (uintptr_t)g->q % 16 != 0)
    return TL_OK;
  p->shares_log = shares_of(w, (int64_t)g->at.rows * g->kv_heads);
  if (w->tasks < tasks_of(p)) w->tasks = tasks_of(p);
  const int64_t desk = TL_PASS_DESK + (TL_PASS_VALUES >> p->shares_log);
  if (w->desk < desk) w->desk = desk;
  if (w->width == 0) w->places = g->at;
  if (w->width < width) w->width = width;
  *fits = w->places.request == g->at.request && w->places.position == g->at.position &&
          w->places.table == g->at.table;
  w->at++;
  return TL_OK;
}

static tl_status take_linear(walk *w, tl_pass_phase *p, int *fits) {
  const tl_call *linear = NULL;
  p->kind = TL_PASS_LINEAR;
  TL_TRY(take_before(w, p, fits));
  if (*fits) TL_TRY(take_product(w, p, &linear, fits));
  if (*fits) TL_TRY(take_after(w, linear, p, fits));
  if (!*fits) return TL_OK;
  p->spared = spare_blocks(w, p);
  if (w->phase_count > 0 && p[-1].kind == TL_PASS_ATTENTION) p->behind = tasks_of(p - 1);
  return TL_OK;
}

/* The sum that begins phase p is left to the phase before, which makes one of its terms: no block
** then has to read both. What a meeting would be for stays as it is. */
static void add_before(walk *w, tl_pass_phase *p) {
  tl_pass_phase *q = p - 1;
  if (w->phase_count < 1 || p->kind != TL_PASS_LINEAR || p->before != TL_PASS_ADD_NORM || p->meets)
    return;
  if (q->kind != TL_PASS_LINEAR || q->after != TL_PASS_STORE || q->to < 0 || q->to != p->from)
    return;
  q->after = TL_PASS_ADD;
  q->from_other = p->from_a, q->other = p->norm.a.data, q->summed = p->norm.norm.x.data;
  p->before = TL_PASS_NORM, p->from_a = -1;
}

/* The next phase, if there is one; else w->at is what it was. */
static tl_status take_phase(walk *w, tl_pass_phase *p, int *fits) {
  const int32_t first = w->at;
  memset(p, 0, sizeof *p);
  if (call_at(w, first, TL_OP_attention_cached) != NULL) {
    TL_TRY(take_attention(w, p, fits));
  } else {
    TL_TRY(take_linear(w, p, fits));
  }
  *fits = *fits && are_alone(w, first, first, w->at);
  if (!*fits) {
    w->at = first;
    return TL_OK;
  }
  p->first = first;
  find_sources(w, first, p);
  if (w->at - w->apart > WINDOW || !are_alone(w, w->apart, first, w->at)) p->meets = 1;
  if (first == 0) p->meets = 0;
  add_before(w, p);
  if (p->meets) w->apart = first;
  if (p->meets) w->phases[w->phase_count - 1].next_meets = 1;
  find_targets(w, p);
  if (p->kind == TL_PASS_LINEAR && p->before == TL_PASS_NORM && w->phase_count > 0 &&
      p[-1].after == TL_PASS_ADD)
    p->to_sum = p[-1].to;
  w->phase_count++;
  return TL_OK;
}

/* Slots of a ring that leaves `rest` bytes for x and for what attention works on; *bytes: all that
** a block takes then, if that is more. */
static int32_t slots_beside(const tl_cuda_facts *facts, const tl_pass *pass, int64_t rest,
                            uint32_t *bytes) {
  rest = (rest + 15) / 16 * 16 + TL_PASS_APART_BY;
  int64_t slots = (facts->shared_max - TL_PASS_ROOM - rest) / pass->args.slot;
  if (slots > TL_PASS_SLOTS_MOST) slots = TL_PASS_SLOTS_MOST;
  if (pass->args.boxed) slots -= slots % 2; /* two pairs of warps share them */
  const int64_t all = slots * pass->args.slot + TL_PASS_ROOM + rest;
  if (*bytes < all) *bytes = (uint32_t)all;
  return (int32_t)slots;
}

/* One row goes through a kernel of its own where each leaf is whole pairs of steps. */
static int is_woven(const walk *w) {
  int woven = w->places.rows == 1;
  for (const tl_pass_phase *p = w->phases; p < w->phases + w->phase_count; p++)
    if (p->kind == TL_PASS_LINEAR)
      woven = woven && p->product.rows == 1 && p->product.run % TL_PASS_WEAVE == 0;
  return woven;
}

/* A kernel, and what of a block's memory is left for the ring: more where none attends. */
static int choose_kernel(const walk *w, const tl_cuda_facts *facts, tl_pass *out) {
  out->args.boxed = tl_pass_has_boxes(w->phases, w->phase_count);
  out->args.slot = out->args.boxed ? TL_PASS_BOXES : TL_PASS_SLOT;
  out->args.attending = w->tasks < w->blocks ? w->tasks : w->blocks;
  out->args.slots = slots_beside(facts, out, w->x < w->desk ? w->desk : w->x, &out->shared);
  out->args.slots_else = slots_beside(facts, out, w->x, &out->shared);
  if (out->args.slots < TL_PASS_SLOTS_MIN) return 0;
  out->args.calm = out->args.rows < 2 ? 8 : out->args.rows < 4 ? 4 : 2, out->args.hurried = 8;
  out->kernel = is_woven(w) ? "pass_one_64" : "pass_few_64";
  return 1;
}

int32_t tl_pass_begins(tl_op op) { return op == TL_OP_binary || op == TL_OP_rms_norm; }

int64_t tl_pass_mail(tl_op op, const tl_view *output) {
  const int sends = op == TL_OP_binary || op == TL_OP_linear || op == TL_OP_swiglu ||
                    op == TL_OP_attention_cached;
  if (!sends || output->shape[0] > TL_PASS_ROWS) return 0;
  return (tl_view_bytes(output) + TL_PASS_PIECE - 1) / TL_PASS_PIECE * TL_PASS_PIECE;
}

tl_status tl_pass_find(const tl_fused_call *calls, int32_t count, int64_t mail,
                       tl_pass_phase *phases, tl_tensor_map *maps, tl_pass *out) {
  const tl_cuda_facts *facts = count > 0 ? tl_cuda_device(calls[0].call.cuda) : NULL;
  *out = (tl_pass){0};
  if (facts == NULL || facts->major != 9 || facts->minor != 0) return TL_OK;
  walk w = {.calls = calls,
            .count = count,
            .blocks = facts->multiprocessors / 2 * 2,
            .phases = phases,
            .mail_most = mail / TL_PASS_PIECE};
  int32_t products = 0;
  for (int fits = 1; fits && w.at < count;) {
    TL_TRY(take_phase(&w, &phases[w.phase_count], &fits));
    if (fits) products += phases[w.phase_count - 1].kind == TL_PASS_LINEAR;
  }
  if (products < PRODUCTS_MIN || w.width == 0) return TL_OK;
  tl_pass_share_out(phases, w.phase_count, w.blocks, &w.x);
  out->args.count = w.phase_count;
  out->args.rows = w.places.rows;
  if (!choose_kernel(&w, facts, out)) return TL_OK;
  out->args.mail_used = (int32_t)w.mail;
  out->args.at = w.places;
  for (int32_t i = 0; out->args.boxed && i < w.phase_count; i++)
    TL_TRY(tl_pass_maps(calls[0].call.cuda, &phases[i], &maps[i * TL_GEMM_FEW_PARTS]));
  out->taken = w.at;
  return TL_OK;
}

tl_status tl_pass_launch(tl_cuda *cuda, const tl_pass *pass) {
  const tl_cuda_grid grid = {.blocks = {(uint32_t)tl_cuda_device(cuda)->multiprocessors / 2 * 2},
                             .threads = {TL_PASS_THREADS},
                             .shared = pass->shared,
                             .together = 2};
  return tl_cuda_launch(cuda, pass->kernel, &grid, &pass->args);
}
