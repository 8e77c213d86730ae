/* exchange_args.h - rows of experts between GPUs (moe/exchange.h), for kernel and launcher. */
#ifndef TL_EXCHANGE_ARGS_H
#define TL_EXCHANGE_ARGS_H

#include "comm_args.h"

enum {
  TL_EXCHANGE_BLOCKS_MAX = 4096, /* runs of rows that a rank sends */
  TL_EXCHANGE_LISTED_MAX = 1024, /* experts listed, with holes */
  TL_EXCHANGE_THREADS = 1024,    /* a whole multiprocessor, which its registers fill */
  /* Where rows pass through shared memory: pieces of rows that a warp has on their way, bytes of
  ** one, and of all. */
  TL_EXCHANGE_STAGES = 3,
  TL_EXCHANGE_PIECE = 2048,
  TL_EXCHANGE_PLACES_BYTES =
      TL_EXCHANGE_STAGES * TL_EXCHANGE_PIECE * TL_EXCHANGE_THREADS / TL_DEVICE_WARP
};

/* Where ranks cannot write each other's memory, rows travel in slabs: what one rank has for
** another, packed in the order in which both hold it (listing place, piece).
**
**   PUSH    rows of x of `position` go to the y of their ranks
**   PACK    y is the slab of rank `own` for rank `position`
**   PLACE   y takes what is for `position`, out of my own x and the slabs of the others (parts)
**
** A slab may travel in several messages: PACK and PLACE handle its rows at .. at + most - 1, and a
** message is as long as the largest slab could make it, since nobody on the host knows how many
** rows there are. */
enum { TL_EXCHANGE_PUSH, TL_EXCHANGE_PACK, TL_EXCHANGE_PLACE };

/* See exchange.cu. */
typedef struct tl_exchange_args {
  tl_meet_args meet; /* n 0: nobody is met */
  /* Where nobody is met: x and y of every rank; NULL: a rank alone, with `x` and `y`. */
  const tl_peer_row *parts;
  const char *x;
  char *y;
  const int32_t *counts;   /* (ranks, pieces, experts) */
  int64_t row_bytes, room; /* room: rows of any y */
  int64_t *exchanged;      /* pinned memory of the host: bytes are added to it; NULL: none are */
  int64_t bytes;           /* that are added; -1: those of the rows of other ranks */
  int64_t at, most;        /* rows of a slab */
  int32_t ranks, position, share, pieces, experts, waves, wave, slots, home;
  int32_t staged;                          /* 1: there is shared memory for rows on their way */
  int32_t mode, own;                       /* own: the rank that runs the kernel */
  int16_t listing[TL_EXCHANGE_LISTED_MAX]; /* (waves, ranks, slots) */
} tl_exchange_args;

#endif
