/* optimizer.cu - AdamW, states and initial values on a GPU: a piece of 8 elements a thread. */
#include "../../runtime/random.h"
#include "../device.cuh"
#include "../op.h"
#include "optimizer_args.h"

TL_KERNEL adamw_elements(const __grid_constant__ tl_adamw_args k) {
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(k.count, at);
  if (n <= 0 || k.control[1] == 1.0f) return;
  const bool has_master = k.master.data != nullptr;
  const tl_array &from = has_master ? k.master : k.weight;
  const tl_bits grads = tl_fetch(k.grad, at, n), ms = tl_fetch(k.m, at, n);
  const tl_bits vs = tl_fetch(k.v, at, n), ws = tl_fetch(from, at, n);
  const float *scalars = k.step->scalars + k.scalar_first;
  const float clip = k.control[0], rate = scalars[0] * k.lr_scale;
  const float c1 = scalars[1], c2 = scalars[2];
  const float rest1 = 1.0f - k.beta1, rest2 = 1.0f - k.beta2;
  float grad[TL_P], m[TL_P], v[TL_P], w[TL_P];
  tl_widen(k.grad, grads, grad);
  tl_widen(k.m, ms, m);
  tl_widen(k.v, vs, v);
  tl_widen(from, ws, w);
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    const float g = grad[i] * clip;
    m[i] = fmaf(k.beta1, m[i], rest1 * g);
    v[i] = fmaf(k.beta2, v[i], (rest2 * g) * g);
    const float u = (m[i] * c1) / (sqrtf(v[i] * c2) + k.eps);
    w[i] = fmaf(-rate, fmaf(k.decay, w[i], u), w[i]);
  }
  tl_store(k.m, at, n, m);
  tl_store(k.v, at, n, v);
  if (has_master) tl_store(k.master, at, n, w);
  tl_store(k.weight, at, n, w);
}

TL_KERNEL set_state_elements(const __grid_constant__ tl_set_state_args k) {
  const int64_t at = tl_thread() * TL_P;
  const int n = tl_piece_length(k.count, at);
  float value[TL_P];
  if (n <= 0 || k.control[1] == 1.0f) return;
  tl_load_piece(k.value, at, n, value);
  tl_store(k.state, at, n, value);
}

/* The value of the element with this logical index. */
TL_GPU float draw(const tl_init_args &k, tl_random_key key, uint64_t index) {
  const tl_words w = tl_random_words(key, index, 0);
  if (k.kind == 2) return fmaf(k.second - k.first, tl_random_unit(w.word[0]), k.first);
  const float r = sqrtf(-2.0f * tl_log(tl_random_unit(w.word[0]) + 0x1p-24f));
  return fmaf(k.second, r * tl_cos(0x1.921fb6p+2f * tl_random_unit(w.word[1])), k.first);
}

TL_KERNEL init_elements(const __grid_constant__ tl_init_args k) {
  const tl_place_of p = tl_row_piece(tl_thread(), k.columns);
  if (p.row >= k.rows) return;
  const tl_random_key key = tl_random_key_of(k.step->seed, k.name_hash);
  const uint64_t index = (uint64_t)(k.row_first + p.row) * (uint64_t)k.cols_full +
                         (uint64_t)k.col_first + (uint64_t)p.at;
  float y[TL_P];
#pragma unroll
  for (int i = 0; i < TL_P; i++) {
    y[i] = k.kind == 0 ? k.first : draw(k, key, index + (uint64_t)i);
  }
  tl_store(k.y, p.row * k.columns + p.at, tl_piece_length(k.columns, p.at), y);
}
