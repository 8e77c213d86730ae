/* weights_write.c - writes safetensors files. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "weights_convert.h"
#include "weights_dtypes.h"
#include "weights_file.h"

enum { HEADER_ALIGNMENT = 64 };

/* The sizes of elements, in the order in which tensors are laid out. */
static const int64_t element_sizes[] = {8, 4, 2, 1};
enum { SIZES = sizeof element_sizes / sizeof element_sizes[0] };

static tl_status check_entry(const tl_weights_source *source) {
  if (source->dtype_name == NULL || strcmp(source->dtype_name, source->entry->dtype_name) == 0)
    return TL_OK;
  if (!tl_weights_widens(source->entry->dtype_name) || !tl_weights_narrows(source->dtype_name))
    return tl_fail(TL_DTYPE, "tensor %s: %s cannot be written as %.40s", source->name,
                   source->entry->dtype_name, source->dtype_name);
  return TL_OK;
}

static tl_status check_source(const tl_weights_source *source) {
  if (source->entry != NULL) return check_entry(source);
  const tl_view *head = &source->parts[0];
  if (source->dim < 0 || source->dim >= head->dims)
    return tl_fail(TL_ARGUMENT, "tensor %s: parts cannot be joined along dim %d of %d",
                   source->name, source->dim, head->dims);
  for (int32_t p = 1; p < source->part_count; p++) {
    const tl_view *part = &source->parts[p];
    int fits = part->dtype == head->dtype && part->dims == head->dims;
    for (int32_t i = 0; fits && i < head->dims; i++)
      fits = i == source->dim || part->shape[i] == head->shape[i];
    if (!fits)
      return tl_fail(TL_SHAPE, "tensor %s: part %d does not fit to the first one", source->name, p);
  }
  return TL_OK;
}

/* The dtype of a checked source as it will stand in the file. */
static const tl_weights_dtype *source_dtype(const tl_weights_source *source) {
  if (source->entry == NULL) return tl_weights_dtype_of(source->parts[0].dtype);
  return tl_weights_dtype_find(source->dtype_name != NULL ? source->dtype_name
                                                          : source->entry->dtype_name);
}

static int64_t source_bytes(const tl_weights_source *source) {
  if (source->entry != NULL)
    return source->entry->bytes / tl_weights_dtype_find(source->entry->dtype_name)->bytes *
           source_dtype(source)->bytes;
  int64_t bytes = 0;
  for (int32_t p = 0; p < source->part_count; p++) bytes += tl_view_bytes(&source->parts[p]);
  return bytes;
}

static json_t *source_shape(const tl_weights_source *source) {
  json_t *shape = json_array();
  if (source->entry != NULL) {
    for (int32_t i = 0; i < source->entry->dims; i++)
      json_array_append_new(shape, json_integer(source->entry->shape[i]));
    return shape;
  }
  const tl_view *head = &source->parts[0];
  for (int32_t i = 0; i < head->dims; i++) {
    int64_t size = head->shape[i];
    for (int32_t p = 1; p < source->part_count && i == source->dim; p++)
      size += source->parts[p].shape[i];
    json_array_append_new(shape, json_integer(size));
  }
  return shape;
}

/* {"dtype": .., "shape": [..], "data_offsets": [first, first + bytes]} */
static json_t *describe(const tl_weights_source *source, int64_t first) {
  return json_pack("{s:s, s:o, s:[I, I]}", "dtype", source_dtype(source)->name, "shape",
                   source_shape(source), "data_offsets", (json_int_t)first,
                   (json_int_t)(first + source_bytes(source)));
}

static tl_status add_metadata(json_t *header, const tl_weights_text *metadata, int64_t count) {
  if (count == 0) return TL_OK;
  json_t *texts = json_object();
  for (int64_t i = 0; i < count; i++)
    if (json_object_set_new(texts, metadata[i].key, json_string(metadata[i].value)) != 0) {
      json_decref(texts);
      return tl_fail(TL_ARGUMENT, "metadata %s is not UTF-8", metadata[i].key);
    }
  json_object_set_new(header, "__metadata__", texts);
  return TL_OK;
}

