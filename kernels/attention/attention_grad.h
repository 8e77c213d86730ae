/* attention_grad.h - the two ways to walk over the scores of the backward pass, with the same bits.
**
**   tiles   dq by tiles of queries, then dk and dv by tiles of keys; each makes all scores again.
**           For any length, and for as many workers as there are tiles.
**   whole   a worker takes one KV head of a whole segment, makes each score once, and keeps the
**           sums of dk and dv of all its keys in scratch. For f32 and segments that fit there.
*/
#ifndef TL_ATTENTION_GRAD_H
#define TL_ATTENTION_GRAD_H

#include "attention_call.h"

enum {
  TL_ATTENTION_STREAM = 128, /* stream rows at a time, a multiple of 16; no bit depends on it */
  TL_ATTENTION_LEVELS = 7    /* of the tree over leaves */
};

typedef struct tl_attention_backward {
  tl_attention_sizes sizes;
  const tl_view *q, *k, *v, *o, *lse, *grad, *dq, *dk, *dv;
  int64_t leaves;
  float dk_scale;
  tl_team *team;
} tl_attention_backward;

/* lse and delta of up to TL_ATTENTION_STREAM rows, and room to widen do and o. */
typedef struct tl_attention_sums {
  float lse[TL_ATTENTION_STREAM], delta[TL_ATTENTION_STREAM];
  float grad[TL_ATTENTION_STREAM][TL_ATTENTION_WIDTH_MAX];
  float o[TL_ATTENTION_STREAM][TL_ATTENTION_WIDTH_MAX];
} tl_attention_sums;

/* Of rows row .. row + count - 1 of query head `head`; +0 up to 32 rows. */
void tl_attention_load_sums(const tl_attention_backward *b, int64_t row, int64_t head,
                            int64_t count, tl_attention_sums *out);

/* Whether segments of `length` rows go whole. */
int tl_attention_goes_whole(const tl_attention_backward *b, int64_t length);

/* dq, dk and dv of the segments that go whole. */
void tl_attention_grad_whole(const tl_attention_backward *b);

#endif
