/* tokenizer_json.c - reads tokenizer.json, and the two files of GPT-2. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "tokenizer_parts.h"

const char *const tl_gpt2_pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char block[] = "\xE2\x96\x81"; /* U+2581, SentencePiece's space */

/* ---- characters ---- */

int tl_character_length(const char *text, int64_t bytes) {
  const uint8_t lead = (uint8_t)text[0];
  const int length = lead < 0x80 ? 1 : lead < 0xC2 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (lead >= 0xF5 || length > bytes) return 1;
  for (int i = 1; i < length; i++)
    if (((uint8_t)text[i] & 0xC0) != 0x80) return 1;
  return length;
}

/* GPT-2 writes bytes that print as themselves, and the others, ascending, as U+0100 and on. */
static int prints(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The byte that the character at `text` stands for goes to *out. Returns the character's length, 0
** when it stands for no byte. */
static int byte_of_character(const char *text, int64_t bytes, uint8_t *out) {
  const int length = tl_character_length(text, bytes);
  const uint8_t lead = (uint8_t)text[0];
  const int code = length == 1 ? lead : length == 2 ? (lead & 31) << 6 | (text[1] & 63) : 0x10000;
  if (length == 1 && lead >= 0x80) return 0;
  if (code < 256) {
    *out = (uint8_t)code;
    return prints(code) ? length : 0;
  }
  int nth = 256;
  for (int byte = 0; byte < 256; byte++) {
    if (prints(byte)) continue;
    if (nth++ == code) {
      *out = (uint8_t)byte;
      return length;
    }
  }
  return 0;
}

/* ---- small helpers on JSON ---- */

static tl_status damaged(const tl_tokenizer *t, const char *what) {
  return tl_fail(TL_DATA, "%s: %s", t->path, what);
}

static tl_status refused(const tl_tokenizer *t, const char *place, const char *type) {
  return tl_fail(TL_DATA, "%s: %s \"%.60s\" is not supported", t->path, place,
                 type != NULL ? type : "without a type");
}

static const char *type_of(const json_t *object) {
  return json_string_value(json_object_get(object, "type"));
}

static int is(const json_t *object, const char *type) {
  const char *own = type_of(object);
  return own != NULL && strcmp(own, type) == 0;
}

/* A file as JSON; release with json_decref. */
static tl_status load(const tl_tokenizer *t, const char *path, json_t **out) {
  tl_mapping mapping;
  TL_TRY(tl_file_map(path, &mapping));
  json_error_t error;
  *out = json_loadb(mapping.data != NULL ? mapping.data : "", (size_t)mapping.bytes, JSON_ALLOW_NUL,
                    &error);
  tl_file_unmap(&mapping);
  if (*out == NULL) return tl_fail(TL_DATA, "%s: not JSON: %s", path, error.text);
  if (json_is_object(*out)) return TL_OK;
  json_decref(*out);
  *out = NULL;
  return damaged(t, "not a JSON object");
}

/* ---- tokens ---- */

static tl_status room_for(tl_tokenizer *t, int64_t id) {
  enum { IDS_MAX = 1 << 24 };
  if (id < 0 || id >= IDS_MAX) return damaged(t, "an id is not in 0 .. 16777215");
  if (id < t->token_count) return TL_OK;
  tl_token *tokens = realloc(t->tokens, (size_t)(id + 1) * sizeof *tokens);
  if (tokens == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
  memset(tokens + t->token_count, 0, (size_t)(id + 1 - t->token_count) * sizeof *tokens);
  t->tokens = tokens;
  t->token_count = (int32_t)id + 1;
  return TL_OK;
}

/* The bytes that a byte-level token stands for; a token with other characters stands for itself. */
static char *raw_bytes(tl_tokenizer *t, const char *text, int64_t bytes, int64_t *count) {
  char *raw = tl_tokenizer_keep(t, text, bytes);
  int64_t n = 0;
  for (int64_t i = 0; raw != NULL && i < bytes;) {
    uint8_t byte;
    const int length = byte_of_character(text + i, bytes - i, &byte);
    if (length == 0) {
      memcpy(raw, text, (size_t)bytes);
      n = bytes;
      break;
    }
    raw[n++] = (char)byte;
    i += length;
  }
  *count = n;
  return raw;
}

/* "<0x0A>" -> 10; -1 for others. */
static int byte_token(const char *text, int64_t bytes) {
  static const char digits[] = "0123456789ABCDEF";
  if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
  const char *high = strchr(digits, text[3]), *low = strchr(digits, text[4]);
  return high == NULL || low == NULL ? -1 : (int)((high - digits) << 4 | (low - digits));
}

/* What a SentencePiece token decodes to. */
static tl_status decoded_piece(tl_tokenizer *t, const char *text, int64_t bytes, tl_token *out) {
  const int byte = t->byte_fallback ? byte_token(text, bytes) : -1;
  if (byte >= 0) {
    const char one = (char)byte;
    *out = (tl_token){.text = tl_tokenizer_keep(t, &one, 1), .bytes = 1};
    return out->text != NULL ? TL_OK : tl_fail(TL_MEMORY, "out of memory for a tokenizer");
  }
  char *copy = tl_tokenizer_keep(t, text, bytes);
  if (copy == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
  int64_t n = 0;
  for (int64_t i = 0; i < bytes; n++) {
    const int space = t->space_as_block && i + 3 <= bytes && memcmp(text + i, block, 3) == 0;
    copy[n] = space ? ' ' : text[i];
    i += space ? 3 : 1;
  }
  *out = (tl_token){.text = copy, .bytes = n};
  return TL_OK;
}

static tl_status add_token(tl_tokenizer *t, const char *text, int64_t bytes, int64_t id) {
  TL_TRY(room_for(t, id));
  tl_token token = {0};
  const char *key = text;
  int64_t key_bytes = bytes;
  if (t->byte_level) {
    char *raw = raw_bytes(t, text, bytes, &key_bytes);
    if (raw == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
    token = (tl_token){.text = raw, .bytes = key_bytes};
    key = raw;
    if (key_bytes == 1) t->byte_ids[(uint8_t)raw[0]] = (int32_t)id;
  } else {
    TL_TRY(decoded_piece(t, text, bytes, &token));
    const int byte = byte_token(text, bytes);
    if (t->byte_fallback && byte >= 0) t->byte_ids[byte] = (int32_t)id;
    key = tl_tokenizer_keep(t, text, bytes);
    if (key == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
  }
  t->tokens[id] = token;
  tl_vocabulary_add(&t->vocabulary, key, key_bytes, (int32_t)id);
  return TL_OK;
}

/* Says which token of the vocabulary had the id before. */
static tl_status twice(const tl_tokenizer *t, json_t *vocab, const char *token, int64_t id) {
  const char *text;
  json_t *other;
  json_object_foreach(vocab, text, other) {
    if (json_integer_value(other) == id) break;
  }
  return tl_fail(TL_DATA, "%s: the tokens %.60s and %.60s of vocab have one id, %lld", t->path,
                 text, token, (long long)id);
}

static tl_status read_vocabulary(tl_tokenizer *t, json_t *vocab) {
  if (!json_is_object(vocab)) return damaged(t, "no vocab");
  TL_TRY(tl_vocabulary_open((int64_t)json_object_size(vocab), &t->vocabulary));
  const char *text;
  size_t bytes;
  json_t *id;
  json_object_keylen_foreach(vocab, text, bytes, id) {
    if (!json_is_integer(id)) return damaged(t, "an id in vocab is not an integer");
    const int64_t own = json_integer_value(id);
    if (own >= 0 && own < t->token_count && t->tokens[own].text != NULL)
      return twice(t, vocab, text, own);
    TL_TRY(add_token(t, text, (int64_t)bytes, own));
  }
  return TL_OK;
}

/* ---- merges ---- */

static int32_t id_of(tl_tokenizer *t, const char *text, int64_t bytes) {
  if (!t->byte_level) return tl_vocabulary_find(&t->vocabulary, text, bytes);
  int64_t count;
  const char *raw = raw_bytes(t, text, bytes, &count);
  return raw == NULL ? -1 : tl_vocabulary_find(&t->vocabulary, raw, count);
}

static tl_status add_merge(tl_tokenizer *t, const char *left, int64_t left_bytes, const char *right,
                           int64_t right_bytes, int32_t rank) {
  tl_bytes both = {0};
  tl_status status = tl_bytes_append(&both, left, left_bytes);
  if (status == TL_OK) status = tl_bytes_append(&both, right, right_bytes);
  if (status != TL_OK) return status;
  const tl_merge merge = {id_of(t, left, left_bytes), id_of(t, right, right_bytes), rank,
                          id_of(t, both.data, both.count)};
  free(both.data);
  if (merge.left < 0 || merge.right < 0 || merge.joined < 0)
    return tl_fail(TL_DATA, "%s: merge %d (%.*s %.*s) has a part that is no token", t->path, rank,
                   (int)left_bytes, left, (int)right_bytes, right);
  tl_merges_add(&t->merges, merge);
  return TL_OK;
}

/* "left right": one space, which is in neither of them. */
static tl_status add_merge_line(tl_tokenizer *t, const char *line, int64_t bytes, int32_t rank) {
  const char *space = memchr(line, ' ', (size_t)bytes);
  if (space == NULL || space == line || space == line + bytes - 1)
    return tl_fail(TL_DATA, "%s: merge %d is not two tokens", t->path, rank);
  return add_merge(t, line, space - line, space + 1, line + bytes - space - 1, rank);
}

static tl_status read_merges(tl_tokenizer *t, const json_t *merges) {
  if (!json_is_array(merges)) return damaged(t, "no merges");
  TL_TRY(tl_merges_open((int64_t)json_array_size(merges), &t->merges));
  size_t i;
  json_t *entry;
  json_array_foreach(merges, i, entry) {
    const json_t *left = json_array_get(entry, 0), *right = json_array_get(entry, 1);
    if (json_is_string(entry))
      TL_TRY(add_merge_line(t, json_string_value(entry), (int64_t)json_string_length(entry),
                            (int32_t)i));
    else if (json_is_string(left) && json_is_string(right) && json_array_size(entry) == 2)
      TL_TRY(add_merge(t, json_string_value(left), (int64_t)json_string_length(left),
                       json_string_value(right), (int64_t)json_string_length(right), (int32_t)i));
    else
      return tl_fail(TL_DATA, "%s: merge %zu is neither a string nor a pair", t->path, i);
  }
  return TL_OK;
}

static tl_status read_merge_file(tl_tokenizer *t, const char *path) {
  tl_mapping mapping;
  TL_TRY(tl_file_map(path, &mapping));
  const char *text = mapping.data, *end = text + mapping.bytes;
  int64_t lines = 0;
  for (const char *at = text; at < end; at++) lines += *at == '\n';
  tl_status status = tl_merges_open(lines + 1, &t->merges);
  int32_t rank = 0;
  for (const char *at = text; status == TL_OK && at < end;) {
    const char *stop = memchr(at, '\n', (size_t)(end - at));
    if (stop == NULL) stop = end;
    const int comment = at == text && *at == '#';
    if (stop > at && !comment) status = add_merge_line(t, at, stop - at, rank++);
    at = stop + 1;
  }
  tl_file_unmap(&mapping);
  return status;
}

/* ---- added tokens ---- */

static int longest_first(const void *a, const void *b) {
  const tl_added_token *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return strcmp(x->content, y->content);
}

static tl_status read_added(tl_tokenizer *t, const json_t *list) {
  if (list == NULL || json_is_null(list)) return TL_OK;
  t->added = calloc(json_array_size(list) + 1, sizeof *t->added);
  if (t->added == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
  size_t i;
  json_t *entry;
  json_array_foreach(list, i, entry) {
    const json_t *content = json_object_get(entry, "content");
    const json_t *id = json_object_get(entry, "id");
    if (!json_is_string(content) || json_string_length(content) == 0 || !json_is_integer(id))
      return damaged(t, "an added token has no content or no id");
    if (json_is_true(json_object_get(entry, "lstrip")) ||
        json_is_true(json_object_get(entry, "rstrip")) ||
        json_is_true(json_object_get(entry, "single_word")))
      return refused(t, "lstrip, rstrip or single_word of the added token",
                     json_string_value(content));
    const int64_t bytes = (int64_t)json_string_length(content);
    TL_TRY(room_for(t, json_integer_value(id)));
    char *copy = tl_tokenizer_keep(t, json_string_value(content), bytes);
    if (copy == NULL) return tl_fail(TL_MEMORY, "out of memory for a tokenizer");
    const int32_t own = (int32_t)json_integer_value(id);
    t->tokens[own] = (tl_token){
        .text = copy, .bytes = bytes, .special = json_is_true(json_object_get(entry, "special"))};
    t->added[t->added_count++] = (tl_added_token){copy, bytes, own};
    t->added_begins[(uint8_t)copy[0]] = 1;
  }
  qsort(t->added, (size_t)t->added_count, sizeof *t->added, longest_first);
  return TL_OK;
}

/* ---- normalizers, splitting, decoding, template ---- */

static tl_status add_normalizer(tl_tokenizer *t, int kind, const char *from, const char *to) {
  if (t->normalizer_count == TL_TOKENIZER_STEPS_MAX) return damaged(t, "more than 8 normalizers");
  tl_normalizer *n = &t->normalizers[t->normalizer_count++];
  *n = (tl_normalizer){.kind = (unsigned)kind};
  n->from = strdup(from);
  n->to = strdup(to);
  return n->from != NULL && n->to != NULL ? TL_OK
                                          : tl_fail(TL_MEMORY, "out of memory for a tokenizer");
}

static tl_status read_normalizer(tl_tokenizer *t, const json_t *n) {
  if (n == NULL || json_is_null(n)) return TL_OK;
  if (is(n, "Sequence")) {
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(n, "normalizers"), i, entry)
        TL_TRY(read_normalizer(t, entry));
    return TL_OK;
  }
  const char *content = json_string_value(json_object_get(n, "content"));
  const char *from = json_string_value(json_object_get(json_object_get(n, "pattern"), "String"));
  const char *prepend = json_string_value(json_object_get(n, "prepend"));
  if (is(n, "Prepend") && prepend != NULL)
    return add_normalizer(t, TL_NORMALIZE_PREPEND, "", prepend);
  if (is(n, "Replace") && from != NULL && *from != '\0' && content != NULL)
    return add_normalizer(t, TL_NORMALIZE_REPLACE, from, content);
  if (is(n, "NFC")) return add_normalizer(t, TL_NORMALIZE_NFC, "", "");
  return refused(t, "normalizer", type_of(n));
}

static tl_status read_split(tl_tokenizer *t, const json_t *p) {
  const json_t *pattern = json_object_get(p, "pattern");
  const char *regex = json_string_value(json_object_get(pattern, "Regex"));
  const char *behavior = json_string_value(json_object_get(p, "behavior"));
  const int isolated = behavior != NULL && strcmp(behavior, "Isolated") == 0;
  const int removed = behavior != NULL && strcmp(behavior, "Removed") == 0;
  const int invert = json_is_true(json_object_get(p, "invert"));
  if (regex == NULL) return refused(t, "pre_tokenizer Split with a pattern", "String");
  if (!(isolated || (removed && !invert))) return refused(t, "behavior of Split", behavior);
  return tl_tokenizer_compile(t, regex, removed);
}

/* Metaspace: spaces become U+2581, one stands before the text, pieces begin with it. */
static tl_status read_metaspace(tl_tokenizer *t, const json_t *p) {
  const char *scheme = json_string_value(json_object_get(p, "prepend_scheme"));
  const char *sign = json_string_value(json_object_get(p, "replacement"));
  const int always = scheme == NULL ? json_is_true(json_object_get(p, "add_prefix_space"))
                                    : strcmp(scheme, "always") == 0;
  if (sign == NULL || strcmp(sign, block) != 0) return refused(t, "Metaspace with", sign);
  if (scheme != NULL && !always && strcmp(scheme, "never") != 0)
    return refused(t, "prepend_scheme", scheme);
  if (always) TL_TRY(add_normalizer(t, TL_NORMALIZE_PREPEND, "", block));
  TL_TRY(add_normalizer(t, TL_NORMALIZE_REPLACE, " ", block));
  if (json_is_false(json_object_get(p, "split"))) return TL_OK;
  return tl_tokenizer_compile(t, "\\x{2581}?[^\\x{2581}]+|\\x{2581}", 0);
}

static tl_status read_pre_tokenizer(tl_tokenizer *t, const json_t *p) {
  if (p == NULL || json_is_null(p)) return TL_OK;
  if (is(p, "Sequence")) {
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(p, "pretokenizers"), i, entry)
        TL_TRY(read_pre_tokenizer(t, entry));
    return TL_OK;
  }
  if (is(p, "Split")) return read_split(t, p);
  if (is(p, "Metaspace")) return read_metaspace(t, p);
  if (is(p, "Digits"))
    return tl_tokenizer_compile(
        t, json_is_true(json_object_get(p, "individual_digits")) ? "\\p{N}" : "\\p{N}+", 0);
  if (!is(p, "ByteLevel")) return refused(t, "pre_tokenizer", type_of(p));
  t->prefix_space |= json_is_true(json_object_get(p, "add_prefix_space"));
  const json_t *regex = json_object_get(p, "use_regex");
  return json_is_false(regex) ? TL_OK : tl_tokenizer_compile(t, tl_gpt2_pattern, 0);
}

/* Is there a step of this type, alone or in a sequence? */
static const json_t *step_of(const json_t *object, const char *list, const char *type) {
  if (is(object, type)) return object;
  size_t i;
  json_t *entry;
  json_array_foreach(json_object_get(object, list), i, entry) {
    const json_t *found = step_of(entry, list, type);
    if (found != NULL) return found;
  }
  return NULL;
}

static tl_status read_decoder(tl_tokenizer *t, const json_t *d) {
  static const char *const known[] = {"ByteLevel", "Replace",   "ByteFallback", "Fuse",
                                      "Strip",     "Metaspace", "Sequence"};
  size_t i, k;
  json_t *entry;
  json_array_foreach(json_object_get(d, "decoders"), i, entry) {
    for (k = 0; k < sizeof known / sizeof known[0] && !is(entry, known[k]); k++) continue;
    if (k == sizeof known / sizeof known[0]) return refused(t, "decoder", type_of(entry));
  }
  const json_t *strip = step_of(d, "decoders", "Strip");
  const json_t *metaspace = step_of(d, "decoders", "Metaspace");
  const json_t *replace = step_of(d, "decoders", "Replace");
  const char *content = json_string_value(json_object_get(replace, "content"));
  t->space_as_block = metaspace != NULL || (content != NULL && strcmp(content, " ") == 0);
  t->strip_space = metaspace != NULL || json_integer_value(json_object_get(strip, "start")) == 1;
  return TL_OK;
}

static tl_status read_template(tl_tokenizer *t, const json_t *post) {
  if (post == NULL || json_is_null(post) || is(post, "ByteLevel")) return TL_OK;
  const json_t *template = step_of(post, "processors", "TemplateProcessing");
  if (template == NULL && !is(post, "Sequence")) return refused(t, "post_processor", type_of(post));
  int after = 0;
  size_t i, k;
  json_t *entry, *id;
  json_array_foreach(json_object_get(template, "single"), i, entry) {
    const json_t *special = json_object_get(entry, "SpecialToken");
    after |= json_object_get(entry, "Sequence") != NULL;
    if (special == NULL) continue;
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *all = json_object_get(template, "special_tokens");
    const json_t *ids = json_object_get(json_object_get(all, name != NULL ? name : ""), "ids");
    if (!json_is_array(ids)) return damaged(t, "the template names a token that is none");
    json_array_foreach(ids, k, id) {
      const int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
      if (value < 0 || value >= t->token_count)
        return damaged(t, "the template has an id that is no token's");
      TL_TRY(tl_ids_append(after ? &t->after : &t->before, (int32_t)value));
    }
  }
  return TL_OK;
}

/* ---- files ---- */

static tl_status read_model(tl_tokenizer *t, const json_t *root, const json_t *model) {
  if (!is(model, "BPE")) return refused(t, "model", type_of(model));
  const json_t *dropout = json_object_get(model, "dropout");
  if (json_is_number(dropout) && json_number_value(dropout) > 0)
    return refused(t, "model", "dropout");
  t->byte_level =
      step_of(json_object_get(root, "pre_tokenizer"), "pretokenizers", "ByteLevel") != NULL;
  t->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
  t->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
  t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
  TL_TRY(read_decoder(t, json_object_get(root, "decoder")));
  TL_TRY(read_vocabulary(t, json_object_get(model, "vocab")));
  TL_TRY(read_merges(t, json_object_get(model, "merges")));
  const char *unknown = json_string_value(json_object_get(model, "unk_token"));
  if (unknown != NULL)
    t->unknown = tl_vocabulary_find(&t->vocabulary, unknown, (int64_t)strlen(unknown));
  return TL_OK;
}

tl_status tl_tokenizer_read_json(tl_tokenizer *t, const char *path) {
  json_t *root = NULL;
  tl_status status = TL_OK;
  TL_TRY_GOTO(status, load(t, path, &root), done);
  TL_TRY_GOTO(status, read_model(t, root, json_object_get(root, "model")), done);
  TL_TRY_GOTO(status, read_added(t, json_object_get(root, "added_tokens")), done);
  TL_TRY_GOTO(status, read_normalizer(t, json_object_get(root, "normalizer")), done);
  TL_TRY_GOTO(status, read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer")), done);
  TL_TRY_GOTO(status, read_template(t, json_object_get(root, "post_processor")), done);
done:
  json_decref(root);
  return status;
}

/* GPT-2's own files; <|endoftext|> is its only added token. */
tl_status tl_tokenizer_read_gpt2(tl_tokenizer *t, const char *vocab, const char *merges) {
  static const char end_of_text[] = "<|endoftext|>";
  json_t *root = NULL, *added = NULL;
  tl_status status = TL_OK;
  t->byte_level = 1;
  TL_TRY_GOTO(status, load(t, vocab, &root), done);
  TL_TRY_GOTO(status, read_vocabulary(t, root), done);
  TL_TRY_GOTO(status, read_merge_file(t, merges), done);
  TL_TRY_GOTO(status, tl_tokenizer_compile(t, tl_gpt2_pattern, 0), done);
  const json_t *id = json_object_get(root, end_of_text);
  if (id != NULL) {
    added = json_pack("[{s:s, s:I, s:b}]", "content", end_of_text, "id", json_integer_value(id),
                      "special", 1);
    status = read_added(t, added);
  }
done:
  json_decref(added);
  json_decref(root);
  return status;
}
