/* attention_args.h - what the GPU kernels of attention are passed, and which of them there are.
**
** A kernel is compiled for a head width: the larger of w and x, rounded up to one of these; what
** a head lacks is zeros. A block of threads owns a tile of packed rows of one head:
**
**   kernel                     own rows              stream
**   attention_*                `rows` queries        keys, `chunk` at a time
**   attention_grad_query_*     `rows` queries        keys
**   attention_grad_key_*       `rows` keys           queries of the heads that read them
**   attention_grad_sums        lse and delta of every query row, side by side
**
**   rows       | tile 0          | tile 1          | tile 2          |
**   segments   [ 0        ][ 1                       ][ 2 ][ 3        ]
**   pieces     a           b       c                  d    e             one after the other
**
** Neither tiles nor chunks change a bit: all orders count from the start of the segment.
*/
#ifndef TL_ATTENTION_ARGS_H
#define TL_ATTENTION_ARGS_H

#include <stdint.h>

/* (rows, heads, width); `stride` elements from row to row. */
typedef struct tl_attention_matrix {
  const void *data;
  int64_t stride;
  int32_t width;
  int32_t bf16;
  int32_t aligned; /* 16 bytes can be read at once, from a multiple of 16 bytes in a head */
} tl_attention_matrix;

typedef struct tl_attention_output {
  void *data;
  int64_t stride;
  int32_t width;
  int32_t bf16;
  int32_t pairs; /* two neighbours, the first at an even channel, can be written at once */
} tl_attention_output;

typedef struct tl_attention_args {
  tl_attention_matrix q, k, v, o, grad;
  tl_attention_output out; /* o or dq */
  tl_attention_output dk, dv;
  float *lse;
  const int32_t *cu;
  float *sums;   /* (heads of the launch, rows): lse, delta */
  float *stack;  /* leaves of dk and dv that wait for a partner */
  int64_t tiles; /* of rows, for one head */
  int32_t rows, segments, heads;
  int32_t group;      /* query heads of a KV head */
  int32_t first_head; /* of this launch, a query head; whole groups */
  int32_t head_count;
  int32_t window; /* keys that a row sees at most */
  int32_t kv_block, split;
  int32_t leaf_heads, leaves_log;
  float factor, scale, dk_scale;
} tl_attention_args;

/* width, chunk, warps; a warp owns 16 rows. Blocks of up to `chunk` keys need one pass. */
/* clang-format off */
#define TL_ATTENTION_BF16(ROW)                                     \
  ROW(16, 64, 4) ROW(16, 128, 4) ROW(32, 64, 4) ROW(32, 128, 4)    \
  ROW(64, 64, 4) ROW(64, 128, 4) ROW(96, 64, 4) ROW(96, 128, 4)    \
  ROW(128, 64, 4) ROW(128, 128, 4) ROW(192, 64, 4) ROW(256, 64, 4)
#define TL_ATTENTION_GRAD_QUERY_BF16(ROW)                     \
  ROW(16, 64, 4) ROW(32, 64, 4) ROW(64, 64, 4) ROW(96, 64, 4) \
  ROW(128, 64, 4) ROW(192, 32, 4) ROW(256, 32, 4)
#define TL_ATTENTION_GRAD_KEY_BF16(ROW)                       \
  ROW(16, 64, 4) ROW(32, 64, 4) ROW(64, 64, 4) ROW(96, 32, 4) \
  ROW(128, 32, 4) ROW(192, 32, 4) ROW(256, 32, 4)
/* clang-format on */
/* Wider heads than this have blocks for dk and others for dv: their sums fill the registers. */
enum { TL_ATTENTION_BOTH_MAX = 128 };
/* Bytes of a row of bf16 in shared memory: 8 rows, one below the other, lie in different banks. */
#define TL_ATTENTION_PITCH(width) (2 * (width) + 16)

/* width, chunk; 256 threads own 64 rows. */
/* clang-format off */
#define TL_ATTENTION_F32(ROW)                                        \
  ROW(16, 64) ROW(16, 128) ROW(32, 64) ROW(32, 128) ROW(64, 64)      \
  ROW(64, 128) ROW(128, 64) ROW(128, 128) ROW(256, 64) ROW(256, 128)
#define TL_ATTENTION_GRAD_F32(ROW)                              \
  ROW(16, 64) ROW(32, 64) ROW(64, 64) ROW(128, 64) ROW(256, 64)
/* clang-format on */
enum {
  TL_ATTENTION_F32_ROWS = 64,
  TL_ATTENTION_F32_THREADS = 256,
  TL_ATTENTION_F32_PITCH = 68, /* floats: 64 own rows, and 4 that turn the banks */
  TL_ATTENTION_F32_SLICE = 32  /* channels or stream rows in shared memory at a time */
};
/* Floats of the slices of own rows and of `chunk` stream rows, or of whole rows. */
#define TL_ATTENTION_F32_STAGE(width, chunk)                                \
  (TL_ATTENTION_F32_SLICE * ((width) > TL_ATTENTION_F32_PITCH + (chunk) + 4 \
                                 ? (width)                                  \
                                 : TL_ATTENTION_F32_PITCH + (chunk) + 4))

#endif
