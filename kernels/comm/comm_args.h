/* comm_args.h - what GPUs of one process share, and the arguments of the kernels that use it.
**
** Every rank has a board in its own memory for each of its groups. A rank that comes to a
** collective writes where its operands are, then the number of the collective (its turn), to its
** row of every member's board, and looks on at its own board until all members have come:
**
**   board of rank 0    turn even [of 0][of 1] ..   turn odd [of 0][of 1] ..
**                                  ^ written by rank 1 through the link, read by rank 0
**
** Two sets of rows, because a fast rank may come to turn t + 1 while a slow one still reads turn t;
** it cannot come to t + 2 before the slow one has left t.
**
** A channel has two slots in the memory of its target and a counter on either side: messages that
** were sent, in the target's memory, and messages that were taken, in the source's.
*/
#ifndef TL_COMM_ARGS_H
#define TL_COMM_ARGS_H

#include "../device_args.h"

enum { TL_PEERS_MAX = 16, TL_PEER_SLOTS = 2, TL_PEER_GROUPS_MAX = 16 };

typedef struct tl_peer_row {
  const void *x;
  void *y;
  uint64_t turn; /* written last */
} tl_peer_row;

/* In pinned memory of the host: what the device waits for, whether it should stop, and how many
** bytes of experts' rows have come from other ranks, by group. */
typedef struct tl_peer_progress {
  int32_t instruction; /* that is waiting or was the last to wait */
  int32_t waits_for;   /* position in the group, -1: nobody */
  int32_t group;       /* -1: waits_for is a rank */
  int32_t stop;        /* written by the host: 1 ends every wait */
  int64_t exchanged[TL_PEER_GROUPS_MAX];
} tl_peer_progress;

typedef struct tl_meet_args {
  tl_peer_row *board; /* mine: (2, n) */
  tl_peer_row *boards[TL_PEERS_MAX];
  tl_peer_row *parts; /* (n) what was found, for the kernels that follow */
  uint64_t *turn;     /* of the last collective; my own memory */
  const void *x;
  void *y;
  tl_peer_progress *progress;
  int32_t n, position, group, instruction;
  int32_t turns; /* 1, or 2 where the kernel before this one was a meeting, too (exchange.cu) */
} tl_meet_args;

/* out[o, i] = fold over r of x of rank r at [o * part_stride + part_first + i], i < piece. */
typedef struct tl_peer_fold_args {
  const tl_peer_row *parts;
  void *out;
  int64_t outer, piece, part_first, part_stride; /* elements */
  int32_t n, kind;                               /* TL_PEER_.. */
} tl_peer_fold_args;

enum { TL_PEER_TREE, TL_PEER_MAX, TL_PEER_COUNT };

/* all_gather: out[o, r, :] = x of rank r [o, :]. */
typedef struct tl_peer_gather_args {
  const tl_peer_row *parts;
  void *out;
  int64_t outer, bytes; /* of a piece */
  int32_t n;
} tl_peer_gather_args;

/* Slices from their owners: bytes border[r] .. border[r + 1] - 1 of y of rank r. */
typedef struct tl_peer_pull_args {
  const tl_peer_row *parts;
  void *out;
  int64_t border[TL_PEERS_MAX + 1];
  int32_t n, position;
} tl_peer_pull_args;

/* One message; either side has the same channel. */
typedef struct tl_peer_message_args {
  uint64_t *mine;   /* messages that this side has done; its own memory */
  uint64_t *theirs; /* what the other side has done, as it told me; my memory */
  uint64_t *told;   /* theirs of the other side; its memory */
  char *slots;      /* (TL_PEER_SLOTS, slot_bytes) in the target's memory */
  void *x;
  int64_t slot_bytes, bytes; /* slot_bytes: a multiple of 16 */
  tl_peer_progress *progress;
  int32_t receives, peer, instruction;
} tl_peer_message_args;

/* For bytes that another transport moves: rows made of addresses, words of 4 bytes taken out of
** pieces or put into them, and a note for the host.
**
** pack:   packed[e] = spread[e / run * stride + first + e % run]      e = at .. at + count - 1
** unpack: the other way round; packed begins with e = at
*/
typedef struct tl_peer_rows_args {
  tl_peer_row *rows;
  const void *x[TL_PEERS_MAX];
  int32_t n;
} tl_peer_rows_args;

typedef struct tl_peer_pack_args {
  char *packed, *spread;
  int64_t at, count, run, stride, first; /* words */
  int32_t word, unpack;                  /* bytes of a word: 1 or 4 */
} tl_peer_pack_args;

typedef struct tl_peer_mark_args {
  tl_peer_progress *progress;
  int32_t instruction, waits_for; /* a rank, -1: nobody */
} tl_peer_mark_args;

typedef struct tl_peer_delay_args {
  int64_t ns;
} tl_peer_delay_args;

#endif
