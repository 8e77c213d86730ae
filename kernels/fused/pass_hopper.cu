// pass_hopper.cu - a pass of few rows through a model as one kernel: pass.h says what it does.
//
//   warps 0 .. 14   phase after phase: x, chains, what follows; blocks meet between phases
//   warp 15         brings the weights of all phases through the ring, as slots become free
//
//   shared   | ring of weights | barriers | phases, sums | x, or the tiles of attention |
//
// Blocks meet at a number that each adds 1 to when a phase is over, and reads until all have. What
// they wrote before is then there for the others (release and acquire at the scope of the GPU). All
// blocks must run at once, which the launch demands (tl_cuda_grid.together).
#include "../cache/cache_one.cuh"
#include "pass_linear.cuh"

TL_GPU uint32_t arrivals(const uint32_t *at) {
  uint32_t n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(at) : "memory");
  return n;
}

TL_GPU void leave_phase(tl_pass_meeting *meeting) {
  all_meet();
  if (threadIdx.x != 0) return;
  __threadfence();
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&meeting->arrived) : "memory");
}

TL_GPU void enter_phase(const tl_pass_meeting *meeting, int phase) {
  if (threadIdx.x == 0) {
    const uint32_t all = (uint32_t)phase * gridDim.x;
    while (arrivals(&meeting->arrived) < all) {
    }
    __threadfence();
  }
  all_meet();
}

// The last block to end leaves the numbers as it found them.
TL_GPU void end_pass(tl_pass_meeting *meeting) {
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&meeting->ended, 1) != gridDim.x - 1) return;
  meeting->arrived = 0, meeting->ended = 0;
}

TL_GPU void bring_phase(const tl_pass_args &s, int index, Room &room) {
  if (index >= s.count) return;
  const uint4 *from = (const uint4 *)(s.phases + index);
  uint4 *to = (uint4 *)&room.phase[index % 2];
  if (threadIdx.x < sizeof(tl_pass_phase) / 16) to[threadIdx.x] = from[threadIdx.x];
}

TL_GPU void to_cache(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// While a block waits: what the phase will read that does not pass through the ring. Keys and
// values are those of the attention that follows.
TL_GPU void warm(const tl_pass_phase &p, int rows) {
  enum { LINE = 128, POSITIONS = 2048 };
  if (p.kind != TL_PASS_LINEAR) return;
  const tl_norm_args &a = p.norm.norm;
  const int64_t gains = p.before == TL_PASS_AS_IT_IS ? 0 : a.dim * (a.gain.bf16 ? 2 : 4);
  if (blockIdx.x == gridDim.x - 1)
    for (int64_t i = threadIdx.x * LINE; i < gains; i += READERS * LINE)
      to_cache((const char *)a.gain.data + i);
  const tl_cache_write_args &w = p.write;
  if (p.after != TL_PASS_ROPE || blockIdx.x >= rows * w.kv_heads) return;
  const int row = blockIdx.x / w.kv_heads, head = blockIdx.x % w.kv_heads;
  const int request = w.at.request[row], position = w.at.position[row];
  if (request < 0 || !is_place(w.at, request, position) || position > POSITIONS) return;
  const int key_bytes = w.width * w.at.page * 2, value_bytes = w.value_width * 2;
  for (int first = 0; first <= position; first += w.at.page) {
    const int64_t page = page_of(w.at, request, first);
    if (page < 0) continue;
    const char *keys = (const char *)w.keys + (page * w.kv_heads + head) * key_bytes;
    for (int i = threadIdx.x * LINE; i < key_bytes; i += READERS * LINE) to_cache(keys + i);
    const char *values =
        (const char *)w.values + (page * w.at.page * w.kv_heads + head) * value_bytes;
    for (int i = threadIdx.x; i < w.at.page; i += READERS)
      to_cache(values + (int64_t)i * w.kv_heads * value_bytes);
  }
}

template <int width, int chunk, int slots>
TL_GPU void attend(const tl_cached_args &g, unsigned char *shared) {
  if (threadIdx.x >= TL_CACHED_THREADS) return;
  for (int i = blockIdx.x; i < g.at.rows * g.kv_heads; i += gridDim.x) {
    const int row = i / g.kv_heads;
    attend_row<width, chunk, slots, 16>(g, row, g.at.request[row], g.at.position[row],
                                        i % g.kv_heads, shared);
  }
}

TL_GPU void find_rows(const tl_cache_places &at, int rows, RowPlace *out) {
  const int row = threadIdx.x;
  if (row >= rows) return;
  const int request = at.request[row], position = at.position[row];
  const bool there = request >= 0 && is_place(at, request, position);
  out[row] = {position, there ? page_of(at, request, position) : -1, page_place(at, position)};
}

template <int width, int chunk, int slots>
TL_GPU void run(const tl_pass_args &s) {
  extern __shared__ __align__(128) unsigned char shared[];
  const Weights ring = {shared_address(shared), shared_address(shared) + s.slots * TL_PASS_SLOT,
                        shared_address(shared) + s.slots * (TL_PASS_SLOT + 8), s.slots};
  Room &room = *(Room *)(shared + s.slots * (TL_PASS_SLOT + 16));
  unsigned char *rest = (unsigned char *)(&room + 1);
  if (threadIdx.x < s.slots) {
    barrier_make(ring.full + 8 * threadIdx.x, 1);
    barrier_make(ring.empty + 8 * threadIdx.x, 1);
    barriers_made();
  }
  find_rows(s.at, s.rows, room.row);
  bring_phase(s, 0, room);
  __syncthreads();
  if (threadIdx.x >= READERS) return bring(s, ring);
  Turn turn = {0, 0};
  for (int i = 0; i < s.count; i++) {
    const tl_pass_phase &p = room.phase[i % 2];
    warm(p, s.rows);
    if (i > 0) enter_phase(s.meeting, i);
    bring_phase(s, i + 1, room);
    if (p.kind == TL_PASS_LINEAR)
      multiply(p, ring, turn, room, rest);
    else
      attend<width, chunk, slots>(p.attention, rest);
    if (i + 1 < s.count) leave_phase(s.meeting);
  }
  end_pass(s.meeting);
}

#define KERNEL(w, chunk, slots)                                    \
  extern "C" __global__ void __launch_bounds__(TL_PASS_THREADS, 1) \
      pass_few_##w(const __grid_constant__ tl_pass_args s) {       \
    run<w, chunk, slots>(s);                                       \
  }
TL_PASS_WIDTHS(KERNEL)
