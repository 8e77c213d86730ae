/* pass_mail.cuh - how blocks of a pass hand values on.
**
** A block that has made a part of x for the next phase writes it into the mail, and whoever needs x
** reads it there until it has come. Each word of 32 bits, two bf16, says for itself whether it is
** there: it was TL_PASS_ABSENT before. So nothing is fenced, nobody counts, and the way from one
** block's sum to another's shared memory is one write and one read.
**
**   launch      t              t + 1          t + 2
**   half 0      used           made absent    used
**   half 1      made absent    used           made absent      by all blocks, a part each, at first
**
** What has not been handed on that way, keys and values in pages, is there after a meeting.
*/
#ifndef TL_PASS_MAIL_CUH
#define TL_PASS_MAIL_CUH

#include "../device.cuh"
#include "pass_args.h"

/* 16 bytes that another block may be writing; each of their words is old or new. */
TL_GPU uint4 peek(const void *from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
TL_GPU uint32_t peek_word(const void *from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
TL_GPU bool is_absent(const uint4 &v) {
  return v.x == TL_PASS_ABSENT || v.y == TL_PASS_ABSENT || v.z == TL_PASS_ABSENT ||
         v.w == TL_PASS_ABSENT;
}
/* No arithmetic gives this NaN; whoever waits for it shall not wait forever. */
TL_GPU uint32_t word_to_post(uint32_t pair) { return pair == TL_PASS_ABSENT ? 0x7fff7fffu : pair; }

TL_GPU void post(void *to, uint32_t pair) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word_to_post(pair)) : "memory");
}
TL_GPU void post_piece(void *to, const uint4 &v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(word_to_post(v.x)), "r"(word_to_post(v.y)), "r"(word_to_post(v.z)),
               "r"(word_to_post(v.w))
               : "memory");
}

/* What a phase reads: from the mail, or where it lies. */
struct Source {
  const uint16_t *at;
  bool comes;
};
TL_GPU Source source_in(const unsigned char *mail, int piece, const void *otherwise) {
  if (piece < 0) return {(const uint16_t *)otherwise, false};
  return {(const uint16_t *)(mail + (int64_t)piece * 16), true};
}

/* Pieces that were asked for and had not come, i at element place(i): the first alone until it is
** there, so that waiting asks for little; then all that lack. */
template <int count, class Place>
TL_GPU void await(const Source &s, const Place &place, uint4 (&v)[count]) {
  if (!s.comes) return;
  while (is_absent(v[0])) v[0] = peek(s.at + place(0));
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int i = 1; i < count; i++)
      if (is_absent(v[i])) v[i] = peek(s.at + place(i)), again = true;
  }
}

/* The same where all of it is little: all that lack are looked at each time, which saves a trip. */
template <int count, class Place>
TL_GPU void await_all(const Source &s, const Place &place, uint4 (&v)[count]) {
  if (!s.comes) return;
  for (bool again = true; again;) {
    again = false;
#pragma unroll
    for (int i = 0; i < count; i++)
      if (is_absent(v[i])) v[i] = peek(s.at + place(i)), again = true;
  }
}

/* Threads of a block make its part of the half that is not used absent. */
TL_GPU void make_absent(const tl_pass_args &s, uint32_t half, int threads) {
  const uint32_t used = s.meeting->used[half];
  const uint4 absent = make_uint4(TL_PASS_ABSENT, TL_PASS_ABSENT, TL_PASS_ABSENT, TL_PASS_ABSENT);
  for (uint32_t i = blockIdx.x * threads + threadIdx.x; i < used; i += gridDim.x * threads)
    ((uint4 *)s.mail[half])[i] = absent;
}

#endif
