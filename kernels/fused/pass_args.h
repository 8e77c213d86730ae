/* pass_args.h - what a pass (pass_run.cuh) is passed: the phases of a pass, in device memory. */
#ifndef TL_PASS_ARGS_H
#define TL_PASS_ARGS_H

#include "../gemm/gemm_few_args.h"
#include "../tensor_map.h"
#include "fused_args.h"

enum {
  TL_PASS_ROWS = 8,     /* of x at most */
  TL_PASS_WARPS = 12,   /* that multiply */
  TL_PASS_BRINGERS = 4, /* that bring weights */
  TL_PASS_THREADS = 32 * (TL_PASS_WARPS + TL_PASS_BRINGERS),
  TL_PASS_READER_REGISTERS = 160, /* of a thread; all together are those of a multiprocessor */
  TL_PASS_BRINGER_REGISTERS = 32,
  TL_PASS_FEATURES = 8,                                 /* of a tile: two groups of 4 */
  TL_PASS_DEPTH = 512,                                  /* k of a slot */
  TL_PASS_PITCH = 2 * TL_PASS_DEPTH + 16,               /* bytes of a feature in a slot */
  TL_PASS_SLOT = TL_PASS_FEATURES * TL_PASS_PITCH,      /* bytes */
  TL_PASS_WEAVE = 32,                                   /* elements of two steps */
  TL_PASS_GROUP = 64,                                   /* k of a row of a box */
  TL_PASS_BOXES = TL_PASS_FEATURES * TL_PASS_DEPTH * 2, /* bytes of a slot that boxes fill */
  TL_PASS_APART_BY = 4 * 2 * TL_PASS_GROUP, /* bytes between all low halves and all high ones */
  TL_PASS_SLOTS_MIN = 8,                    /* a ring below this is not worth it */
  TL_PASS_SLOTS_MOST = 32,
  TL_PASS_FOLDS = 2 * TL_PASS_WARPS * 32 * 8, /* bytes: sums of leaves, two rounds */
  TL_PASS_PIECES = 8,                         /* of the row rule: 256 partials each */
  TL_PASS_PIECE = 16,                         /* bytes of a piece of the mail */
  TL_PASS_WIDTH = 64,                         /* of a head at most */
  TL_PASS_KEYS = 128,                         /* of a block of attention */
  TL_PASS_HEADS = 8,                          /* of a KV head at a time */
  TL_PASS_ENTRIES = 128,                      /* of a table of pages, in shared memory */
  TL_PASS_DESK = 19200,                       /* bytes that attention works on, and .. */
  TL_PASS_VALUES = 51200 /* .. of values, where a head's channels are all in one task */
};

typedef enum tl_pass_kind { TL_PASS_LINEAR, TL_PASS_ATTENTION } tl_pass_kind;
/* What happens to x of a product before it, and to its sums after it. */
typedef enum tl_pass_before { TL_PASS_AS_IT_IS, TL_PASS_NORM, TL_PASS_ADD_NORM } tl_pass_before;
typedef enum tl_pass_after {
  TL_PASS_STORE,
  TL_PASS_ADD, /* of the phase that follows: whoever makes y adds x to it */
  TL_PASS_SWIGLU,
  TL_PASS_ROPE
} tl_pass_after;

/* What the two blocks of a cluster do for each other, where there are several rows: each norms
** every other row for both, or has half of the leaves of the tiles of both (pass_share.h). */
typedef enum tl_pass_pairs { TL_PASS_APART, TL_PASS_HALF_ROWS, TL_PASS_HALF_LEAVES } tl_pass_pairs;

typedef struct tl_pass_phase {
  int32_t kind, before, after;
  int32_t offset;         /* tile i: block (i + offset) mod blocks, of those not spared */
  int32_t leaves_log;     /* of the product */
  int32_t half;           /* ROPE: channels between the two of a pair */
  int32_t x_pitch;        /* bytes of a row of x in shared memory */
  int32_t positions;      /* ROPE: of the table of angles */
  int32_t meets;          /* it begins when all blocks have left the phase before */
  int32_t from, from_a;   /* pieces of the mail: x, or what is added to norm.a; norm.a */
  int32_t to, to_sum;     /* what it makes; norm.a + norm.b. -1: not by mail */
  int32_t next_meets;     /* so does the phase that follows */
  int32_t whole_rounds;   /* tiles that every block has */
  int32_t last_tiles;     /* blocks from `offset` on that have one more */
  uint32_t half_inverse;  /* ROPE: t * half_inverse >> 32 is t / (half / 4); 0: that is t */
  int32_t from_k, from_v; /* attention: keys and values of this step */
  int32_t to_k, to_v;     /* ROPE: k, turned, and v */
  int32_t from_other;     /* ADD: what y is added to */
  int32_t shares_log;     /* attention: tasks of a row and KV head */
  int32_t spared;         /* ROPE: blocks 0 .. have no tile: attention has begun there */
  int32_t behind;         /* tasks of the attention whose result is x: it takes long. Else 0 */
  int32_t pairs;          /* a tl_pass_pairs */
  int32_t spare[1];
  int32_t first;       /* of its calls; phases are whole pieces of 16 bytes */
  const float *angles; /* ROPE: (positions, half, 2) */
  void *turned;        /* ROPE: q, turned */
  void *gated;         /* SWIGLU */
  const void *other;   /* ADD: (rows, columns), and its sum with y */
  void *summed;
  void *normed;              /* the norm's output, for whoever reads it beside the product */
  tl_gemm_few_args product;  /* tiles as this kernel cuts them */
  tl_add_norm_args norm;     /* NORM: a is norm.x */
  tl_cache_write_args write; /* ROPE: k goes to its page turned, v as it is */
  tl_cached_args attention;
} tl_pass_phase;

/* Bytes of a block's shared memory beside the ring and the largest x: phases that readers and
** bringing warps have and expect, rows, sums, leaves, and their barriers. */
enum {
  TL_PASS_ROOM = 4 * (int)sizeof(tl_pass_phase) + TL_PASS_ROWS * (16 + 4 * TL_PASS_PIECES) +
                 TL_PASS_FOLDS + 64 + 16 * TL_PASS_WARPS + 4 * TL_PASS_ENTRIES +
                 20 * TL_PASS_SLOTS_MOST + 16
};

/* Values that blocks send each other (pass_mail.cuh). Its words are TL_PASS_ABSENT until they come:
** no sum, product or rounding of a GPU makes two such bf16. */
#define TL_PASS_ABSENT 0xffffffffu

/* Where the blocks of a pass meet. `arrived` and `ended` are 0 between launches. Launches take
** turns with two halves of the mail; `used`: pieces of a half that are not absent. */
typedef struct tl_pass_meeting {
  uint32_t arrived, ended, turn, used[2];
  uint32_t spare[27];
} tl_pass_meeting;

typedef struct tl_pass_args {
  const tl_pass_phase *phases;
  const tl_tensor_map *maps; /* of phases' weights, TL_GEMM_FEW_PARTS each */
  tl_pass_meeting *meeting;
  void *mail[2];
  tl_cache_places at;
  int32_t mail_used; /* pieces of 16 bytes */
  int32_t count, rows;
  int32_t attending;         /* blocks 0 .. of it have tasks of attention */
  int32_t slots, slots_else; /* of the ring of weights: of these blocks, of the others */
  int32_t slot;              /* bytes */
  int32_t calm, hurried; /* slots on their way at most: while x is waited for; while chains run */
  int32_t boxed;         /* boxes fill them, else lines */
} tl_pass_args;

#endif
