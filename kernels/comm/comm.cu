/* comm.cu - collectives and messages between GPUs that read and write each other's memory.
**
**   reduce_scatter   meet | fold my piece of every x | meet
**   all_gather       meet | copy every x             | meet
**   all_reduce       meet | fold my slice into y     | meet | pull the other slices | meet
**                    short: meet | fold everything into private memory | meet | copy to y
**   send, recv       wait for the slot | copy | tell the other side
**
** The last meeting is there so that nobody changes what another still reads. A fold adds ranks
** pairwise, neighbours first, whoever folds: (comm.h). Nothing here depends on time or arrival.
*/
#include "meet.cuh"

/* One block. */
extern "C" __global__ void peer_meet(const __grid_constant__ tl_meet_args k) {
  const uint64_t turn = *k.turn + k.turns;
  __syncthreads();
  come(k, turn);
  find(k, turn, true, k.parts);
  if (threadIdx.x == 0) *k.turn = turn;
}

/* --- Folds ------------------------------------------------------------------------------------ */

/* The larger; +0 of two zeros; NaN if there is one (comm.c). */
TL_GPU float larger(float a, float b) {
  if (a > b) return a;
  if (b > a) return b;
  if (a == b) return tl_math_float(tl_math_bits(a) & tl_math_bits(b));
  return tl_math_float(0x7fc00000u);
}

/* Ranks in pairs, neighbours first; n is a power of two and a constant. */
template <int n>
TL_GPU float4 tree(const tl_peer_row *parts, int64_t at) {
  float4 v[n];
#pragma unroll
  for (int r = 0; r < n; r++) v[r] = *(const float4 *)((const float *)parts[r].x + at);
#pragma unroll
  for (int step = 1; step < n; step *= 2) {
#pragma unroll
    for (int r = 0; r < n; r += 2 * step) {
      v[r].x = v[r].x + v[r + step].x, v[r].y = v[r].y + v[r + step].y;
      v[r].z = v[r].z + v[r + step].z, v[r].w = v[r].w + v[r + step].w;
    }
  }
  return v[0];
}

template <int n>
TL_GPU float tree_of(const tl_peer_row *parts, int64_t at) {
  float v[n];
#pragma unroll
  for (int r = 0; r < n; r++) v[r] = ((const float *)parts[r].x)[at];
#pragma unroll
  for (int step = 1; step < n; step *= 2)
#pragma unroll
    for (int r = 0; r < n; r += 2 * step) v[r] = v[r] + v[r + step];
  return v[0];
}

/* A case for each size keeps the members in registers. */
TL_GPU float tree_one(const tl_peer_row *parts, int n, int64_t at) {
  switch (n) {
    case 2: return tree_of<2>(parts, at);
    case 4: return tree_of<4>(parts, at);
    case 8: return tree_of<8>(parts, at);
    case 16: return tree_of<16>(parts, at);
    default: return tree_of<1>(parts, at);
  }
}

TL_GPU void fold_one(const tl_peer_fold_args &k, int64_t out, int64_t at) {
  if (k.kind == TL_PEER_TREE) {
    ((float *)k.out)[out] = tree_one(k.parts, k.n, at);
  } else if (k.kind == TL_PEER_MAX) {
    float m = ((const float *)k.parts[0].x)[at];
    for (int r = 1; r < k.n; r++) m = larger(m, ((const float *)k.parts[r].x)[at]);
    ((float *)k.out)[out] = m;
  } else {
    int64_t sum = ((const int64_t *)k.parts[0].x)[at];
    for (int r = 1; r < k.n; r++) sum += ((const int64_t *)k.parts[r].x)[at];
    ((int64_t *)k.out)[out] = sum;
  }
}

/* Any group, any alignment: an element a thread, striding over the grid. */
TL_KERNEL peer_fold(const __grid_constant__ tl_peer_fold_args k) {
  const int64_t count = k.outer * k.piece, step = (int64_t)gridDim.x * TL_DEVICE_THREADS;
  for (int64_t i = tl_thread(); i < count; i += step) {
    const int64_t o = tl_quotient(i, k.piece);
    fold_one(k, i, o * k.part_stride + k.part_first + (i - o * k.piece));
  }
}

/* Addresses of all members and `bits`, or-ed: the largest word that divides them all. */
TL_GPU int32_t word_of(const tl_peer_row *parts, int n, uint64_t bits) {
  for (int r = 0; r < n; r++) bits |= (uint64_t)parts[r].x;
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
}

/* Trees: four elements a thread where everything is aligned. */
template <int n>
TL_GPU void fold_tree(const tl_peer_fold_args &k) {
  const uint64_t sizes = (uint64_t)(k.piece | k.part_first | k.part_stride) * sizeof(float);
  const int64_t width = word_of(k.parts, n, sizes | (uint64_t)k.out) == 16 ? 4 : 1;
  const int64_t pieces = k.piece / width, count = k.outer * pieces;
  const int64_t step = (int64_t)gridDim.x * TL_DEVICE_THREADS;
  for (int64_t i = tl_thread(); i < count; i += step) {
    const int64_t o = tl_quotient(i, pieces), within = i - o * pieces;
    const int64_t at = o * k.part_stride + k.part_first + within * width;
    if (width == 4) {
      ((float4 *)k.out)[i] = tree<n>(k.parts, at);
    } else {
      ((float *)k.out)[i] = tree_one(k.parts, n, at);
    }
  }
}

