// embedding.cuh - a piece of a row of the table, for kernels.
#ifndef TL_EMBEDDING_CUH
#define TL_EMBEDDING_CUH

#include "../device.cuh"
#include "embedding_args.h"

// Of the row of `token` that row p.row of y becomes; zeros where the table does not have it.
TL_GPU void embed_piece(const tl_embedding_args &k, const tl_place_of &p, int32_t token) {
  const int n = tl_piece_length(k.dim, p.at);
  const int64_t id = (int64_t)token - k.first;
  float y[TL_P];
  tl_clear(y);
  if (token >= 0 && id >= 0 && id < k.vocab) {
    tl_load_piece(k.table, id * k.dim + p.at, n, y);
#pragma unroll
    for (int i = 0; i < TL_P; i++) y[i] = y[i] + 0.0f;
  }
  tl_store(k.y, p.row * k.dim + p.at, n, y);
}

#endif
