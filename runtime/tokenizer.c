/* tokenizer.c - from bytes to ids and back, with the parts that a file described. */
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "files.h"
#include "tokenizer_parts.h"

/* ---- opening ---- */

static char *join(const char *folder, const char *name) {
  char *path = malloc(strlen(folder) + strlen(name) + 2);
  if (path != NULL) sprintf(path, "%s/%s", folder, name);
  return path;
}

/* Ids are bytes: no merges, no pieces. */
static tl_status make_bytes(tl_tokenizer *t) {
  t->byte_level = 1;
  t->token_count = 256;
  t->tokens = calloc(256, sizeof *t->tokens);
  if (t->tokens == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
  for (int32_t b = 0; b < 256; b++) {
    const char byte = (char)b;
    t->tokens[b] = (tl_token){.text = tl_tokenizer_keep(t, &byte, 1), .bytes = 1};
    if (t->tokens[b].text == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
    t->byte_ids[b] = b;
  }
  TL_TRY(tl_vocabulary_open(1, &t->vocabulary));
  return tl_merges_open(1, &t->merges);
}

static tl_status read_folder(tl_tokenizer *t, const char *folder) {
  static const char *const pairs[][2] = {
      {"vocab.json",   "merges.txt"},
      {"encoder.json", "vocab.bpe" },
  };
  char *json = join(folder, "tokenizer.json");
  if (json == NULL) return tl_fail(TL_MEMORY, "out of memory for a path");
  const int there = tl_file_exists(json);
  tl_status status = there ? tl_tokenizer_read_json(t, json) : TL_OK;
  free(json);
  if (there) return status;
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    char *vocab = join(folder, pairs[i][0]), *merges = join(folder, pairs[i][1]);
    const int both = vocab != NULL && merges != NULL && tl_file_exists(vocab);
    if (both) status = tl_tokenizer_read_gpt2(t, vocab, merges);
    free(vocab);
    free(merges);
    if (both) return status;
  }
  return tl_fail(TL_IO, "%s: no tokenizer.json, no vocab.json with merges.txt", folder);
}

tl_status tl_tokenizer_open(const char *path, tl_tokenizer **out) {
  tl_status status = TL_OK;
  tl_tokenizer *t = calloc(1, sizeof *t);
  if (t == NULL || (t->path = strdup(path)) == NULL) {
    status = tl_fail(TL_MEMORY, "%s: out of memory", path);
    goto done;
  }
  t->unknown = -1;
  for (int b = 0; b < 256; b++) t->byte_ids[b] = -1;
  if (strcmp(path, "bytes") == 0)
    status = make_bytes(t);
  else if (tl_file_is_directory(path))
    status = read_folder(t, path);
  else
    status = tl_tokenizer_read_json(t, path);
  if (status == TL_OK) *out = t, t = NULL;
done:
  tl_tokenizer_close(t);
  return status;
}

void tl_tokenizer_close(tl_tokenizer *t) {
  if (t == NULL) return;
  tl_vocabulary_release(&t->vocabulary);
  tl_merges_release(&t->merges);
  for (int i = 0; i < t->normalizer_count; i++) {
    free(t->normalizers[i].from);
    free(t->normalizers[i].to);
  }
  for (int i = 0; i < t->splitter_count; i++) pcre2_code_free(t->splitters[i].pattern);
  for (int64_t i = 0; i < t->text_count; i++) free(t->texts[i]);
  tl_ids_release(&t->before);
  tl_ids_release(&t->after);
  free(t->texts);
  free(t->added);
  free(t->tokens);
  free(t->path);
  free(t);
}

char *tl_tokenizer_keep(tl_tokenizer *t, const char *text, int64_t bytes) {
  if (t->text_count == t->text_capacity) {
    const int64_t capacity = t->text_capacity > 0 ? 2 * t->text_capacity : 256;
    char **texts = realloc(t->texts, (size_t)capacity * sizeof *texts);
    if (texts == NULL) return NULL;
    t->texts = texts;
    t->text_capacity = capacity;
  }
  char *copy = malloc((size_t)bytes + 1);
  if (copy == NULL) return NULL;
  memcpy(copy, text, (size_t)bytes);
  copy[bytes] = '\0';
  t->texts[t->text_count++] = copy;
  return copy;
}

tl_status tl_tokenizer_compile(tl_tokenizer *t, const char *pattern, int removed) {
  if (t->splitter_count == TL_TOKENIZER_STEPS_MAX)
    return tl_fail(TL_DATA, "%s: more than %d steps of splitting", t->path, TL_TOKENIZER_STEPS_MAX);
  int error;
  PCRE2_SIZE at;
  pcre2_code *code =
      pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &at, NULL);
  if (code == NULL) {
    PCRE2_UCHAR text[160];
    pcre2_get_error_message(error, text, sizeof text);
    return tl_fail(TL_DATA, "%s: the pattern %s: %s at %zu", t->path, pattern, (char *)text, at);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without it matching is slower, not different */
  t->splitters[t->splitter_count++] = (tl_splitter){code, removed};
  return TL_OK;
}

/* ---- encoding ---- */

static tl_status add_unknown(const tl_tokenizer *t, const char *text, int64_t bytes, tl_ids *ids) {
  if (t->unknown < 0)
    return tl_fail(TL_DATA, "%s: no token for %.*s and none for what is unknown", t->path,
                   (int)bytes, text);
  if (t->fuse_unknown && ids->count > 0 && ids->id[ids->count - 1] == t->unknown) return TL_OK;
  return tl_ids_append(ids, t->unknown);
}

/* The symbols of a piece before merging: bytes, or characters. */
static tl_status add_symbols(const tl_tokenizer *t, const char *text, int64_t bytes, tl_ids *ids) {
  for (int64_t i = 0; i < bytes;) {
    const int length = t->byte_level ? 1 : tl_character_length(text + i, bytes - i);
    const int32_t id = t->byte_level ? t->byte_ids[(uint8_t)text[i]]
                                     : tl_vocabulary_find(&t->vocabulary, text + i, length);
    if (id >= 0) TL_TRY(tl_ids_append(ids, id));
    int fallback = id < 0 && !t->byte_level && t->byte_fallback;
    for (int k = 0; k < length; k++) fallback = fallback && t->byte_ids[(uint8_t)text[i + k]] >= 0;
    for (int k = 0; fallback && k < length; k++)
      TL_TRY(tl_ids_append(ids, t->byte_ids[(uint8_t)text[i + k]]));
    if (id < 0 && !fallback) TL_TRY(add_unknown(t, text + i, length, ids));
    i += length;
  }
  return TL_OK;
}

static tl_status encode_piece(const tl_tokenizer *t, const char *text, int64_t bytes, tl_ids *ids) {
  if (bytes == 0) return TL_OK;
  const int32_t whole = t->ignore_merges ? tl_vocabulary_find(&t->vocabulary, text, bytes) : -1;
  if (whole >= 0) return tl_ids_append(ids, whole);
  const int64_t first = ids->count;
  TL_TRY(add_symbols(t, text, bytes, ids));
  int64_t count = ids->count - first;
  TL_TRY(tl_merges_apply(&t->merges, ids->id + first, &count));
  ids->count = first + count;
  return TL_OK;
}

static tl_status split(const tl_tokenizer *t, int step, const char *text, int64_t bytes,
                       tl_ids *ids) {
  if (step == t->splitter_count) return encode_piece(t, text, bytes, ids);
  const tl_splitter *splitter = &t->splitters[step];
  tl_status status = TL_OK;
  pcre2_match_data *match = pcre2_match_data_create(1, NULL);
  if (match == NULL) return tl_fail(TL_MEMORY, "out of memory for a match");
  int64_t done = 0, from = 0;
  while (status == TL_OK && from < bytes) {
    const int found = pcre2_match(splitter->pattern, (PCRE2_SPTR)text, (PCRE2_SIZE)bytes,
                                  (PCRE2_SIZE)from, 0, match, NULL);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      status = tl_fail(TL_DATA, "%s: its pattern gave up (PCRE2 error %d)", t->path, found);
      break;
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
    const int64_t begin = (int64_t)ends[0], end = (int64_t)ends[1];
    if (end == begin) { /* an empty match cuts nothing */
      from = end + 1;
      continue;
    }
    if (begin > done) status = split(t, step + 1, text + done, begin - done, ids);
    if (status == TL_OK && !splitter->removed)
      status = split(t, step + 1, text + begin, end - begin, ids);
    done = from = end;
  }
  if (status == TL_OK && done < bytes) status = split(t, step + 1, text + done, bytes - done, ids);
  pcre2_match_data_free(match);
  return status;
}

static tl_status replace(const tl_normalizer *n, const tl_bytes *in, tl_bytes *out) {
  const int64_t from = (int64_t)strlen(n->from), to = (int64_t)strlen(n->to);
  int64_t done = 0;
  for (int64_t i = 0; i + from <= in->count;) {
    if (memcmp(in->data + i, n->from, (size_t)from) != 0) {
      i++;
      continue;
    }
    TL_TRY(tl_bytes_append(out, in->data + done, i - done));
    TL_TRY(tl_bytes_append(out, n->to, to));
    i += from;
    done = i;
  }
  return tl_bytes_append(out, in->data + done, in->count - done);
}

/* Unicode's normal form C. A text that is no UTF-8 has none and stays as it is. */
static tl_status compose(const tl_bytes *in, tl_bytes *out) {
  utf8proc_uint8_t *text = NULL;
  const utf8proc_ssize_t bytes = utf8proc_map((const utf8proc_uint8_t *)in->data, in->count, &text,
                                              UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const tl_status status = bytes < 0 ? tl_bytes_append(out, in->data, in->count)
                                     : tl_bytes_append(out, text, (int64_t)bytes);
  free(text);
  return status;
}

static tl_status normalize(const tl_normalizer *n, const tl_bytes *in, tl_bytes *out) {
  switch (n->kind) {
    case TL_NORMALIZE_PREPEND:
      TL_TRY(tl_bytes_append(out, n->to, (int64_t)strlen(n->to)));
      return tl_bytes_append(out, in->data, in->count);
    case TL_NORMALIZE_REPLACE: return replace(n, in, out);
    case TL_NORMALIZE_NFC: return compose(in, out);
  }
  return TL_OK;
}

/* A part without added tokens. */
static tl_status encode_part(const tl_tokenizer *t, const char *text, int64_t bytes, tl_ids *ids) {
  if (bytes == 0) return TL_OK;
  tl_bytes now = {0}, next = {0};
  tl_status status = tl_bytes_append(&now, text, bytes);
  for (int i = 0; status == TL_OK && i < t->normalizer_count; i++) {
    next.count = 0;
    status = normalize(&t->normalizers[i], &now, &next);
    const tl_bytes swap = now;
    now = next, next = swap;
  }
  if (status == TL_OK && t->prefix_space && now.data[0] != ' ') {
    next.count = 0;
    status = tl_bytes_append(&next, " ", 1);
    if (status == TL_OK) status = tl_bytes_append(&next, now.data, now.count);
    const tl_bytes swap = now;
    now = next, next = swap;
  }
  if (status == TL_OK) status = split(t, 0, now.data, now.count, ids);
  free(now.data);
  free(next.data);
  return status;
}

/* The longest added token at `text`, or NULL. */
static const tl_added_token *added_at(const tl_tokenizer *t, const char *text, int64_t bytes) {
  if (!t->added_begins[(uint8_t)*text]) return NULL;
  for (int32_t i = 0; i < t->added_count; i++)
    if (t->added[i].bytes <= bytes &&
        memcmp(t->added[i].content, text, (size_t)t->added[i].bytes) == 0)
      return &t->added[i];
  return NULL;
}

tl_status tl_tokenizer_encode(const tl_tokenizer *t, const char *text, int64_t bytes, int flags,
                              tl_ids *ids) {
  if (flags & TL_TOKENIZER_TEMPLATE)
    for (int64_t i = 0; i < t->before.count; i++) TL_TRY(tl_ids_append(ids, t->before.id[i]));
  int64_t done = 0;
  for (int64_t i = 0; !(flags & TL_TOKENIZER_PLAIN) && i < bytes;) {
    const tl_added_token *added = added_at(t, text + i, bytes - i);
    if (added == NULL) {
      i++;
      continue;
    }
    TL_TRY(encode_part(t, text + done, i - done, ids));
    TL_TRY(tl_ids_append(ids, added->id));
    i += added->bytes;
    done = i;
  }
  TL_TRY(encode_part(t, text + done, bytes - done, ids));
  if (flags & TL_TOKENIZER_TEMPLATE)
    for (int64_t i = 0; i < t->after.count; i++) TL_TRY(tl_ids_append(ids, t->after.id[i]));
  return TL_OK;
}

/* ---- decoding ---- */

int32_t tl_tokenizer_vocab(const tl_tokenizer *t) { return t->token_count; }

int32_t tl_tokenizer_added(const tl_tokenizer *t, const char *content) {
  for (int32_t i = 0; i < t->added_count; i++)
    if (strcmp(t->added[i].content, content) == 0) return t->added[i].id;
  return -1;
}

tl_status tl_tokenizer_token(const tl_tokenizer *t, int64_t id, const char **text, int64_t *bytes,
                             int *special) {
  if (id < 0 || id >= t->token_count || t->tokens[id].text == NULL)
    return tl_fail(TL_DATA, "%s: %lld is no token; ids go from 0 to %d", t->path, (long long)id,
                   t->token_count - 1);
  *text = t->tokens[id].text;
  *bytes = t->tokens[id].bytes;
  *special = t->tokens[id].special;
  return TL_OK;
}

int64_t tl_tokenizer_strip(const tl_tokenizer *t, const char *text, int64_t bytes) {
  return t->strip_space && bytes > 0 && text[0] == ' ' ? 1 : 0;
}
