/* fused_cuda.c - finds calls that one kernel of fused.h can do, and launches it. */
#include "fused.h"

#include "../cache/cache.h"
#include "../cache/cache_cuda.h"
#include "../elementwise/elementwise.h"
#include "../elementwise/rope_cuda.h"
#include "../embedding/embedding.h"
#include "../gemm/gemm_hopper.h"
#include "../launch_cuda.h"
#include "../loss/loss.h"
#include "../norm/norm.h"
#include "../sampling/sampling.h"
#include "fused_args.h"

/* Whether the memory of two views has no byte in common. */
static int are_apart(const tl_view *a, const tl_view *b) {
  const uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
  return x + (uintptr_t)tl_view_bytes(a) <= y || y + (uintptr_t)tl_view_bytes(b) <= x;
}

/* Or is the same, element by element. */
static int may_meet(const tl_view *out, const tl_view *in) {
  return are_apart(out, in) || (out->data == in->data && out->dtype == in->dtype &&
                                tl_view_count(out) == tl_view_count(in));
}

static int is_same(const tl_view *a, const tl_view *b) {
  return a->data == b->data && a->dtype == b->dtype && tl_view_count(a) == tl_view_count(b);
}

/* ---- a sum and its norm ---- */

static int fits_add_norm(const tl_fused_call *f, int32_t count) {
  if (count < 2 || f[0].op != TL_OP_binary || f[1].op != TL_OP_rms_norm) return 0;
  const tl_call *sum = &f[0].call, *norm = &f[1].call;
  if (sum->ints[0] != 0 || sum->ints[1] != 0 || !is_same(&sum->out[0], &norm->in[0])) return 0;
  for (int32_t i = 0; i < 2; i++) {
    if (!may_meet(&norm->out[0], &sum->in[i]) || !may_meet(&sum->out[0], &sum->in[i])) return 0;
    if (!f[1].rstd_is_unread && !are_apart(&norm->out[1], &sum->in[i])) return 0;
  }
  return are_apart(&norm->out[0], &sum->out[0]) && are_apart(&sum->out[0], &norm->in[1]);
}

static tl_norm_args norm_args_of(const tl_fused_call *f) {
  const tl_call *norm = &f->call;
  const int64_t dim = tl_view_count(&norm->in[1]);
  return (tl_norm_args){.x = tl_array_of(&norm->in[0]),
                        .gain = tl_array_of(&norm->in[1]),
                        .out = tl_array_of(&norm->out[0]),
                        .rstd = f->rstd_is_unread ? NULL : norm->out[1].data,
                        .rows = tl_view_count(&norm->in[0]) / dim,
                        .dim = dim,
                        .lanes = tl_row_lanes(dim),
                        .eps = norm->floats[0]};
}

static tl_status launch_add_norm(const tl_fused_call *f) {
  const tl_call *sum = &f[0].call, *norm = &f[1].call;
  TL_TRY(tl_binary_check(sum));
  TL_TRY(tl_rms_norm_check(norm));
  const tl_fused_norm_args k = {
      .sum = {.a = tl_array_of(&sum->in[0]),
              .b = tl_array_of(&sum->in[1]),
              .norm = norm_args_of(&f[1])},
      .ahead = norm->ahead >> 1 & 1
  };
  const tl_norm_args *a = &k.sum.norm;
  const int64_t dim = a->dim;
  if (a->rows >= TL_FUSED_ROWS && dim <= TL_DEVICE_PARTIALS && tl_whole(&k.sum.a, dim) &&
      tl_whole(&k.sum.b, dim) && tl_whole(&a->x, dim) && tl_whole(&a->out, dim))
    return tl_overlap_threads(
        sum->cuda, dim <= TL_DEVICE_PARTIALS / 2 ? "fused_add_norm_1024" : "fused_add_norm_2048",
        a->rows * TL_DEVICE_WARP, &k);
  return tl_overlap_threads(sum->cuda, "fused_add_norm", a->rows * a->lanes, &k);
}

/* ---- a linear of several leaves, its sum with another tensor, and the norm of that ---- */

