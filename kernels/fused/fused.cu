/* fused.cu - kernels that do the work of several instructions: fused.h says which. */
#include "../cache/cache_device.cuh"
#include "../elementwise/rope.cuh"
#include "../embedding/embedding.cuh"
#include "fused_args.h"

enum { SPAN = TL_DEVICE_PARTIALS }; /* elements of a row that its threads take at a time */

/* The sum of a piece, rounded as its output is, and written there. */
TL_GPU void add_piece(const tl_add_norm_args &f, int64_t first, int n, float *x) {
  const tl_bits as = tl_fetch(f.a, first, n), bs = tl_fetch(f.b, first, n);
  float b[TL_P];
  tl_widen(f.a, as, x);
  tl_widen(f.b, bs, b);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[i] = x[i] + b[i];
  tl_store(f.norm.x, first, n, x);
  if (f.norm.x.bf16) {
#pragma unroll
    for (int i = 0; i < TL_P; i++) x[i] = tl_math_float(tl_bf16_bits(x[i]) << 16);
  }
}

TL_GPU void norm_piece(const tl_norm_args &a, const tl_bits &gains, int64_t row, int64_t at, int n,
                       float rstd, float *x) {
  float gain[TL_P];
  tl_widen(a.gain, gains, gain);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[i] = (x[i] * rstd) * gain[i];
  tl_store(a.out, row * a.dim + at, n, x);
}

/* As rms_norm_rows; the first piece of a thread, for most rows its only one, stays in registers. So
** do its gains, which come from memory, since weights have driven them out of the cache: they are
** on their way before the sum is there. */
TL_KERNEL fused_add_norm(const __grid_constant__ tl_fused_norm_args k) {
  __shared__ float shared[TL_P];
  begin_next();
  if (!k.ahead) wait_earlier();
  const tl_add_norm_args &f = k.sum;
  const tl_norm_args &a = f.norm;
  const tl_row_lane r = tl_row_of(a.lanes);
  const bool there = r.row < a.rows;
  float p[TL_P], first[TL_P], x[TL_P];
  tl_clear(p);
  tl_bits gains = {};
  if (there && r.at < a.dim) gains = tl_fetch(a.gain, r.at, tl_piece_length(a.dim, r.at));
  if (k.ahead) wait_earlier();
  if (there && r.at < a.dim) {
    const int n = tl_piece_length(a.dim, r.at);
    add_piece(f, r.row * a.dim + r.at, n, first);
    tl_add_dot(p, first, first, n, r.at);
  }
  for (int64_t at = r.at + SPAN; there && at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    add_piece(f, r.row * a.dim + at, n, x);
    tl_add_dot(p, x, x, n, at);
  }
  const float sum = tl_row_total(p, a.lanes, shared);
  const float rstd = tl_rsqrt(sum / (float)a.dim + a.eps);
  if (!there) return;
  if (r.at < a.dim) norm_piece(a, gains, r.row, r.at, tl_piece_length(a.dim, r.at), rstd, first);
  for (int64_t at = r.at + SPAN; at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    tl_load_piece(a.x, r.row * a.dim + at, n, x); /* this thread wrote it */
    norm_piece(a, tl_fetch(a.gain, at, n), r.row, at, n, rstd, x);
  }
  if (r.at == 0 && a.rstd != nullptr) a.rstd[r.row] = rstd;
}

/* Where the channels of a row's KV head go; `step` elements apart. */
struct Pool {
  uint16_t *two;
  uint32_t *four;
  int64_t step;
};

TL_GPU void put(const Pool &pool, int64_t channel, float x) {
  if (pool.two != nullptr)
    pool.two[channel * pool.step] = (uint16_t)tl_bf16_bits(x);
  else
    pool.four[channel * pool.step] = tl_math_bits(x);
}

