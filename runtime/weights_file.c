/* weights_file.c - reads and checks safetensors files. */
#include "weights_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "weights_dtypes.h"

enum { HEADER_BYTES_MAX = 100000000 };

struct tl_weights {
  char *path;
  tl_mapping mapping;
  json_t *header; /* names and metadata live here */
  tl_weights_entry *entries;
  int64_t count;
};

static tl_status damaged(const tl_weights *w, const char *name, const char *text) {
  return tl_fail(TL_DATA, "%s: tensor %s: %s", w->path, name, text);
}

/* Reads the length, then the JSON; *data is where the tensors begin. */
static tl_status read_header(tl_weights *w, const uint8_t **data, int64_t *data_bytes) {
  uint64_t length;
  const uint8_t *bytes = w->mapping.data;
  if (w->mapping.bytes < (int64_t)sizeof length)
    return tl_fail(TL_DATA, "%s: %lld bytes are too short for a safetensors file", w->path,
                   (long long)w->mapping.bytes);
  memcpy(&length, bytes, sizeof length);
  if (length > (uint64_t)w->mapping.bytes - sizeof length)
    return tl_fail(TL_DATA, "%s: the header is said to have %llu bytes, but the file has %lld",
                   w->path, (unsigned long long)length, (long long)w->mapping.bytes);
  if (length > HEADER_BYTES_MAX)
    return tl_fail(TL_DATA, "%s: the header has %llu bytes, more than %d", w->path,
                   (unsigned long long)length, HEADER_BYTES_MAX);
  json_error_t error;
  const char *text = (const char *)bytes + sizeof length;
  w->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
  if (w->header == NULL && json_error_code(&error) == json_error_duplicate_key)
    return tl_fail(TL_DATA, "%s: a name stands twice in the header: %s", w->path, error.text);
  if (w->header == NULL)
    return tl_fail(TL_DATA, "%s: the header is not JSON: %s", w->path, error.text);
  if (!json_is_object(w->header))
    return tl_fail(TL_DATA, "%s: the header is not a JSON object", w->path);
  *data = bytes + sizeof length + length;
  *data_bytes = w->mapping.bytes - (int64_t)(sizeof length + length);
  return TL_OK;
}

/* Reads a shape and multiplies it up: elements, then bytes. */
static tl_status read_shape(const tl_weights *w, const json_t *shape, int64_t element_bytes,
                            tl_weights_entry *entry, int64_t *bytes) {
  if (!json_is_array(shape)) return damaged(w, entry->name, "it has no list called shape");
  if (json_array_size(shape) > TL_WEIGHTS_DIMS_MAX)
    return damaged(w, entry->name, "its shape has more than 8 dims");
  entry->dims = (int32_t)json_array_size(shape);
  int64_t product = element_bytes;
  int overflow = 0, empty = 0;
  for (int32_t i = 0; i < entry->dims; i++) {
    const json_t *size = json_array_get(shape, (size_t)i);
    if (!json_is_integer(size) || json_integer_value(size) < 0)
      return damaged(w, entry->name, "a size in its shape is not an integer from 0");
    entry->shape[i] = json_integer_value(size);
    empty |= entry->shape[i] == 0;
    overflow |= __builtin_mul_overflow(product, entry->shape[i], &product);
  }
  if (overflow && !empty)
    return damaged(w, entry->name, "the bytes of its shape do not fit into 63 bits");
  *bytes = empty ? 0 : product;
  return TL_OK;
}

static tl_status read_entry(const tl_weights *w, const char *name, const json_t *fields,
                            int64_t data_bytes, tl_weights_entry *out) {
  tl_weights_entry entry = {.name = name};
  if (!json_is_object(fields)) return damaged(w, name, "its description is not a JSON object");
  const char *dtype = json_string_value(json_object_get(fields, "dtype"));
  if (dtype == NULL) return damaged(w, name, "it has no dtype");
  const tl_weights_dtype *known = tl_weights_dtype_find(dtype);
  if (known == NULL)
    return tl_fail(TL_DATA, "%s: tensor %s: unknown dtype %.40s", w->path, name, dtype);
  entry.dtype_name = known->name;
  entry.dtype = known->dtype;
  int64_t shape_bytes = 0;
  TL_TRY(read_shape(w, json_object_get(fields, "shape"), known->bytes, &entry, &shape_bytes));
  const json_t *offsets = json_object_get(fields, "data_offsets");
  const json_t *first = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(end))
    return damaged(w, name, "its data_offsets are not two integers");
  const int64_t begin = json_integer_value(first), stop = json_integer_value(end);
  if (begin < 0 || stop < begin) return damaged(w, name, "its data_offsets do not rise from 0");
  if (stop - begin != shape_bytes)
    return tl_fail(TL_DATA, "%s: tensor %s: its shape needs %lld bytes, its data_offsets give %lld",
                   w->path, name, (long long)shape_bytes, (long long)(stop - begin));
  if (stop > data_bytes)
    return tl_fail(TL_DATA, "%s: tensor %s: cut off: it ends at byte %lld of data that has %lld",
                   w->path, name, (long long)stop, (long long)data_bytes);
  entry.first = begin;
  entry.bytes = stop - begin;
  *out = entry;
  return TL_OK;
}

