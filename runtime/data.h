/* data.h - where the tokens of a run come from.
**
**   documents   [ d0 ][   d1   ][d2][   d3   ]     files, or parts of files that end with eos
**   stream      [d2][   d3   ][ d0 ][   d1   ]     all of them, in an order shuffled by the seed
**   samples     |  0  |  1  |  2  |  3  |  4  |    `length` tokens each; a short tail is dropped
**   epoch e     sample order_e(0), order_e(1) ..   shuffled by (seed, e)
**
** A sample is one row of the global batch. Documents inside it are its segments; a border of a
** sample cuts a document into two segments.
**
**   tokens    7  3  9  2 | 5  5 | 1  8
**   targets   3  9  2 -1 | 5 -1 | 8 -1       position t predicts t + 1 of its segment
**   cu        0            4      6     8    int32 starts of segments, then the end
**
** The running number of a sample is g = step * samples_global + its place in the global batch; its
** epoch is g / samples_per_epoch. Nothing else decides what a sample holds: neither the layout,
** nor the rank, nor the micro-batch, nor the machine. So any rank can ask for any sample at any
** time, and the document order is the same in all epochs (shuffling it again would need a table
** per epoch; shuffling the samples does not).
**
** Orders (data_order.h): documents by (seed, "data/documents", turn 0), samples by
** (seed, "data/samples", turn epoch), the places of a mixture by (seed, "data/mix", turn cycle).
**
** A mixture of shares w_0, w_1, ... gives of each cycle of w_0 + w_1 + ... samples exactly w_i to
** source i. With k = order(g mod cycle), source i is the one whose range w_0 + .. + w_(i-1) + [0,
** w_i) holds k, and its own running number is (g / cycle) * w_i + k - (w_0 + .. + w_(i-1)).
**
** Split: a document belongs to the first part when mix64(hash + depth * golden ratio) >> 11 is
** below fraction * 2^53, where hash is XXH64 of its bytes, and depth counts the splits before this
** one. A document's side depends on its content alone: files added later move nothing.
**
** A source is read-only once open: any number of threads may ask at once. Files are mapped, not
** read: they may be larger than memory, and must not change while a source is open. What is
** allocated is 16 bytes per document, counted as memory of kind "data".
*/
#ifndef TL_DATA_H
#define TL_DATA_H

#include <stdint.h>

#include "status.h"

typedef struct tl_data tl_data;

/* What every source of a run has in common. */
typedef struct tl_data_options {
  int32_t length;   /* tokens of a sample, at least 1 */
  int64_t vocab;    /* ids are 0 .. vocab - 1, at most 2^31 - 1 */
  uint64_t seed;    /* policy.seed */
  const char *site; /* recipe line that leads messages, "" for none; copied */
} tl_data_options;

/* One split that a document has to pass. */
typedef struct tl_data_part {
  double fraction; /* of the documents that are in the first part, in (0, 1) */
  int32_t held;    /* 0 the first part, 1 the rest */
} tl_data_part;

enum { TL_DATA_PARTS_MAX = 16 };

typedef struct tl_data_files {
  const char *const *paths; /* in the order that numbers the documents */
  int64_t count;
  int32_t width;             /* bytes of a token: 1, 2 or 4 (little endian) */
  int64_t eos;               /* the last token of a document; -1: a file is one document */
  const tl_data_part *parts; /* splits, the outermost first */
  int32_t part_count;
} tl_data_files;

/* Maps the files, finds their documents and their largest id, reading them once. Fails, with the
** file, when one is missing, empty, or not a whole number of tokens; and, with the numbers, when
** all documents together are shorter than one sample. An id that is not below vocab is no failure
** here: tl_data_look tells of it, and whoever knows where vocab was written says so. */
tl_status tl_data_open_files(const tl_data_files *files, const tl_data_options *options,
                             tl_data **out);

/* A mixture. Takes the sources over: on success *out closes them, on failure they stay yours. */
tl_status tl_data_open_mix(tl_data *const *sources, const int64_t *shares, int32_t count,
                           const tl_data_options *options, tl_data **out);

/* A sample that is written out, for tests and small experiments. */
typedef struct tl_data_sample {
  const int32_t *tokens;  /* (length) */
  const int32_t *targets; /* (length), -1 where nothing is to be learned; NULL: the next token */
  const int32_t *cu;      /* (cu_count) starts of segments and the end; NULL: one segment */
  int64_t token_count, target_count, cu_count;
} tl_data_sample;

/* Samples in the written order, again and again. Everything is copied. Fails when a sample is not
** `length` tokens long, has a token or target that is no id, or cu_seqlens that do not rise from 0
** to length. */
tl_status tl_data_open_given(const tl_data_sample *samples, int64_t count,
                             const tl_data_options *options, tl_data **out);

void tl_data_close(tl_data *data); /* NULL is allowed */

/* Samples sample_first .. sample_first + samples - 1 of the global batch of `step`.
** tokens, targets (T), cu (T + 1), T = samples * length; unused entries of cu repeat T. Fails when
** a token that is read is not an id (of a file that was changed after it was opened, or whose
** largest id nobody looked at): the message names file, position, id and vocab. Outputs are then
** arbitrary. */
tl_status tl_data_micro(const tl_data *data, int64_t step, int64_t samples_global,
                        int64_t sample_first, int32_t samples, int32_t length, int32_t *tokens,
                        int32_t *targets, int32_t *cu);

/* How many targets of these samples are not -1, without reading their tokens. */
tl_status tl_data_targets(const tl_data *data, int64_t step, int64_t samples_global,
                          int64_t sample_first, int32_t samples, int32_t length, int64_t *out);

/* Hash of the content: the documents that take part and their order, before any shuffle. Neither
** file names nor length, seed and vocab are in it. */
uint64_t tl_data_fingerprint(const tl_data *data);

/* The largest id of the documents that take part, and the first token that is not below vocab. */
typedef struct tl_data_beyond {
  int64_t token_max;             /* -1: nobody looked */
  int64_t file, position, token; /* file: -1 when every token is an id; else its place in paths */
} tl_data_beyond;

/* For the header of a run. Of a mixture, sums over its sources; its epoch has no end (0), and what
** is beyond is known of its sources only. */
typedef struct tl_data_about {
  int64_t files, documents, tokens, bytes, samples_per_epoch;
  tl_data_beyond beyond;
} tl_data_about;

tl_data_about tl_data_look(const tl_data *data);

#endif