/* Pairs of k, then channels behind them, one at a time: what a thread writes lies far apart, so
** more threads share it. */
TL_GPU void write_key(const tl_rope_args &r, int64_t head, int64_t position, int item,
                      const Pool &pool) {
  const int pairs = (int)r.pairs;
  if (item >= pairs) {
    const int64_t at = pairs + item; /* 2 pairs + (item - pairs) */
    put(pool, at, tl_load_one(r.x, head + at));
    return;
  }
  const int64_t one = r.interleaved ? 2 * item : item;
  const int64_t other = r.interleaved ? one + 1 : one + pairs;
  const float a = tl_load_one(r.x, head + one), b = tl_load_one(r.x, head + other);
  float cosine = tl_math_float(TL_NAN_BITS), sine = cosine;
  if (position >= 0 && position < r.positions) {
    const int64_t at = (position * r.pairs + item) * 2;
    cosine = tl_load_one(r.table, at), sine = tl_load_one(r.table, at + 1);
  }
  sine = r.sign * sine;
  put(pool, one, fmaf(a, cosine, -(b * sine)));
  put(pool, other, fmaf(b, cosine, a * sine));
}

/* 16 bytes, or an element, of a row's values. */
TL_GPU void write_value(const tl_cache_write_args &w, int wide, int64_t from, int64_t to) {
  if (wide)
    ((uint4 *)w.values)[to] = ((const uint4 *)w.v)[from];
  else if (w.bytes == 2)
    ((uint16_t *)w.values)[to] = ((const uint16_t *)w.v)[from];
  else
    ((uint32_t *)w.values)[to] = ((const uint32_t *)w.v)[from];
}

/* Brings a position's angles to the second-level cache, which weights drive them out of. */
TL_GPU void reach_angles(const tl_rope_args &r, int64_t position) {
  const int64_t bytes = r.pairs * 2 * (r.table.bf16 ? 2 : 4);
  if (position < 0 || position >= r.positions || threadIdx.x * 32 >= bytes) return;
  const char *from = (const char *)r.table.data + position * bytes + threadIdx.x * 32;
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* A block a row: units of q, pairs of k, then values. */
extern "C" __global__ void __launch_bounds__(TL_ROPE_WRITE_THREADS)
    fused_rope_write(const __grid_constant__ tl_rope_write_args f) {
  begin_next();
  const tl_cache_write_args &w = f.write;
  if (!f.ahead) wait_earlier();
  const int64_t row = blockIdx.x;
  const int position = w.at.position[row], request = w.at.request[row];
  const int page =
      request >= 0 && is_place(w.at, request, position) ? page_of(w.at, request, position) : -1;
  const int place = page_place(w.at, position);
  const int q_units = rope_units(f.q), k_items = (int)(f.k.channels - f.k.pairs);
  const int q_all = (int)f.q.heads * q_units, k_all = w.kv_heads * k_items;
  const int values = w.kv_heads * w.value_width / (f.wide ? 16 / w.bytes : 1);
  if (f.ahead) {
    reach_angles(f.q, position);
    wait_earlier();
  }
  for (int i = threadIdx.x; i < q_all + k_all + values; i += TL_ROPE_WRITE_THREADS) {
    if (i < q_all) {
      turn_unit(f.q, (row * f.q.heads + i / q_units) * f.q.channels, position, i % q_units);
    } else if (page < 0) {
      break;
    } else if (i < q_all + k_all) {
      const int head = (i - q_all) / k_items;
      const int64_t at = ((int64_t)page * w.kv_heads + head) * w.width * w.at.page + place;
      const Pool pool = {w.bytes == 2 ? (uint16_t *)w.keys + at : nullptr,
                         w.bytes == 4 ? (uint32_t *)w.keys + at : nullptr, w.at.page};
      write_key(f.k, (row * w.kv_heads + head) * w.width, position, (i - q_all) % k_items, pool);
    } else {
      const int64_t channel = i - q_all - k_all;
      write_value(w, f.wide, row * values + channel,
                  ((int64_t)page * w.at.page + place) * values + channel);
    }
  }
}

/* The id of a row, as follow_rows finds it, and its row of the table, as embedding_rows. A thread
** has a piece of a row. */
TL_KERNEL fused_tokens(const __grid_constant__ tl_tokens_args k) {
  tl_after_earlier();
  const tl_follow_args &f = k.follow;
  const tl_embedding_args &e = k.rows;
  const tl_place_of p = tl_row_piece(tl_thread(), e.dim);
  if (p.row >= e.tokens) return;
  const int32_t fed = f.fed[p.row], from = -2 - fed;
  const int32_t token = fed >= -1 ? fed : from < f.made_rows ? f.made[from] : -1;
  if (p.at == 0) f.ids[p.row] = token;
  embed_piece(e, p, token);
}
