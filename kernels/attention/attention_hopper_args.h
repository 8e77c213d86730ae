/* attention_hopper_args.h - what Hopper's kernels of attention are passed, and which there are.
**
** They take whole tiles by the copy engine and multiply them by warpgroups; attention_args.h has
** the plain kernels, which take whatever these do not. Both give the same bits.
**
**   kernel                            own rows         stream
**   attention_wgmma_<w>_<kv>          128 queries      keys, a block at a time
**   attention_wgmma_192_128_<kv>      the same; q and k up to 192 wide, v up to 128
**   attention_grad_query_wgmma_<w>    128 queries      keys
**   attention_grad_key_wgmma_<w>      128 keys         queries of the heads that read them
**                                     above 128 channels 64 keys after the other 64
**   attention_plan                    writes the list of tiles, and +0 to rows of no segment
**
** A tile lies in one segment and begins at a multiple of 128 from its start. The list of tiles
** comes from cu_seqlens, on the GPU, longest work first:
**
**   segments   [ 0        ][ 1                       ][ 2 ]
**   tiles      0  1        2      3      4      5     6        (start, length, offset, work)
**
** One block of threads runs on each multiprocessor; it takes one (tile, head) after the other from
** the list by a counter. Which block has which tile changes no bit.
**
**   warpgroup 0       a warp that loads: own rows, stream, and the name of the tile; in the forward
**                     pass others that clear and write (attention_hopper_forward.cuh)
**   warpgroups 1, 2   64 of the 128 own rows each
*/
#ifndef TL_ATTENTION_HOPPER_ARGS_H
#define TL_ATTENTION_HOPPER_ARGS_H

#include "../tensor_map.h"
#include "attention_args.h"

enum {
  TL_ATTENTION_TILE = 128,      /* own rows */
  TL_ATTENTION_PLAIN_ROWS = 64, /* of the plain bf16 kernels */
  TL_ATTENTION_WORK = 64,       /* rows of the stream: the unit of work in the list */
  TL_ATTENTION_WGMMA_THREADS = 384,
  TL_ATTENTION_PLAN_THREADS = 1024,
  TL_ATTENTION_PLAN_BINS = 4096 /* tiles with more work than this stand in any order */
};

/* Stands before the tiles. */
typedef struct tl_attention_plan {
  int32_t count; /* of tiles */
  int32_t next;  /* (tile, head) pairs that were taken beyond the first of each block */
  int32_t unused[2];
} tl_attention_plan;

typedef struct tl_attention_listed {
  int32_t start, length, offset, work;
} tl_attention_listed;

typedef struct tl_attention_hopper_args {
  tl_tensor_map q, k, v, grad; /* boxes of one head: 64 channels x rows of a slot */
  tl_attention_args g;
  tl_attention_plan *plan;
  float *kept; /* a row's state of parts before this one, of each block of threads */
} tl_attention_hopper_args;

/* Rows `begin` .. that no segment holds, in up to three outputs; lse becomes -infinity. */
typedef struct tl_attention_plan_args {
  const int32_t *cu;
  int32_t segments, rows, window;
  int32_t by_key; /* own rows are keys: the work is queries */
  tl_attention_plan *plan;
  void *out[3];
  int64_t row_bytes[3]; /* multiples of 16 */
  float *lse;
  int32_t heads;
} tl_attention_plan_args;

/* name, width of q and k, of v and o, keys of a block, slots for keys, slots for values; of those
** that are wide enough the first runs. */
/* clang-format off */
#define TL_ATTENTION_WGMMA(ROW)                                                   \
  ROW(64, 64, 64, 64, 6, 6) ROW(64, 64, 64, 128, 4, 4)                            \
  ROW(128, 128, 128, 64, 5, 4) ROW(128, 128, 128, 128, 3, 2)                      \
  ROW(192_128, 192, 128, 64, 4, 3) ROW(192, 192, 192, 64, 3, 2)                   \
  ROW(256, 256, 256, 64, 3, 2)
/* width, rows of the stream at a time, slots */
#define TL_ATTENTION_GRAD_QUERY_WGMMA(ROW)                                        \
  ROW(64, 128, 4) ROW(128, 128, 2) ROW(192, 64, 2) ROW(256, 32, 3)
#define TL_ATTENTION_GRAD_KEY_WGMMA(ROW) ROW(64, 64, 6) ROW(128, 64, 4)
/* Of these one warpgroup makes dk, the other dv, for half a tile. */
#define TL_ATTENTION_GRAD_WIDE_WGMMA(ROW) ROW(192, 64, 3) ROW(256, 64, 2)
/* clang-format on */
/* Bytes of shared memory: own rows, slots, O on its way out (with more than 192 channels it has no
** place of its own) and its sums, barriers and names of tiles, 1 KB to begin at a multiple of
** 1,024. */
#define TL_ATTENTION_WGMMA_SHARED(width, values, block, k_slots, v_slots)           \
  (2 * (width) * (TL_ATTENTION_TILE + (block) * (k_slots)) +                        \
   2 * (values) * (((width) > 192 ? 0 : TL_ATTENTION_TILE) + (block) * (v_slots)) + \
   8 * TL_ATTENTION_TILE + 512 + 1024)
/* `own` rows twice; lse and delta of each row of a slot, which only key kernels keep there. */
#define TL_ATTENTION_GRAD_SHARED(own, width, step, slots) \
  (4 * (width) * ((own) + (step) * (slots)) + (slots)*8 * (step) + 512 + 1024)

#endif
