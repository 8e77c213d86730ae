/* sampling_args.h - what the GPU kernel of sample is passed, and numbers that it shares with the
** host.
**
** A block chooses for one row after the other. Its part of scratch holds, for each of `columns`
** columns, a weight, and two lists of keys and ids between which the sort goes back and forth.
*/
#ifndef TL_SAMPLING_ARGS_H
#define TL_SAMPLING_ARGS_H

#include <stdint.h>

enum {
  TL_SAMPLE_BLOCK = 256,       /* candidates of a block of S(i) */
  TL_SAMPLE_BLOCKS_MAX = 2048, /* of a row on a GPU */
  TL_SAMPLE_THREADS = 1024,
  TL_SAMPLE_COLUMN_BYTES = 20 /* of scratch */
};

#define TL_SAMPLE_STREAM UINT64_C(0xfb0d97631142db47) /* XXH64 of "sample" */

typedef struct tl_sample_args {
  const float *z;        /* (rows, width) */
  const int32_t *next;   /* (rows) */
  const float *controls; /* (rows, 2) */
  const int32_t *draws;  /* (rows, 6) */
  int32_t *ids;          /* (rows) */
  char *scratch;
  int64_t scratch_bytes; /* of a block of threads; a multiple of 16 */
  int32_t rows, width, columns;
  int32_t places; /* blocks of threads that have scratch */
} tl_sample_args;

typedef struct tl_follow_args {
  const int32_t *fed, *made; /* (rows), (made_rows) */
  int32_t *ids;              /* (rows) */
  int32_t rows, made_rows;
} tl_follow_args;

#endif
