/* pinned_args.h - what the kernels at the two ends of a queued run are passed (pinned.cu).
**
**   pinned memory   [in]              [out: word, turn, word, turn, ..]
**                     v                 ^
**   GPU             tensors  .. run ..  tensors
**
** A word that goes out says for itself whether it is there: the turn beside it is this run's. Both
** are one store of 8 bytes, so nothing is fenced.
*/
#ifndef TL_PINNED_ARGS_H
#define TL_PINNED_ARGS_H

#include "../device_args.h"

enum {
  TL_PINNED_PIECES = 8,    /* of one kernel */
  TL_PINNED_MOST = 1 << 18 /* bytes of a piece that goes in; more are the copy engine's */
};

/* Of what goes out. */
typedef struct tl_pinned_word {
  uint32_t word, turn;
} tl_pinned_word;

typedef struct tl_pinned_piece {
  const uint32_t *from;
  void *to; /* words; out: tl_pinned_word */
  int64_t words;
} tl_pinned_piece;

typedef struct tl_pinned_args {
  tl_pinned_piece pieces[TL_PINNED_PIECES];
  uint32_t turn; /* of what goes out */
  int32_t count;
} tl_pinned_args;

#endif
