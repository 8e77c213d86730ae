/* soon_args.h - what soon.cuh is passed. */
#ifndef TL_SOON_ARGS_H
#define TL_SOON_ARGS_H

#include <stdint.h>

enum { TL_SOON_PARTS = 4 };

typedef struct tl_soon_args {
  const void *data[TL_SOON_PARTS]; /* rows of `stride` bytes */
  int64_t stride;
  int32_t rows[TL_SOON_PARTS];
  int32_t parts;        /* 0: nothing is fetched */
  int32_t first, lines; /* of 128 bytes, of each row */
} tl_soon_args;

#endif
