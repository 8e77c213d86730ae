// pass_hopper.cu - a pass of few rows through a model as one kernel: pass.h says what it does.
//
//   warps 0 .. 11   phase after phase: x, chains, what follows; blocks meet where a phase says so
//   warps 12 .. 15  bring the weights of all phases through the ring, as slots become free
//
//   shared   | ring of weights | phases, marks of slots, sums | x, or the tiles of attention |
//
// x goes from phase to phase by mail (pass_mail.cuh). What does not is there after a meeting: a
// number that each block adds 1 to when a phase is over, and reads until all have (release and
// acquire at the scope of the GPU). All blocks must run at once, which the launch demands
// (tl_cuda_grid.together).
#include "pass_attention.cuh"

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

// All blocks have left the phase before.
TL_GPU void meet(const tl_pass_args &s, Room &room) {
  if (threadIdx.x != 0) return;
  const uint32_t all = (uint32_t)++room.meetings * gridDim.x;
  while (arrivals(&s.meeting->arrived) < all) {
  }
}

// The last block to end leaves the numbers as the next launch finds them.
TL_GPU void end_pass(const tl_pass_args &s) {
  tl_pass_meeting *m = s.meeting;
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&m->ended, 1) != gridDim.x - 1) return;
  m->arrived = 0, m->ended = 0;
  m->used[m->turn % 2] = s.mail_used, m->used[1 - m->turn % 2] = 0;
  m->turn++;
}

// `rows` of `bytes`, `pitch` bytes apart, line after line, by the lanes of a warp.
TL_GPU void lines_to_cache(const char *from, int rows, int64_t pitch, int bytes) {
  enum { LINE = 128 };
  const int lines = (bytes + LINE - 1) / LINE;
  for (int i = thread_now() % 32; i < rows * lines; i += 32)
    to_cache(from + i / lines * pitch + i % lines * LINE);
}

// While a block waits: keys and values of the attention that follows, for a warp each a page, so
// that pages are looked up side by side.
TL_GPU void warm(const tl_pass_phase &p, const Room &room, int rows) {
  enum { POSITIONS = 2048 };
  const tl_cache_write_args &w = p.write;
  if (p.kind != TL_PASS_LINEAR || p.after != TL_PASS_ROPE || p.spared > 0 ||
      block_now() >= rows * w.kv_heads)
    return;
  const RowPlace &row = room.row[block_now() / w.kv_heads];
  const int head = block_now() % w.kv_heads;
  if (row.page < 0 || row.position > POSITIONS) return;
  const int key_bytes = w.width * w.at.page * 2, value_bytes = w.value_width * 2;
  const int64_t pitch = (int64_t)w.kv_heads * value_bytes;
  for (int i = thread_now() / 32; i * w.at.page <= row.position; i += TL_PASS_WARPS) {
    const int64_t page = page_of(w.at, row.request, i * w.at.page);
    if (page < 0) continue;
    lines_to_cache((const char *)w.keys + (page * w.kv_heads + head) * key_bytes, 1, 0, key_bytes);
    lines_to_cache((const char *)w.values + page * w.at.page * pitch + head * value_bytes,
                   w.at.page, pitch, value_bytes);
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

TL_GPU void run(const tl_pass_args &s) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const int slots = block_now() < s.attending ? s.slots : s.slots_else;
  Room &room = *(Room *)(shared + slots * s.slot);
  const Weights ring = {shared_address(shared), shared_address(&room.marks), slots, s.slot,
                        s.boxed};
  unsigned char *rest = (unsigned char *)(&room + 1);
  if (threadIdx.x < slots) {
    barrier_make(ring.full(threadIdx.x), s.boxed ? 2 : TL_PASS_BRINGERS);
    barrier_make(ring.empty(threadIdx.x), 1);
    room.marks.freed[threadIdx.x] = 0;
    if (threadIdx.x < 4) barrier_make(shared_address(room.arrived + threadIdx.x), 1);
    barriers_made();
  }
  if (threadIdx.x < 2 * TL_PASS_WARPS) {
    barrier_make(shared_address(room.folded + threadIdx.x), 1);
    if (threadIdx.x == 0) barrier_make(shared_address(&room.left), 1);
    if (threadIdx.x == 0) barrier_make(shared_address(&room.came), 1);
    barriers_made();
  }
  cluster_sync();
  if (threadIdx.x >= READERS) {
    registers_fewer<TL_PASS_BRINGER_REGISTERS>();
    return bring({s.phases, room.ahead, shared_address(room.arrived + 2), s.count}, s.maps, ring);
  }
  registers_more<TL_PASS_READER_REGISTERS>();
  const Script script = {s.phases, room.phase, shared_address(room.arrived), s.count};
  if (threadIdx.x == 0) script.ask(0);
  look_ahead(script.take(0));
  earlier_wait();  // weights and phases alone are there at all times
  const uint32_t half = s.meeting->turn % 2;
  if (threadIdx.x == 0)
    room.mail = (unsigned char *)s.mail[half], room.table_row = -1, room.meetings = 0;
  find_rows(s.at, s.rows, room.row);
  all_meet();
  make_absent(s, 1 - half, READERS);
  Turn turn = {0, 0};
  uint32_t turns = 0;  // bit i: the parity of barrier i of the pair that is waited for next
  for (int i = 0; i < s.count; i++) {
    const tl_pass_phase &p = script.take(i);
    if (p.kind == TL_PASS_ATTENTION) {
      OwnKeys keys = {};
      Desk &desk = *(Desk *)rest;
      begin_attention(p, room, desk, keys);
      if (p.meets) meet(s, room);
      all_have_left(script, i);
      attend_all(p, room, keys, desk);
    } else {
      look_ahead(p);
      warm(p, room, s.rows);
      if (p.meets) {
        meet(s, room);
        all_meet();
      }
      multiply(p, ring, turn, room, script, i, turns, rest);
    }
    if (p.next_meets) leave_phase(s.meeting);
  }
  end_pass(s);
  cluster_sync();  // nobody's memory goes while the other writes to it
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(TL_PASS_THREADS, 1)
    pass_few_64(const __grid_constant__ tl_pass_args s) {
  run(s);
}