static int fits_leaves(const tl_fused_call *f, int32_t count) {
  if (count < 3 || f[0].op != TL_OP_linear || !f[0].only_next_reads) return 0;
  const tl_call *made = &f[0].call, *sum = &f[1].call;
  if (made->out_count != 1 || made->in_count != 2 || !fits_add_norm(f + 1, count - 1)) return 0;
  return is_same(&made->out[0], &sum->in[0]) != is_same(&made->out[0], &sum->in[1]);
}

static const char *leaves_norm_of(int64_t leaves) {
  return leaves == 2   ? "fused_leaves_norm_2"
         : leaves == 4 ? "fused_leaves_norm_4"
                       : "fused_leaves_norm_8";
}

static tl_status launch_leaves(const tl_fused_call *f, int32_t *done) {
  const tl_call *made = &f[0].call, *sum = &f[1].call, *norm = &f[2].call;
  const tl_view *other = &sum->in[is_same(&made->out[0], &sum->in[0])];
  tl_gemm gemm;
  *done = 0;
  TL_TRY(tl_gemm_of_linear(made, &gemm));
  TL_TRY(tl_binary_check(sum));
  TL_TRY(tl_rms_norm_check(norm));
  const int64_t dim = tl_view_count(&norm->in[1]);
  const tl_array others = tl_array_of(other);
  const tl_leaves_norm_args k = {.sums = tl_cuda_scratch(made->cuda),
                                 .other = other->data,
                                 .norm = norm_args_of(&f[2]),
                                 .ahead = norm->ahead >> 1 & 1,
                                 .part = (dim & (dim - 1)) == 0 ? 1.0f / (float)dim : 0.0f};
  if (made->out[0].dtype != TL_BF16 || tl_view_row(&made->out[0]) != dim) return TL_OK;
  if (!tl_whole(&others, dim) || !tl_whole(&k.norm.x, dim) || !tl_whole(&k.norm.out, dim))
    return TL_OK;
  TL_TRY(tl_gemm_hopper_leaves(&gemm, tl_cuda_scratch(made->cuda), made->cuda, done));
  if (!*done) return TL_OK;
  *done = 3;
  return tl_overlap_threads(made->cuda, leaves_norm_of(gemm.leaves), k.norm.rows * k.norm.lanes,
                            &k);
}

/* ---- rope of q and k, and the pages ---- */

static int fits_rope_write(const tl_fused_call *f, int32_t count) {
  if (count < 3 || f[0].op != TL_OP_rope_rows || f[1].op != TL_OP_rope_rows) return 0;
  if (f[2].op != TL_OP_cache_write || !f[1].only_next_reads) return 0;
  const tl_call *q = &f[0].call, *k = &f[1].call, *write = &f[2].call;
  if (!is_same(&k->out[0], &write->in[0])) return 0;
  if (q->in[1].data != k->in[1].data || k->in[1].data != write->in[3].data) return 0;
  for (int32_t i = 0; i < 2; i++) {
    if (!may_meet(&q->out[0], &q->in[0]) || !are_apart(&q->out[0], &write->in[1])) return 0;
    if (!are_apart(&write->out[i], &k->in[0]) || !are_apart(&write->out[i], &q->in[0])) return 0;
  }
  return are_apart(&q->out[0], &k->in[0]);
}

static tl_status rope_write_args(const tl_fused_call *f, tl_rope_write_args *k) {
  TL_TRY(tl_rope_rows_check(&f[0].call));
  TL_TRY(tl_rope_rows_check(&f[1].call));
  tl_rope_rows_args(&f[0].call, &k->q);
  tl_rope_rows_args(&f[1].call, &k->k);
  TL_TRY(tl_cache_write_args_of(&f[2].call, &k->write));
  const tl_cache_write_args *w = &k->write;
  k->wide = (uintptr_t)w->v % 16 == 0 && (uintptr_t)w->values % 16 == 0 &&
            (int64_t)w->kv_heads * w->value_width * w->bytes % 16 == 0;
  k->ahead = (f[2].call.ahead >> 2 & 7) == 7 && f[0].call.ahead >> 2 & f[1].call.ahead >> 2 & 1;
  return TL_OK;
}

enum { HEAD = 64 };

