/* exchange_args.h - rows of experts between GPUs (moe/exchange.h), for kernel and launcher. */
#ifndef TL_EXCHANGE_ARGS_H
#define TL_EXCHANGE_ARGS_H

#include "comm_args.h"

enum {
  TL_EXCHANGE_BLOCKS_MAX = 4096, /* runs of rows that a rank takes */
  TL_EXCHANGE_LISTED_MAX = 1024, /* experts listed, with holes */
  TL_EXCHANGE_THREADS = 512
};

/* A rank takes the rows that are for it out of every rank's x; see exchange.cu. */
typedef struct tl_exchange_args {
  const tl_peer_row *parts; /* x of every rank; NULL: a rank alone, with `x` */
  const char *x;
  char *y;
  const int32_t *counts;   /* (ranks, pieces, experts) */
  int64_t row_bytes, room; /* room: rows of y */
  int32_t ranks, position, share, pieces, experts, waves, wave, slots, home;
  int16_t listing[TL_EXCHANGE_LISTED_MAX]; /* (waves, ranks, slots) */
} tl_exchange_args;

#endif
