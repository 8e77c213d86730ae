/* data_files.c - documents in mapped files, joined into a stream that is cut into samples.
**
**   file_first   token number of each file's first token, files laid end to end
**   slot         place of a document in the shuffled stream
**   start        (documents + 1) first stream position of each slot; the last is the stream's end
**   place        (documents) token number (as in file_first) of each slot's first token
*/
#include <stdlib.h>
#include <string.h>

#include "data_order.h"
#include "data_source.h"
#include "files.h"
#include "hash.h"
#include "memory.h"

typedef struct source {
  tl_data data;
  int32_t width;
  int64_t files, documents, samples;
  char **path;         /* (files) */
  tl_mapping *map;     /* (files) */
  int64_t *file_first; /* (files + 1) */
  int64_t *start, *place;
  tl_data_beyond beyond;
} source;

/* Documents while they are found, in file order. */
typedef struct document {
  int64_t place, count; /* in tokens */
} document;

typedef struct documents {
  document *at;
  int64_t count, capacity;
} documents;

static const char *kind_name(const source *s) {
  return s->width == 1 ? "data.text" : "data.tokens";
}

static tl_status documents_add(documents *list, int64_t place, int64_t count) {
  if (list->count == list->capacity) {
    const int64_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
    void *grown;
    TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, capacity * (int64_t)sizeof(document), &grown));
    if (list->count > 0) memcpy(grown, list->at, (size_t)list->count * sizeof(document));
    tl_memory_free(list->at);
    list->at = grown;
    list->capacity = capacity;
  }
  list->at[list->count++] = (document){place, count};
  return TL_OK;
}

static int64_t token_at(const void *data, int32_t width, int64_t i) {
  if (width == 1) return ((const uint8_t *)data)[i];
  if (width == 2) return ((const uint16_t *)data)[i];
  return ((const uint32_t *)data)[i];
}

enum { SCAN = 4096 };

/* Does eos stand in tokens first .. first + SCAN - 1? No branch inside: this becomes vectors. */
static int scan_block(const void *data, int32_t width, int64_t first, uint32_t eos) {
  uint32_t found = 0;
  if (width == 2) {
    const uint16_t *at = (const uint16_t *)data + first;
    for (int i = 0; i < SCAN; i++) found |= at[i] == (uint16_t)eos;
  } else {
    const uint32_t *at = (const uint32_t *)data + first;
    for (int i = 0; i < SCAN; i++) found |= at[i] == eos;
  }
  return found != 0;
}

/* The end of the document that begins at `first`: behind its eos, or the end of the file. */
static int64_t document_end(const void *data, int32_t width, int64_t first, int64_t end,
                            int64_t eos) {
  if (eos < 0 || (width == 2 && eos > UINT16_MAX)) return end;
  int64_t i = first;
  while (i < end) {
    if (width > 1 && i + SCAN <= end && !scan_block(data, width, i, (uint32_t)eos)) {
      i += SCAN;
      continue;
    }
    const int64_t stop = i + SCAN < end ? i + SCAN : end;
    for (; i < stop; i++)
      if (token_at(data, width, i) == eos) return i + 1;
  }
  return end;
}

/* The largest id of a document, while it is hashed. */
typedef struct largest {
  const char *bytes;
  int32_t width;
  uint32_t id;
} largest;

enum { CHUNK = 1 << 16 }; /* bytes; a whole number of tokens, and they stay in a core's cache */

/* No branch inside: these become vectors. */
static void find_largest(void *context, int64_t first, int64_t count) {
  largest *l = context;
  const void *at = l->bytes + first;
  const int64_t tokens = count / l->width;
  uint32_t id = l->id;
  if (l->width == 1)
    for (int64_t i = 0; i < tokens; i++) {
      const uint32_t token = ((const uint8_t *)at)[i];
      id = token > id ? token : id;
    }
  else if (l->width == 2)
    for (int64_t i = 0; i < tokens; i++) {
      const uint32_t token = ((const uint16_t *)at)[i];
      id = token > id ? token : id;
    }
  else
    for (int64_t i = 0; i < tokens; i++) {
      const uint32_t token = ((const uint32_t *)at)[i];
      id = token > id ? token : id;
    }
  l->id = id;
}