static int compare_places(const void *a, const void *b) {
  const tl_weights_entry *x = a, *y = b;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
  return strcmp(x->name, y->name);
}

/* Tensors lie one behind the other and fill the data part. */
static tl_status check_places(const tl_weights *w, int64_t data_bytes) {
  int64_t end = 0;
  for (int64_t i = 0; i < w->count; i++) {
    const tl_weights_entry *entry = &w->entries[i];
    if (entry->first < end)
      return tl_fail(TL_DATA, "%s: tensor %s: begins at byte %lld, inside tensor %s (to %lld)",
                     w->path, entry->name, (long long)entry->first, w->entries[i - 1].name,
                     (long long)end);
    if (entry->first > end)
      return tl_fail(TL_DATA, "%s: tensor %s: begins at byte %lld, the one before ends at %lld",
                     w->path, entry->name, (long long)entry->first, (long long)end);
    end = entry->first + entry->bytes;
  }
  if (end != data_bytes)
    return tl_fail(TL_DATA, "%s: %lld bytes stand after the last tensor", w->path,
                   (long long)(data_bytes - end));
  return TL_OK;
}

static tl_status check_metadata(const tl_weights *w) {
  json_t *metadata = json_object_get(w->header, "__metadata__");
  if (metadata == NULL) return TL_OK;
  int texts = json_is_object(metadata);
  const char *key;
  json_t *value;
  if (texts) json_object_foreach(metadata, key, value) texts &= json_is_string(value);
  if (texts) return TL_OK;
  return tl_fail(TL_DATA, "%s: __metadata__ is not a JSON object of texts", w->path);
}

static tl_status read_entries(tl_weights *w) {
  const uint8_t *data;
  int64_t data_bytes;
  TL_TRY(read_header(w, &data, &data_bytes));
  TL_TRY(check_metadata(w));
  w->entries = calloc(json_object_size(w->header) + 1, sizeof *w->entries);
  if (w->entries == NULL) return tl_fail(TL_MEMORY, "%s: out of memory for its tensors", w->path);
  const char *name;
  json_t *fields;
  json_object_foreach(w->header, name, fields) {
    if (strcmp(name, "__metadata__") == 0) continue;
    TL_TRY(read_entry(w, name, fields, data_bytes, &w->entries[w->count]));
    w->count++;
  }
  qsort(w->entries, (size_t)w->count, sizeof *w->entries, compare_places);
  for (int64_t i = 0; i < w->count; i++) w->entries[i].data = data + w->entries[i].first;
  return check_places(w, data_bytes);
}

tl_status tl_weights_open(const char *path, tl_weights **out) {
  tl_status status = TL_OK;
  tl_weights *w = calloc(1, sizeof *w);
  if (w == NULL || (w->path = strdup(path)) == NULL) {
    status = tl_fail(TL_MEMORY, "%s: out of memory", path);
    goto done;
  }
  TL_TRY_GOTO(status, tl_file_map(path, &w->mapping), done);
  TL_TRY_GOTO(status, read_entries(w), done);
  *out = w, w = NULL;
done:
  tl_weights_close(w);
  return status;
}

void tl_weights_close(tl_weights *weights) {
  if (weights == NULL) return;
  json_decref(weights->header);
  tl_file_unmap(&weights->mapping);
  free(weights->entries);
  free(weights->path);
  free(weights);
}

int64_t tl_weights_count(const tl_weights *weights) { return weights->count; }

const tl_weights_entry *tl_weights_at(const tl_weights *weights, int64_t index) {
  return &weights->entries[index];
}

const tl_weights_entry *tl_weights_find(const tl_weights *weights, const char *name) {
  for (int64_t i = 0; i < weights->count; i++)
    if (strcmp(weights->entries[i].name, name) == 0) return &weights->entries[i];
  return NULL;
}

int tl_weights_metadata(const tl_weights *weights, int64_t index, const char **key,
                        const char **value) {
  json_t *metadata = json_object_get(weights->header, "__metadata__");
  void *at = json_object_iter(metadata);
  for (int64_t i = 0; i < index && at != NULL; i++) at = json_object_iter_next(metadata, at);
  if (at == NULL) return 0;
  *key = json_object_iter_key(at);
  *value = json_string_value(json_object_iter_value(at));
  return 1;
}
