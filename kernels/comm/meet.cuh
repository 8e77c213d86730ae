/* meet.cuh - signals between GPUs, and meetings by them (comm_args.h). */
#ifndef TL_COMM_MEET_CUH
#define TL_COMM_MEET_CUH

#include "../device.cuh"
#include "comm_args.h"

/* --- Signals between devices: who sees the number sees all earlier writes -------------------- */

TL_GPU void tell(uint64_t *to, uint64_t value) {
  __threadfence_system();
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

TL_GPU uint64_t look(const uint64_t *from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

TL_GPU int32_t look_host(const int32_t *from) { return *(const volatile int32_t *)from; }
TL_GPU void tell_host(int32_t *to, int32_t value) { *(volatile int32_t *)to = value; }

enum { LOOKS = 4096 }; /* between two looks at the host */

/* Until *from has reached `value`: true; or the host wants an end. speaks: the host is told for
** whom this waits; where several blocks wait, one says it. */
TL_GPU bool wait_until(const uint64_t *from, uint64_t value, tl_peer_progress *progress,
                       int32_t group, int32_t peer, bool speaks) {
  for (uint32_t k = 1; look(from) < value; k++) {
    if (k % LOOKS != 0) continue;
    if (speaks) {
      tell_host(&progress->group, group);
      tell_host(&progress->waits_for, peer);
    }
    if (look_host(&progress->stop)) return false;
  }
  return true;
}

/* --- Meetings: thread r of a block deals with member r ---------------------------------------- */

/* To all members: this rank has come. One block. */
TL_GPU void come(const tl_meet_args &k, uint64_t turn) {
  const int32_t r = threadIdx.x;
  if (r == 0) {
    tell_host(&k.progress->instruction, k.instruction);
    tell_host(&k.progress->waits_for, -1);
  }
  if (r >= k.n) return;
  tl_peer_row *to = k.boards[r] + (turn & 1) * k.n + k.position;
  to->x = k.x, to->y = k.y;
  tell(&to->turn, turn);
}

/* Where the operands of all members are, once these have come, to `parts`. */
TL_GPU void find(const tl_meet_args &k, uint64_t turn, bool speaks, tl_peer_row *parts) {
  const int32_t r = threadIdx.x;
  if (r < k.n) {
    const tl_peer_row *from = k.board + (turn & 1) * k.n + r;
    const bool came = wait_until(&from->turn, turn, k.progress, k.group, r, speaks);
    parts[r].x = came ? from->x : k.x; /* memory that is there, also after a failure */
    parts[r].y = came ? from->y : k.y;
  }
  __syncthreads();
  if (r == 0 && speaks) tell_host(&k.progress->waits_for, -1);
}

#endif