/* Notes the largest id of a document that takes part, and the first token that is no id. */
static void note_largest(source *s, int64_t file, int64_t first, int64_t end, int64_t id) {
  if (id > s->beyond.token_max) s->beyond.token_max = id;
  if (id < s->data.vocab || s->beyond.file >= 0) return;
  const void *data = s->map[file].data;
  int64_t i = first;
  while (i + 1 < end && token_at(data, s->width, i) < s->data.vocab) i++;
  s->beyond.file = file;
  s->beyond.position = i;
  s->beyond.token = token_at(data, s->width, i);
}

/* Does a document with this content pass all splits? */
static int takes_part(const tl_data_files *files, uint64_t hash) {
  for (int32_t depth = 0; depth < files->part_count; depth++) {
    const uint64_t draw = tl_mix64(hash + (uint64_t)depth * 0x9e3779b97f4a7c15u) >> 11;
    const int32_t held = !((double)draw < files->parts[depth].fraction * 0x1p53);
    if (held != files->parts[depth].held) return 0;
  }
  return 1;
}

static tl_status find_documents(source *s, const tl_data_files *files, documents *list) {
  s->data.fingerprint = (uint64_t)s->width;
  for (int64_t f = 0; f < s->files; f++) {
    const char *bytes = s->map[f].data;
    const int64_t tokens = s->map[f].bytes / s->width;
    for (int64_t first = 0; first < tokens;) {
      const int64_t end = document_end(bytes, s->width, first, tokens, files->eos);
      largest l = {.bytes = bytes + first * s->width, .width = s->width};
      const uint64_t hash =
          tl_hash_chunks(l.bytes, (end - first) * s->width, CHUNK, find_largest, &l);
      if (takes_part(files, hash)) {
        note_largest(s, f, first, end, l.id);
        TL_TRY(documents_add(list, s->file_first[f] + first, end - first));
        s->data.fingerprint = tl_mix64(s->data.fingerprint + hash);
      }
      first = end;
    }
  }
  return TL_OK;
}

static tl_status map_files(source *s, const tl_data_files *files) {
  s->path = calloc((size_t)files->count, sizeof *s->path);
  s->map = calloc((size_t)files->count, sizeof *s->map);
  s->file_first = calloc((size_t)files->count + 1, sizeof *s->file_first);
  if (s->path == NULL || s->map == NULL || s->file_first == NULL)
    return tl_fail(TL_MEMORY, "out of memory for %lld files", (long long)files->count);
  s->files = files->count; /* from here on closing looks at all of them */
  for (int64_t f = 0; f < s->files; f++) {
    const char *path = files->paths[f];
    if (tl_file_map(path, &s->map[f]) != TL_OK) {
      char reason[512]; /* tl_fail may not print its own message */
      strncpy(reason, tl_last_error(), sizeof reason - 1)[sizeof reason - 1] = '\0';
      return tl_fail(TL_IO, "%s%s: %s", s->data.site, kind_name(s), reason);
    }
    s->path[f] = strdup(path);
    if (s->path[f] == NULL) return tl_fail(TL_MEMORY, "out of memory for a path");
    if (s->map[f].bytes == 0)
      return tl_fail(TL_DATA, "%s%s: %s: the file is empty (0 bytes)", s->data.site, kind_name(s),
                     path);
    if (s->map[f].bytes % s->width != 0)
      return tl_fail(TL_DATA, "%s%s: %s: %lld bytes are not a whole number of uint%d tokens",
                     s->data.site, kind_name(s), path, (long long)s->map[f].bytes, 8 * s->width);
    s->file_first[f + 1] = s->file_first[f] + s->map[f].bytes / s->width;
  }
  return TL_OK;
}

/* Lays the documents end to end in shuffled order. */
static tl_status build_stream(source *s, const documents *list) {
  void *start = NULL, *place = NULL;
  tl_status status = TL_OK;
  const int64_t word = (int64_t)sizeof(int64_t), bytes = list->count * word;
  TL_TRY_GOTO(status, tl_memory_alloc(TL_MEMORY_DATA, bytes + word, &start), done);
  TL_TRY_GOTO(status, tl_memory_alloc(TL_MEMORY_DATA, bytes, &place), done);
  s->start = start, start = NULL;
  s->place = place, place = NULL;
  s->documents = list->count;
  s->start[0] = 0;
  if (list->count == 0) goto done;
  const tl_order order = tl_order_new(s->data.seed, "data/documents", 0, list->count);
  for (int64_t slot = 0; slot < list->count; slot++) {
    const document *d = &list->at[tl_order_at(&order, slot)];
    s->place[slot] = d->place;
    s->start[slot + 1] = s->start[slot] + d->count;
  }
done:
  tl_memory_free(start);
  tl_memory_free(place);
  return status;
}