TL_KERNEL peer_fold_2(const __grid_constant__ tl_peer_fold_args k) { fold_tree<2>(k); }
TL_KERNEL peer_fold_4(const __grid_constant__ tl_peer_fold_args k) { fold_tree<4>(k); }
TL_KERNEL peer_fold_8(const __grid_constant__ tl_peer_fold_args k) { fold_tree<8>(k); }

/* --- Copies ----------------------------------------------------------------------------------- */

TL_GPU void copy_word(void *to, int64_t i, const void *from, int64_t j, int32_t word) {
  if (word == 16) {
    ((uint4 *)to)[i] = ((const uint4 *)from)[j];
  } else if (word == 4) {
    ((uint32_t *)to)[i] = ((const uint32_t *)from)[j];
  } else {
    ((unsigned char *)to)[i] = ((const unsigned char *)from)[j];
  }
}

TL_KERNEL peer_gather(const __grid_constant__ tl_peer_gather_args k) {
  const int32_t word = word_of(k.parts, k.n, (uint64_t)k.out | (uint64_t)k.bytes);
  const int64_t words = k.bytes / word, count = k.outer * k.n * words;
  const int64_t step = (int64_t)gridDim.x * TL_DEVICE_THREADS;
  for (int64_t i = tl_thread(); i < count; i += step) {
    const int64_t piece = tl_quotient(i, words), o = tl_quotient(piece, k.n);
    const int64_t within = i - piece * words;
    copy_word(k.out, i, k.parts[piece - o * k.n].x, o * words + within, word);
  }
}

/* A row of blocks for each owner. */
TL_KERNEL peer_pull(const __grid_constant__ tl_peer_pull_args k) {
  const int32_t r = blockIdx.y;
  if (r == k.position) return;
  const uint64_t sizes = (uint64_t)(k.border[r] | k.border[r + 1]);
  const uint64_t bits = sizes | (uint64_t)k.out | (uint64_t)k.parts[r].y;
  const int32_t word = bits % 16 == 0 ? 16 : 4; /* elements have 4 or 8 bytes */
  const int64_t step = (int64_t)gridDim.x * TL_DEVICE_THREADS, last = k.border[r + 1] / word;
  for (int64_t i = k.border[r] / word + tl_thread(); i < last; i += step) {
    copy_word(k.out, i, k.parts[r].y, i, word);
  }
}

/* --- Messages --------------------------------------------------------------------------------- */

/* A sender waits for a free slot, a receiver for a full one. */
extern "C" __global__ void peer_message_wait(const __grid_constant__ tl_peer_message_args k) {
  const uint64_t done = *k.mine;
  tell_host(&k.progress->instruction, k.instruction);
  tell_host(&k.progress->waits_for, -1);
  if (k.receives) {
    wait_until(k.theirs, done + 1, k.progress, -1, k.peer, true);
  } else if (done + 1 > TL_PEER_SLOTS) {
    wait_until(k.theirs, done + 1 - TL_PEER_SLOTS, k.progress, -1, k.peer, true);
  }
  tell_host(&k.progress->waits_for, -1);
}

TL_KERNEL peer_message_copy(const __grid_constant__ tl_peer_message_args k) {
  char *slot = k.slots + (int64_t)(*k.mine % TL_PEER_SLOTS) * k.slot_bytes;
  const uint64_t bits = (uint64_t)k.x | (uint64_t)k.bytes;
  const int32_t word = bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 1;
  const int64_t step = (int64_t)gridDim.x * TL_DEVICE_THREADS;
  for (int64_t i = tl_thread(); i < k.bytes / word; i += step) {
    copy_word(k.receives ? k.x : slot, i, k.receives ? slot : k.x, i, word);
  }
}

extern "C" __global__ void peer_message_tell(const __grid_constant__ tl_peer_message_args k) {
  const uint64_t done = *k.mine + 1;
  *k.mine = done;
  tell(k.told, done);
}

/* --- For another transport's bytes ---------------------------------------------------------- */

extern "C" __global__ void peer_rows(const __grid_constant__ tl_peer_rows_args k) {
  if ((int32_t)threadIdx.x < k.n) k.rows[threadIdx.x].x = k.x[threadIdx.x];
}

TL_KERNEL peer_pack(const __grid_constant__ tl_peer_pack_args k) {
  const int64_t step = (int64_t)gridDim.x * TL_DEVICE_THREADS;
  for (int64_t i = tl_thread(); i < k.count; i += step) {
    const int64_t e = k.at + i, row = tl_quotient(e, k.run);
    const int64_t apart = row * k.stride + k.first + (e - row * k.run);
    if (k.unpack) {
      copy_word(k.spread, apart, k.packed, i, k.word);
    } else {
      copy_word(k.packed, i, k.spread, apart, k.word);
    }
  }
}

extern "C" __global__ void peer_mark(const __grid_constant__ tl_peer_mark_args k) {
  tell_host(&k.progress->instruction, k.instruction);
  tell_host(&k.progress->group, -1);
  tell_host(&k.progress->waits_for, k.waits_for);
}

/* --- For tests: shakes the order of lanes --------------------------------------------------- */

extern "C" __global__ void peer_delay(const __grid_constant__ tl_peer_delay_args k) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while ((int64_t)(now - start) < k.ns);
}
