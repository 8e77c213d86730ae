// pass_hopper.cu - a pass of few rows through a model as one kernel: pass.h says what it does.
//
//   warps 0 .. 13   phase after phase: x, chains, what follows; blocks meet between phases
//   warps 14, 15    bring the weights of all phases through the ring, as slots become free
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
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&meeting->arrived) : "memory");
}

TL_GPU void enter_phase(const tl_pass_meeting *meeting, int phase) {
  if (threadIdx.x == 0) {
    const uint32_t all = (uint32_t)phase * gridDim.x;
    while (arrivals(&meeting->arrived) < all) {
    }
  }
  all_meet();
}

// The last block to end leaves the numbers as it found them.
TL_GPU void end_pass(tl_pass_meeting *meeting) {
  if (threadIdx.x != 0) return;
  if (atomicAdd(&meeting->ended, 1) != gridDim.x - 1) return;
  meeting->arrived = 0, meeting->ended = 0;
}

TL_GPU void to_cache(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// While a block waits: what the phase will read that does not pass through the ring. Keys and values
// are those of the attention that follows, a line of 128 bytes a thread of the device.
TL_GPU void warm_pages(const tl_cache_write_args &w, const Room &room, int rows) {
  enum { LINE = 128, POSITIONS = 4096 };
  const int units = rows * w.kv_heads, unit = blockIdx.x % units;
  const int row = unit / w.kv_heads, head = unit % w.kv_heads;
  const RowPlace &own = room.row[row];
  if (own.page < 0 || own.position > POSITIONS) return;
  const int key_bytes = w.width * w.at.page * 2, value_bytes = w.value_width * 2;
  const int key_lines = (key_bytes + LINE - 1) / LINE, lines = key_lines + w.at.page;
  const int all = (page_entry(w.at, own.position) + 1) * lines;
  const int shares = (gridDim.x - 1 - unit) / units + 1;  // blocks of this unit
  for (int i = blockIdx.x / units * READERS + threadIdx.x; i < all; i += shares * READERS) {
    const int entry = i / lines, line = i % lines;
    const int64_t page = w.at.table[(int64_t)own.request * w.at.pages_max + entry];
    if (page < 0 || page >= w.at.pages) continue;
    if (line < key_lines)
      to_cache((const char *)w.keys + (page * w.kv_heads + head) * key_bytes + line * LINE);
    else
      to_cache((const char *)w.values +
               ((page * w.at.page + line - key_lines) * w.kv_heads + head) * value_bytes);
  }
}

TL_GPU void warm(const tl_pass_phase &p, const Room &room, int rows) {
  enum { LINE = 128 };
  if (p.kind != TL_PASS_LINEAR) return;
  const tl_norm_args &a = p.norm.norm;
  const int64_t gains = p.before == TL_PASS_AS_IT_IS ? 0 : a.dim * (a.gain.bf16 ? 2 : 4);
  if (blockIdx.x == gridDim.x - 1)
    for (int64_t i = threadIdx.x * LINE; i < gains; i += READERS * LINE)
      to_cache((const char *)a.gain.data + i);
  if (p.after == TL_PASS_ROPE) warm_pages(p.write, room, rows);
}

template <int width, int chunk, int slots>
TL_GPU void attend(const tl_cached_args &g, const Room &room, unsigned char *shared) {
  if (threadIdx.x >= TL_CACHED_THREADS) return;
  for (int i = blockIdx.x; i < g.at.rows * g.kv_heads; i += gridDim.x) {
    const int row = i / g.kv_heads;
    attend_row<width, chunk, slots, 16>(g, row, room.row[row].request, room.row[row].position,
                                        i % g.kv_heads, shared);
  }
}

TL_GPU void find_rows(const tl_cache_places &at, int rows, RowPlace *out) {
  const int row = threadIdx.x;
  if (row >= rows) return;
  const int request = at.request[row], position = at.position[row];
  const bool there = request >= 0 && is_place(at, request, position);
  out[row] = {request, position, there ? page_of(at, request, position) : -1,
              page_place(at, position)};
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
  if (threadIdx.x < 32) ask_phase(s, 0, &room.phase[0]), copy_wait<0>();
  __syncthreads();
  if (threadIdx.x >= READERS) {
    const int bringer = (threadIdx.x - READERS) / 32;
    return bring(s, ring, room.brought[bringer], bringer);
  }
  Turn turn = {0, 0};
  for (int i = 0; i < s.count; i++) {
    const tl_pass_phase &p = room.phase[i % 2];
    if (threadIdx.x >= READERS - 32) ask_phase(s, i + 1, &room.phase[(i + 1) % 2]);
    warm(p, room, s.rows);
    if (i > 0) enter_phase(s.meeting, i);
    if (p.kind == TL_PASS_LINEAR)
      multiply(p, ring, turn, room, rest);
    else
      attend<width, chunk, slots>(p.attention, room, rest);
    if (threadIdx.x >= READERS - 32) copy_wait<0>();
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