static int turns_halves(const tl_rope_args *r) {
  return !r->interleaved && r->channels == HEAD && 2 * r->pairs == HEAD && !r->table.bf16 &&
         r->table.aligned;
}

/* Whether a warp may have a row: whole pieces, one table. */
static int fits_rope_rows(const tl_rope_write_args *k) {
  const tl_rope_args *q = &k->q;
  const tl_cache_write_args *w = &k->write;
  return w->at.rows >= TL_FUSED_ROWS && turns_halves(q) && turns_halves(&k->k) &&
         q->table.data == k->k.table.data && q->positions == k->k.positions && k->wide &&
         tl_whole(&q->x, HEAD) && tl_whole(&q->y, HEAD) && tl_whole(&k->k.x, HEAD) &&
         w->bytes == 2 && w->width == HEAD && w->value_width == HEAD &&
         w->kv_heads <= TL_ROPE_ROWS_KV_HEADS;
}

static tl_status launch_rope_write(const tl_fused_call *f) {
  tl_rope_write_args k;
  TL_TRY(rope_write_args(f, &k));
  if (fits_rope_rows(&k)) {
    const int64_t rows = TL_ROPE_ROWS_THREADS / TL_DEVICE_WARP;
    return tl_launch(f[0].call.cuda, "fused_rope_write_rows", (k.write.at.rows + rows - 1) / rows,
                     TL_ROPE_ROWS_THREADS, 1, &k);
  }
  return tl_launch(f[0].call.cuda, "fused_rope_write", f[0].call.in[0].shape[0],
                   TL_ROPE_WRITE_THREADS, 1, &k);
}

/* ---- q, k and v, rope, and the pages ---- */

enum { HEADS_ABOVE = 8, HEADS_ROWS = 256 };