/* The last i with bounds[i] <= value; bounds[0] <= value is given. */
static int64_t find_range(const int64_t *bounds, int64_t count, int64_t value) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    if (bounds[middle] <= value)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/* First stream position of running sample g. */
static int64_t stream_position(const source *s, int64_t g) {
  const tl_order order = tl_order_new(s->data.seed, "data/samples", g / s->samples, s->samples);
  return tl_order_at(&order, g % s->samples) * s->data.length;
}

static tl_status copy_tokens(const source *s, int64_t place, int64_t count, int32_t *out) {
  const int64_t f = find_range(s->file_first, s->files, place);
  const int64_t first = place - s->file_first[f];
  for (int64_t i = 0; i < count; i++) {
    const int64_t id = token_at(s->map[f].data, s->width, first + i);
    if (id >= s->data.vocab)
      return tl_fail(TL_DATA, "%s%s: %s: token %lld at position %lld, but vocab is %lld",
                     s->data.site, kind_name(s), s->path[f], (long long)id, (long long)(first + i),
                     (long long)s->data.vocab);
    out[i] = (int32_t)id;
  }
  return TL_OK;
}

static tl_status files_sample(const tl_data *data, int64_t g, tl_data_row *row) {
  const source *s = (const source *)data;
  const int64_t position = stream_position(s, g), end = position + data->length;
  int64_t slot = find_range(s->start, s->documents, position);
  for (int64_t at = position; at < end; slot++) {
    const int64_t stop = s->start[slot + 1] < end ? s->start[slot + 1] : end;
    const int32_t t = (int32_t)(at - position), t_end = (int32_t)(stop - position);
    TL_TRY(copy_tokens(s, s->place[slot] + (at - s->start[slot]), stop - at, row->tokens + t));
    tl_data_next_tokens(row->tokens, t, t_end, row->targets);
    tl_data_row_close(row, t_end);
    at = stop;
  }
  return TL_OK;
}

static int64_t files_targets(const tl_data *data, int64_t g) {
  const source *s = (const source *)data;
  const int64_t position = stream_position(s, g);
  const int64_t first = find_range(s->start, s->documents, position);
  const int64_t last = find_range(s->start, s->documents, position + data->length - 1);
  return data->length - (last - first + 1);
}

static tl_data_about files_look(const tl_data *data) {
  const source *s = (const source *)data;
  const int64_t tokens = s->start[s->documents];
  return (tl_data_about){.files = s->files,
                         .documents = s->documents,
                         .tokens = tokens,
                         .bytes = tokens * s->width,
                         .samples_per_epoch = s->samples,
                         .beyond = s->beyond};
}

static void files_close(tl_data *data) {
  source *s = (source *)data;
  for (int64_t f = 0; f < s->files; f++) {
    free(s->path[f]);
    tl_file_unmap(&s->map[f]);
  }
  free(s->path);
  free(s->map);
  free(s->file_first);
  tl_memory_free(s->start);
  tl_memory_free(s->place);
}

static const tl_data_kind files_kind = {files_sample, files_targets, files_look, files_close};

tl_status tl_data_open_files(const tl_data_files *files, const tl_data_options *options,
                             tl_data **out) {
  void *block;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, (int64_t)sizeof(source), &block));
  source *s = block;
  *s = (source){
      .width = files->width, .beyond = {.file = -1, .token_max = -1}
  };
  documents list = {0};
  tl_status status;
  TL_TRY_GOTO(status, tl_data_begin(&s->data, &files_kind, options), done);
  TL_TRY_GOTO(status, map_files(s, files), done);
  TL_TRY_GOTO(status, find_documents(s, files, &list), done);
  TL_TRY_GOTO(status, build_stream(s, &list), done);
  s->samples = s->start[s->documents] / options->length;
  if (s->samples == 0) {
    const long long documents = s->documents, tokens = s->start[s->documents];
    status = tl_fail(TL_DATA,
                     "%s%s: %lld token%s in %lld document%s are less than one sample of %d tokens; "
                     "more text, or a smaller batch.length",
                     s->data.site, kind_name(s), tokens, tokens == 1 ? "" : "s", documents,
                     documents == 1 ? "" : "s", options->length);
    goto done;
  }
  *out = &s->data, s = NULL;
done:
  tl_memory_free(list.at);
  if (s != NULL) {
    s->data.kind = &files_kind;
    tl_data_close(&s->data);
  }
  return status;
}
