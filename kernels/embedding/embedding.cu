/* embedding.cu - rows by token id on a GPU, and their gradient.
**
** embedding_grad: the rows of each id are linked into a list, whose order depends on chance. The
** block of a list's head takes the id: it puts the rows in ascending order and adds them, so the
** chain of every id is that of embedding.h. Nobody else writes that row of the table.
**
**     clear   head = -1; the table = +0 in mode 0
**     link    next[row] = head[id], head[id] = row        an exchange of integers
**     sum     short lists are sorted by rank; for long ones all ids are read again, 256 at a time
*/
#include "embedding.cuh"

enum { THREADS = TL_DEVICE_THREADS, WARP = TL_DEVICE_WARP, LIST = 64 };

TL_KERNEL embedding_rows(const __grid_constant__ tl_embedding_args k) {
  tl_after_earlier();
  const tl_place_of p = tl_row_piece(tl_thread(), k.dim);
  if (p.row >= k.tokens) return;
  embed_piece(k, p, k.ids[p.row]);
}

TL_KERNEL pick_rows(const __grid_constant__ tl_pick_rows_args k) {
  tl_after_earlier();
  const tl_place_of p = tl_row_piece(tl_thread(), k.dim);
  if (p.row >= k.count) return;
  const int n = tl_piece_length(k.dim, p.at);
  const int32_t from = k.rows[p.row];
  for (int i = 0; i < n; i++) {
    const int64_t to = p.row * k.dim + p.at + i, at = from * k.dim + p.at + i;
    const bool is_there = from >= 0 && from < k.all;
    if (k.x.bf16)
      ((uint16_t *)k.y.data)[to] = is_there ? ((const uint16_t *)k.x.data)[at] : 0;
    else
      ((uint32_t *)k.y.data)[to] = is_there ? ((const uint32_t *)k.x.data)[at] : 0;
  }
}

/* --- embedding_grad --------------------------------------------------------------------------- */

/* The id of row first + i, counted from the start of the part; -1 for one of another part. */
TL_GPU int64_t id_of(const tl_embedding_grad_args &k, int64_t i) {
  const int32_t token = k.ids[k.first + i];
  const int64_t id = (int64_t)token - k.first_id;
  return token >= 0 && id >= 0 && id < k.vocab ? id : -1;
}

TL_KERNEL embedding_grad_clear(const __grid_constant__ tl_embedding_grad_args k) {
  const int64_t i = tl_thread();
  if (i < k.vocab) k.head[i] = -1;
  const int n = tl_piece_length(k.vocab * k.dim, i * TL_P);
  if (k.mode != 0 || n <= 0) return;
  float zero[TL_P];
  tl_clear(zero);
  tl_store(k.table, i * TL_P, n, zero);
}

TL_KERNEL embedding_grad_link(const __grid_constant__ tl_embedding_grad_args k) {
  const int64_t i = tl_thread();
  if (i >= k.count) return;
  const int64_t id = id_of(k, i);
  if (id >= 0) k.next[i] = atomicExch(&k.head[id], (int32_t)i);
}

/* Adds `n` rows of the list to a piece of columns. */
TL_GPU void add_rows(const tl_embedding_grad_args &k, const int32_t *list, int n, int64_t column,
                     int length, float *chain) {
#pragma unroll 4
  for (int i = 0; i < n; i++) {
    float dy[TL_P];
    tl_load_piece(k.dy, (k.first + list[i]) * k.dim + column, length, dy);
#pragma unroll
    for (int j = 0; j < TL_P; j++) chain[j] = chain[j] + dy[j];
  }
}

/* Puts the list that starts at `head` into `sorted`, ascending, and returns its length; above LIST:
** only that it is longer. */
TL_GPU int sort_list(const tl_embedding_grad_args &k, int32_t head, int32_t *sorted) {
  __shared__ int32_t list[LIST], length;
  if (threadIdx.x == 0) {
    int n = 0;
    for (int32_t at = head; at >= 0 && n <= LIST; at = k.next[at]) {
      if (n < LIST) list[n] = at;
      n++;
    }
    length = n;
  }
  __syncthreads();
  const int n = length;
  if (n <= LIST && (int)threadIdx.x < n) {
    const int32_t own = list[threadIdx.x];
    int rank = 0;
    for (int i = 0; i < n; i++) rank += list[i] < own;
    sorted[rank] = own;
  }
  __syncthreads();
  return n;
}

/* Of rows base .. base + 255: those of `id`, ascending; returns how many. */
TL_GPU int find_rows(const tl_embedding_grad_args &k, int64_t id, int64_t base, int32_t *found) {
  __shared__ int32_t counts[THREADS / WARP];
  const int64_t i = base + threadIdx.x;
  const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const bool own = i < k.count && id_of(k, i) == id;
  const uint32_t mask = __ballot_sync(0xffffffffu, own);
  __syncthreads(); /* the last rows found are used up */
  if (lane == 0) counts[warp] = __popc(mask);
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < THREADS / WARP; w++) {
    before += w < warp ? counts[w] : 0;
    total += counts[w];
  }
  if (own) found[before + __popc(mask & ((1u << lane) - 1u))] = (int32_t)i;
  __syncthreads();
  return total;
}

/* Block (row, y): the id of that row, if the row heads its list; columns 2048 y and on. */
TL_KERNEL embedding_grad_sum(const __grid_constant__ tl_embedding_grad_args k) {
  __shared__ int32_t rows[THREADS];
  const int64_t id = id_of(k, blockIdx.x);
  if (id < 0 || k.head[id] != (int32_t)blockIdx.x) return; /* all threads alike */
  const int64_t column = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * TL_P;
  const int length = tl_piece_length(k.dim, column) > 0 ? tl_piece_length(k.dim, column) : 0;
  const int64_t at = id * k.dim + column;
  float stored[TL_P], chain[TL_P];
  tl_clear(stored);
  tl_clear(chain);
  if (k.mode != 0) tl_load_piece(k.table, at, length, stored);
  if (k.mode == 1) {
#pragma unroll
    for (int i = 0; i < TL_P; i++) chain[i] = stored[i];
  }
  const int n = sort_list(k, (int32_t)blockIdx.x, rows);
  if (n <= LIST) {
    add_rows(k, rows, n, column, length, chain);
  } else {
    for (int64_t base = 0; base < k.count; base += THREADS) {
      const int found = find_rows(k, id, base, rows);
      add_rows(k, rows, found, column, length, chain);
    }
  }
  if (k.mode == 2) {
#pragma unroll
    for (int i = 0; i < TL_P; i++) chain[i] = stored[i] + chain[i];
  }
  tl_store(k.table, at, length, chain);
}

/* --- position_ids ----------------------------------------------------------------------------- */

TL_KERNEL position_ids_rows(const __grid_constant__ tl_position_ids_args k) {
  const int64_t row = tl_thread();
  if (row >= k.rows) return;
  int64_t low = 0, high = k.entries - 1; /* cu[low] <= row < cu[high] */
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (k.cu[middle] <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  k.ids[row] = (int32_t)(row - k.cu[low]);
}