/* clang-format off */
#define TURNED(rows, columns, k_columns) \
  {rows, {columns, k_columns, columns}, "rope_hopper_" #rows "_" #columns},
/* clang-format on */
static const tl_gemm_heads_tile heads_tiles[] = {TL_ROPE_HOPPER(TURNED)};
#undef TURNED

static int fits_heads(const tl_fused_call *f, int32_t count) {
  if (count < 4 || f[0].op != TL_OP_linear || !f[0].only_next_reads) return 0;
  const tl_call *made = &f[0].call;
  if (made->out_count != 3 || made->in_count != 4 || !fits_rope_write(f + 1, count - 1)) return 0;
  if (!is_same(&made->out[0], &f[1].call.in[0]) || !is_same(&made->out[1], &f[2].call.in[0]) ||
      !is_same(&made->out[2], &f[3].call.in[1]))
    return 0;
  for (int32_t i = 0; i < made->in_count; i++)
    if (!are_apart(&f[1].call.out[0], &made->in[i]) ||
        !are_apart(&f[3].call.out[0], &made->in[i]) || !are_apart(&f[3].call.out[1], &made->in[i]))
      return 0;
  return 1;
}

static tl_status launch_heads(const tl_fused_call *f, int32_t *done) {
  const tl_call *made = &f[0].call;
  tl_rope_hopper_args k;
  tl_cuda_grid grid;
  tl_gemm gemm;
  *done = 0;
  TL_TRY(tl_gemm_of_linear(made, &gemm));
  if (gemm.rows <= HEADS_ABOVE || gemm.rows > HEADS_ROWS) return TL_OK;
  TL_TRY(rope_write_args(f + 1, &k.rope));
  const tl_cache_write_args *w = &k.rope.write;
  if (!turns_halves(&k.rope.q) || !turns_halves(&k.rope.k) || !k.rope.q.y.bf16 ||
      !k.rope.q.y.aligned || w->bytes != 2 || w->width != HEAD || w->value_width != HEAD ||
      (uintptr_t)w->values % 4 != 0)
    return TL_OK;
  const tl_gemm_heads_tile *t = &heads_tiles[(gemm.rows > 64) + (gemm.rows > 128)];
  TL_TRY(tl_gemm_hopper_heads(&gemm, t, made->cuda, &k.product, &grid, done));
  if (!*done) return TL_OK;
  *done = 4;
  return tl_cuda_launch(made->cuda, t->kernel, &grid, &k);
}

/* ---- gate, up, swiglu, and the linear that reads it ---- */

static int fits_swiglu(const tl_fused_call *f, int32_t count) {
  if (count < 3 || f[0].op != TL_OP_linear || f[1].op != TL_OP_swiglu || f[2].op != TL_OP_linear)
    return 0;
  const tl_call *both = &f[0].call, *y = &f[1].call, *down = &f[2].call;
  if (!f[0].only_next_reads || !f[1].only_next_reads || both->out_count != 2) return 0;
  if (down->in_count != 2) return 0;
  return is_same(&both->out[0], &y->in[0]) && is_same(&both->out[1], &y->in[1]) &&
         is_same(&y->out[0], &down->in[0]) && y->out[0].dtype == TL_BF16;
}

/* Where y may lie: 0, 1: in the place of gate, of up; -1: nowhere. */
static int32_t place_of_swiglu(const tl_fused_call *f) {
  for (int32_t i = 0; i < 2; i++) {
    const tl_view *place = &f[0].call.out[i];
    int32_t apart = 1;
    for (int32_t k = 0; k < f[0].call.in_count; k++)
      apart = apart && are_apart(place, &f[0].call.in[k]);
    for (int32_t k = 1; k < f[2].call.in_count; k++)
      apart = apart && are_apart(place, &f[2].call.in[k]);
    for (int32_t k = 0; k < f[2].call.out_count; k++)
      apart = apart && are_apart(place, &f[2].call.out[k]);
    if (apart) return i;
  }
  return -1;
}

static tl_status launch_swiglu(const tl_fused_call *f, int32_t count, int32_t place,
                               int32_t *done) {
  tl_gemm gemm;
  int32_t made;
  *done = 0;
  TL_TRY(tl_gemm_of_linear(&f[0].call, &gemm));
  TL_TRY(tl_swiglu_check(&f[1].call));
  TL_TRY(tl_gemm_hopper_pair(&gemm, f[0].call.out[place].data, f[0].call.cuda, &made));
  if (!made) return TL_OK;
  tl_fused_call down[3];
  const int32_t behind = count - 2 < 3 ? count - 2 : 3;
  for (int32_t i = 0; i < behind; i++) down[i] = f[2 + i];
  tl_view in[2] = {down[0].call.in[0], down[0].call.in[1]};
  in[0].data = f[0].call.out[place].data;
  down[0].call.in = in;
  if (fits_leaves(down, behind))
    TL_TRY(launch_leaves(down, &made));
  else
    made = 0;
  *done = 2 + (made > 0 ? made : 1);
  return made > 0 ? TL_OK : tl_ops[TL_OP_linear].cuda(&down[0].call);
}

/* ---- the begin of a step ---- */

static int fits_tokens(const tl_fused_call *f, int32_t count) {
  if (count < 2 || f[0].op != TL_OP_follow || f[1].op != TL_OP_embedding) return 0;
  const tl_call *follow = &f[0].call, *rows = &f[1].call;
  const tl_view *ids = &follow->out[0], *y = &rows->out[0];
  if (!is_same(ids, &rows->in[0]) || !are_apart(ids, y) || !are_apart(ids, &rows->in[1]) ||
      !are_apart(y, &rows->in[1]))
    return 0;
  for (int32_t i = 0; i < 2; i++)
    if (!are_apart(&follow->in[i], ids) || !are_apart(&follow->in[i], y)) return 0;
  return 1;
}

static tl_status launch_tokens(const tl_fused_call *f) {
  const tl_call *call = &f[0].call;
  tl_tokens_args k;
  TL_TRY(tl_follow_args_of(call, &k.follow));
  TL_TRY(tl_embedding_args_of(&f[1].call, &k.rows));
  return tl_overlap_threads(call->cuda, "fused_tokens", k.rows.tokens * tl_pieces(k.rows.dim), &k);
}

/* ---- the end of a step ---- */

static int fits_choice(const tl_fused_call *f, int32_t count) {
  if (count < 4 || f[0].op != TL_OP_sample || f[1].op != TL_OP_row_max) return 0;
  if (f[2].op != TL_OP_row_sum_exp || f[3].op != TL_OP_cross_entropy) return 0;
  if (!f[1].only_next_reads || !f[2].only_next_reads) return 0;
  const tl_call *sample = &f[0].call, *most = &f[1].call, *sum = &f[2].call, *loss = &f[3].call;
  const tl_view *z = &sample->in[0], *ids = &sample->out[0], *nll = &loss->out[0];
  if (!is_same(z, &most->in[0]) || !is_same(z, &sum->in[0])) return 0;
  if (!is_same(&most->out[0], &sum->in[1]) || !is_same(&most->out[0], &loss->in[0])) return 0;
  for (int32_t i = 0; i < 3; i++)
    if (!is_same(&sum->out[i], &loss->in[1 + i])) return 0;
  if (!is_same(ids, &sum->in[2]) || !is_same(ids, &loss->in[4])) return 0;
  if (loss->floats[0] != 0.0f || loss->floats[1] != 0.0f || sum->ints[1] != 0) return 0;
  if (sum->ints[0] != sample->ints[0] || most->ints[0] != sample->ints[0]) return 0;
  for (int32_t i = 0; i < sample->in_count; i++)
    if (!are_apart(&sample->in[i], ids) || !are_apart(&sample->in[i], nll)) return 0;
  return are_apart(ids, nll);
}

static tl_status launch_choice(const tl_fused_call *f, int32_t *done) {
  const tl_call *sample = &f[0].call;
  const tl_view *z = &sample->in[0];
  tl_choice_args k = {.nll = f[3].call.out[0].data};
  *done = 0;
  TL_TRY(tl_sample_check(sample));
  const int64_t leaf = z->shape[1] / TL_CHOICE_LEAVES;
  if (f[2].call.ints[2] != TL_CHOICE_LEAVES || z->shape[1] % TL_CHOICE_LEAVES != 0) return TL_OK;
  if (leaf % TL_DEVICE_PIECE != 0 || tl_row_lanes(leaf) != TL_DEVICE_THREADS ||
      (uintptr_t)z->data % 16 != 0)
    return TL_OK;
  TL_TRY(tl_row_max_check(&f[1].call));
  TL_TRY(tl_row_sum_exp_check(&f[2].call));
  TL_TRY(tl_cross_entropy_check(&f[3].call));
  TL_TRY(tl_sample_args_of(sample, &k.sample));
  *done = 4;
  if (k.sample.rows == k.sample.places &&
      k.sample.rows <= tl_cuda_device(sample->cuda)->multiprocessors)
    return tl_launch(sample->cuda, "fused_choice_of_few", k.sample.rows, TL_SAMPLE_THREADS, 1, &k);
  TL_TRY(tl_launch(sample->cuda, "fused_choice", k.sample.rows, TL_SAMPLE_THREADS, 1, &k));
  return tl_launch(sample->cuda, "fused_draws", k.sample.places, TL_SAMPLE_THREADS, 1, &k);
}

int32_t tl_fused_begins(tl_op op) {
  return op == TL_OP_binary || op == TL_OP_rope_rows || op == TL_OP_linear || op == TL_OP_sample ||
         op == TL_OP_follow;
}

tl_status tl_fused(const tl_fused_call *calls, int32_t count, int32_t *done) {
  *done = 0;
  if (fits_add_norm(calls, count)) {
    *done = 2;
    return launch_add_norm(calls);
  }
  if (fits_tokens(calls, count)) {
    *done = 2;
    return launch_tokens(calls);
  }
  if (fits_leaves(calls, count)) {
    TL_TRY(launch_leaves(calls, done));
    if (*done > 0) return TL_OK;
  }
  if (fits_choice(calls, count)) return launch_choice(calls, done);
  if (fits_heads(calls, count)) {
    TL_TRY(launch_heads(calls, done));
    if (*done > 0) return TL_OK;
  }
  if (fits_rope_write(calls, count)) {
    *done = 3;
    return launch_rope_write(calls);
  }
  if (fits_swiglu(calls, count)) {
    const int32_t place = place_of_swiglu(calls);
    if (place >= 0) return launch_swiglu(calls, count, place, done);
  }
  return TL_OK;
}
