/* data_source.h - what the kinds of sources (files, mixtures, given samples) have in common.
** Private to data*.c.
**
** A kind answers two questions about running sample g: what is in it, and how many targets it has.
** data.c asks them for every sample of a micro-batch and knows nothing else about kinds.
*/
#ifndef TL_DATA_SOURCE_H
#define TL_DATA_SOURCE_H

#include "data.h"

/* Where a sample is written: tokens and targets of its own row, and the segment table of the whole
** micro-batch, which grows. */
typedef struct tl_data_row {
  int32_t *tokens, *targets; /* (length) */
  int32_t *cu;               /* of the micro-batch */
  int32_t first;             /* place of the row in the micro-batch, in tokens */
  int32_t segments;          /* closed so far, in the micro-batch */
} tl_data_row;

/* Closes a segment that ends before token `end` of the row. */
static inline void tl_data_row_close(tl_data_row *row, int32_t end) {
  row->cu[++row->segments] = row->first + end;
}

typedef struct tl_data_kind {
  tl_status (*sample)(const tl_data *data, int64_t g, tl_data_row *row);
  int64_t (*targets)(const tl_data *data, int64_t g);
  tl_data_about (*look)(const tl_data *data);
  void (*close)(tl_data *data); /* frees what the kind holds, not `data` */
} tl_data_kind;

/* The first member of every kind's struct. */
struct tl_data {
  const tl_data_kind *kind;
  int32_t length;
  int64_t vocab;
  uint64_t seed;
  uint64_t fingerprint;
  char site[256]; /* "recipe.lua:7: " or "" */
};

/* Fills the common part; fails when length or vocab are out of range. */
tl_status tl_data_begin(tl_data *data, const tl_data_kind *kind, const tl_data_options *options);

/* Makes position t of tokens[first .. end) predict t + 1, and the last one nothing. */
void tl_data_next_tokens(const int32_t *tokens, int32_t first, int32_t end, int32_t *targets);

#endif
