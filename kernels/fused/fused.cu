/* fused.cu - kernels that do the work of several instructions: fused.h says which. */
#include "../cache/cache_device.cuh"
#include "../elementwise/rope.cuh"
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

TL_GPU void norm_piece(const tl_norm_args &a, int64_t row, int64_t at, int n, float rstd,
                       float *x) {
  float gain[TL_P];
  tl_load_piece(a.gain, at, n, gain);
#pragma unroll
  for (int i = 0; i < TL_P; i++) x[i] = (x[i] * rstd) * gain[i];
  tl_store(a.out, row * a.dim + at, n, x);
}

/* As rms_norm_rows; the first piece of a thread, for most rows its only one, stays in registers. */
TL_KERNEL fused_add_norm(const __grid_constant__ tl_add_norm_args f) {
  __shared__ float shared[TL_P];
  tl_after_earlier();
  const tl_norm_args &a = f.norm;
  const tl_row_lane r = tl_row_of(a.lanes);
  const bool there = r.row < a.rows;
  float p[TL_P], first[TL_P], x[TL_P];
  tl_clear(p);
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
  if (r.at < a.dim) norm_piece(a, r.row, r.at, tl_piece_length(a.dim, r.at), rstd, first);
  for (int64_t at = r.at + SPAN; at < a.dim; at += SPAN) {
    const int n = tl_piece_length(a.dim, at);
    tl_load_piece(a.x, r.row * a.dim + at, n, x); /* this thread wrote it */
    norm_piece(a, r.row, at, n, rstd, x);
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

/* A unit of k: turned, and put into its page. */
TL_GPU void write_unit(const tl_rope_args &r, int64_t head, int64_t position, int unit,
                       const Pool &pool) {
  const int pair_units = (int)((r.pairs + TL_P - 1) / TL_P);
  float a[TL_P], b[TL_P];
  if (unit >= pair_units) {
    const int64_t at = 2 * r.pairs + (unit - pair_units) * TL_P;
    const int n = tl_piece_length(r.channels, at);
    tl_load_piece(r.x, head + at, n, a);
    for (int i = 0; i < n; i++) put(pool, at + i, a[i]);
    return;
  }
  const int64_t pair = unit * TL_P;
  const int n = tl_piece_length(r.pairs, pair);
  for (int i = 0; i < TL_P; i++) {
    const int64_t one = r.interleaved ? 2 * (pair + i) : pair + i;
    a[i] = i < n ? tl_load_one(r.x, head + one) : 0.0f;
    b[i] = i < n ? tl_load_one(r.x, head + (r.interleaved ? one + 1 : one + r.pairs)) : 0.0f;
  }
  turn(r, position, pair, n, a, b);
  for (int i = 0; i < n; i++) {
    const int64_t one = r.interleaved ? 2 * (pair + i) : pair + i;
    put(pool, one, a[i]);
    put(pool, r.interleaved ? one + 1 : one + r.pairs, b[i]);
  }
}

TL_GPU void write_value(const tl_cache_write_args &w, int64_t from, int64_t to) {
  if (w.bytes == 2)
    ((uint16_t *)w.values)[to] = ((const uint16_t *)w.v)[from];
  else
    ((uint32_t *)w.values)[to] = ((const uint32_t *)w.v)[from];
}

/* A block a row: units of q, units of k, then values. */
TL_KERNEL fused_rope_write(const __grid_constant__ tl_rope_write_args f) {
  tl_after_earlier();
  const tl_cache_write_args &w = f.write;
  const int64_t row = blockIdx.x;
  const int position = w.at.position[row], request = w.at.request[row];
  const int page = request >= 0 && is_place(w.at, request, position)
                       ? page_of(w.at, request, position) : -1;
  const int place = page_place(w.at, position);
  const int q_units = rope_units(f.q), k_units = rope_units(f.k);
  const int q_all = (int)f.q.heads * q_units, k_all = w.kv_heads * k_units;
  const int values = w.kv_heads * w.value_width;
  for (int i = threadIdx.x; i < q_all + k_all + values; i += TL_DEVICE_THREADS) {
    if (i < q_all) {
      turn_unit(f.q, (row * f.q.heads + i / q_units) * f.q.channels, position, i % q_units);
    } else if (page < 0) {
      break;
    } else if (i < q_all + k_all) {
      const int head = (i - q_all) / k_units;
      const int64_t at = ((int64_t)page * w.kv_heads + head) * w.width * w.at.page + place;
      const Pool pool = {w.bytes == 2 ? (uint16_t *)w.keys + at : nullptr,
                         w.bytes == 4 ? (uint32_t *)w.keys + at : nullptr, w.at.page};
      write_unit(f.k, (row * w.kv_heads + head) * w.width, position, (i - q_all) % k_units, pool);
    } else {
      const int64_t channel = i - q_all - k_all;
      write_value(w, row * values + channel,
                  ((int64_t)page * w.at.page + place) * values + channel);
    }
  }
}
