/* fused_args.h - what fused.cu, fused_rows.cu, rope_hopper.cu and choice.cu are passed. */
#ifndef TL_FUSED_ARGS_H
#define TL_FUSED_ARGS_H

#include "../cache/cache_args.h"
#include "../elementwise/elementwise_args.h"
#include "../embedding/embedding_args.h"
#include "../gemm/gemm_hopper_args.h"
#include "../norm/norm_args.h"
#include "../sampling/sampling_args.h"

typedef struct tl_add_norm_args {
  tl_array a, b;
  tl_norm_args norm; /* x: the sum */
} tl_add_norm_args;

typedef struct tl_fused_norm_args {
  tl_add_norm_args sum;
  int32_t ahead; /* no kernel that may still run writes the gain */
} tl_fused_norm_args;

/* Of leaves.cu: the first summand is the tree over `sums`, (leaves, rows, dim) f32. */
typedef struct tl_leaves_norm_args {
  const float *sums;
  const void *other; /* bf16, as norm.x and norm.out */
  tl_norm_args norm; /* x: the sum */
  int32_t ahead;     /* no kernel that may still run writes the gain */
  float part;        /* 1 / dim where that is exact, else 0 */
} tl_leaves_norm_args;

typedef struct tl_rope_write_args {
  tl_rope_args q, k; /* k.y: nothing is written there */
  tl_cache_write_args write;
  int32_t wide;  /* values are copied 16 bytes at a time */
  int32_t ahead; /* no kernel that may still run writes request, position, a table */
} tl_rope_write_args;

enum { TL_ROPE_WRITE_THREADS = 320 };

/* Of fused_rows.cu: threads of a block, a warp a row; KV heads at most; and how many rows a step
** has at least for its kernels. */
enum { TL_ROPE_ROWS_THREADS = 512, TL_ROPE_ROWS_KV_HEADS = 8, TL_FUSED_ROWS = 1024 };

/* Of rope_hopper.cu: x (rows, k) is product.a, weights are product.b, in boxes of two halves of a
** head's pairs; outputs are those of `rope`. */
typedef struct tl_rope_hopper_args {
  tl_gemm_hopper_few_args product;
  tl_rope_write_args rope;
} tl_rope_hopper_args;

/* TURNED(rows, columns, columns of k): its tiles, for up to 64, 128 and 256 rows. */
#define TL_ROPE_HOPPER(TURNED) TURNED(64, 32, 16) TURNED(64, 64, 16) TURNED(128, 64, 16)

/* Of fused_tokens: the ids of rows, and what the table has for them. */
typedef struct tl_tokens_args {
  tl_follow_args follow;
  tl_embedding_args rows;
} tl_tokens_args;

/* Of choice.cu. */
typedef struct tl_choice_args {
  tl_sample_args sample;
  float *nll; /* (rows) */
} tl_choice_args;

enum { TL_CHOICE_LEAVES = 4 /* of a row, each with 256 threads */ };

#endif