static tl_status build_header(const tl_weights_source *sources, int64_t count, json_t *header) {
  int64_t first = 0;
  for (int64_t i = 0; i < count; i++) TL_TRY(check_source(&sources[i]));
  for (int s = 0; s < SIZES; s++)
    for (int64_t i = 0; i < count; i++) {
      if (source_dtype(&sources[i])->bytes != element_sizes[s]) continue;
      if (json_object_get(header, sources[i].name) != NULL)
        return tl_fail(TL_ARGUMENT, "tensor %s: the name stands twice", sources[i].name);
      if (json_object_set_new(header, sources[i].name, describe(&sources[i], first)) != 0)
        return tl_fail(TL_ARGUMENT, "tensor %s: the name is not UTF-8", sources[i].name);
      first += source_bytes(&sources[i]);
    }
  return TL_OK;
}

static tl_status write_header(tl_writer *writer, const json_t *header) {
  static const char spaces[HEADER_ALIGNMENT + 1] =
      "                                                                ";
  char *text = json_dumps(header, JSON_COMPACT);
  if (text == NULL) return tl_fail(TL_MEMORY, "%s: out of memory for the header", writer->path);
  const uint64_t bytes = strlen(text);
  const uint64_t over = (bytes + sizeof bytes) % HEADER_ALIGNMENT;
  const uint64_t padding = over > 0 ? HEADER_ALIGNMENT - over : 0;
  const uint64_t length = bytes + padding;
  tl_status status = tl_writer_write(writer, &length, (int64_t)sizeof length);
  if (status == TL_OK) status = tl_writer_write(writer, text, (int64_t)bytes);
  if (status == TL_OK) status = tl_writer_write(writer, spaces, (int64_t)padding);
  free(text);
  return status;
}

/* An entry of another file, converted a chunk at a time. */
static tl_status write_entry(tl_writer *writer, const tl_weights_source *source) {
  enum { CHUNK = 4096 };
  const tl_weights_entry *entry = source->entry;
  const tl_weights_dtype *from = tl_weights_dtype_find(entry->dtype_name);
  const tl_weights_dtype *to = source_dtype(source);
  if (from == to) return tl_writer_write(writer, entry->data, entry->bytes);
  float wide[CHUNK];
  uint8_t narrow[CHUNK * sizeof(float)];
  const int64_t count = entry->bytes / from->bytes;
  for (int64_t i = 0; i < count; i += CHUNK) {
    const int64_t n = count - i < CHUNK ? count - i : CHUNK;
    tl_weights_widen(from->name, (const char *)entry->data + i * from->bytes, n, wide);
    tl_weights_narrow(to->name, wide, n, narrow);
    TL_TRY(tl_writer_write(writer, narrow, n * to->bytes));
  }
  return TL_OK;
}

/* Joins parts along `dim`: for each index before it, the run of each part. */
static tl_status write_tensor(tl_writer *writer, const tl_weights_source *source) {
  if (source->entry != NULL) return write_entry(writer, source);
  int64_t outer = 1;
  for (int32_t i = 0; i < source->dim; i++) outer *= source->parts[0].shape[i];
  for (int64_t o = 0; o < outer; o++)
    for (int32_t p = 0; p < source->part_count; p++) {
      const tl_view *part = &source->parts[p];
      const int64_t run = tl_view_bytes(part) / outer;
      TL_TRY(tl_writer_write(writer, (const char *)part->data + o * run, run));
    }
  return TL_OK;
}

static tl_status write_all(tl_writer *writer, const tl_weights_source *sources, int64_t count,
                           const json_t *header) {
  TL_TRY(write_header(writer, header));
  for (int s = 0; s < SIZES; s++)
    for (int64_t i = 0; i < count; i++)
      if (source_dtype(&sources[i])->bytes == element_sizes[s])
        TL_TRY(write_tensor(writer, &sources[i]));
  return TL_OK;
}

tl_status tl_weights_write(const char *path, const tl_weights_source *sources, int64_t count,
                           const tl_weights_text *metadata, int64_t metadata_count) {
  tl_writer writer = {0};
  tl_status status;
  json_t *header = json_object();
  TL_TRY_GOTO(status, add_metadata(header, metadata, metadata_count), done);
  TL_TRY_GOTO(status, build_header(sources, count, header), done);
  TL_TRY_GOTO(status, tl_writer_open(path, &writer), done);
  TL_TRY_GOTO(status, write_all(&writer, sources, count, header), done);
  status = tl_writer_commit(&writer);
done:
  tl_writer_abandon(&writer);
  json_decref(header);
  return status;
}
