/* weights_file.h - named arrays in one file: the safetensors format.
**
**   +----------------+---------------------------+--------------------------------------+
**   | u64 n          | n bytes of JSON           | data, tensor after tensor, no gaps   |
**   +----------------+---------------------------+--------------------------------------+
**                      {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
**                       "__metadata__": {"key": "text"}}
**
** Little endian, row-major; data_offsets count from the end of the header. Reading maps the file:
** it may be larger than memory. Everything that a damaged file can say is checked before the first
** tensor is looked at: lengths, JSON, names that stand twice, dtypes, sizes, overlaps, gaps, the
** end. Each fault has its own message, which names the file and, where there is one, the tensor.
**
** Writing goes beside the file and is renamed over it (files.h): a killed writer leaves the old
** file whole. Tensors are laid out by the size of their elements, largest first, otherwise in the
** order given; the header is padded with spaces to a multiple of 64 bytes. So equal input makes
** equal bytes.
*/
#ifndef TL_WEIGHTS_FILE_H
#define TL_WEIGHTS_FILE_H

#include <stdint.h>

#include "view.h"

enum { TL_WEIGHTS_DIMS_MAX = 8 };

typedef struct tl_weights tl_weights;

/* One tensor of an open file; valid until it is closed. */
typedef struct tl_weights_entry {
  const char *name;
  const char *dtype_name; /* as in the file: "BF16" */
  int32_t dtype;          /* tl_dtype, or -1: one that this program cannot compute with */
  int32_t dims;           /* 0 for a single number */
  int64_t shape[TL_WEIGHTS_DIMS_MAX];
  int64_t first, bytes; /* in the data part of the file */
  const void *data;     /* not aligned */
} tl_weights_entry;

/* Fails with TL_IO when the file cannot be read, TL_DATA when it is damaged. */
tl_status tl_weights_open(const char *path, tl_weights **out);
void tl_weights_close(tl_weights *weights); /* NULL is allowed */

int64_t tl_weights_count(const tl_weights *weights);
/* Entries in the order of their data, 0 <= index < count. */
const tl_weights_entry *tl_weights_at(const tl_weights *weights, int64_t index);
/* Numbers in a tensor of a file. */
static inline int64_t tl_weights_elements(const tl_weights_entry *entry) {
  int64_t count = 1;
  for (int32_t i = 0; i < entry->dims; i++) count *= entry->shape[i];
  return count;
}
/* NULL when there is no such name. */
const tl_weights_entry *tl_weights_find(const tl_weights *weights, const char *name);

/* Pairs of the metadata, 0 <= index; 0 when there are no more. */
int tl_weights_metadata(const tl_weights *weights, int64_t index, const char **key,
                        const char **value);

/* A tensor to be written. Either parts of one dtype, joined along `dim`, equal in all other dims;
** or a tensor of an open file, whose data is read while it is written, a piece at a time, so that
** it needs no memory: a model may be larger than the machine. */
typedef struct tl_weights_source {
  const char *name; /* UTF-8 */
  const tl_view *parts;
  int32_t part_count; /* at least 1, or 0 with an entry */
  int32_t dim;
  const tl_weights_entry *entry; /* of a file that stays open; NULL with parts */
  const char *dtype_name;        /* what an entry is rounded to ("BF16"); NULL: as it is */
} tl_weights_source;

typedef struct tl_weights_text {
  const char *key, *value; /* UTF-8 */
} tl_weights_text;

/* Writes all of them, or leaves what was at `path` as it was. Fails for parts that do not fit. */
tl_status tl_weights_write(const char *path, const tl_weights_source *sources, int64_t count,
                           const tl_weights_text *metadata, int64_t metadata_count);

#endif
