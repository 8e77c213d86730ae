/* tokenizer_parts.h - what a tokenizer consists of. Private to tokenizer*.c. */
#ifndef TL_TOKENIZER_PARTS_H
#define TL_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer.h"

/* A string of bytes that grows. Lengths are kept apart: zeros are bytes like others. */
typedef struct tl_bytes {
  char *data;
  int64_t count, capacity;
} tl_bytes;

tl_status tl_bytes_append(tl_bytes *bytes, const void *data, int64_t count);
tl_status tl_ids_append(tl_ids *ids, int32_t id);

/* Strings to ids: open addressing over XXH64, at most half full. */
typedef struct tl_vocabulary {
  struct tl_vocabulary_slot {
    const char *text; /* NULL: free */
    int64_t bytes;
    int32_t id;
  } * slots;
  int64_t capacity, count; /* capacity is a power of two */
} tl_vocabulary;

tl_status tl_vocabulary_open(int64_t count, tl_vocabulary *out);
void tl_vocabulary_release(tl_vocabulary *vocabulary);
/* `text` stays with the caller. A text that is there already keeps its id. */
void tl_vocabulary_add(tl_vocabulary *vocabulary, const char *text, int64_t bytes, int32_t id);
int32_t tl_vocabulary_find(const tl_vocabulary *vocabulary, const char *text, int64_t bytes);

/* Pairs of ids that join: (left, right) -> rank and the joined id. */
typedef struct tl_merge {
  int32_t left, right, rank, joined; /* left < 0: free */
} tl_merge;

typedef struct tl_merges {
  tl_merge *slots;
  int64_t capacity;
} tl_merges;

tl_status tl_merges_open(int64_t count, tl_merges *out);
void tl_merges_release(tl_merges *merges);
/* The first rank of a pair stays. */
void tl_merges_add(tl_merges *merges, tl_merge merge);
/* Joins what can be joined in symbols[0 .. *count), in place. */
tl_status tl_merges_apply(const tl_merges *merges, int32_t *symbols, int64_t *count);

typedef struct tl_token {
  const char *text; /* decoded bytes; NULL: no such id */
  int64_t bytes;
  int special;
} tl_token;

typedef struct tl_added_token {
  char *content;
  int64_t bytes;
  int32_t id;
} tl_added_token;

/* How a part of a text is changed before it is split. */
typedef struct tl_normalizer {
  enum { TL_NORMALIZE_PREPEND, TL_NORMALIZE_REPLACE, TL_NORMALIZE_NFC } kind;
  char *from, *to; /* replace: both; prepend: to */
} tl_normalizer;

/* How it is cut into pieces. */
typedef struct tl_splitter {
  pcre2_code *pattern;
  int removed; /* matches vanish; otherwise they and what lies between them are pieces */
} tl_splitter;

enum { TL_TOKENIZER_STEPS_MAX = 8 };

struct tl_tokenizer {
  char *path;
  int byte_level;     /* symbols are bytes */
  int prefix_space;   /* byte-level: a space before a part that does not begin with one */
  int byte_fallback;  /* a character without a token becomes <0x..> tokens */
  int fuse_unknown;   /* neighbouring unknown characters are one unknown token */
  int ignore_merges;  /* a piece that is a token is not merged */
  int strip_space;    /* decoding drops one space at the beginning */
  int space_as_block; /* decoding turns U+2581 into a space */
  int32_t unknown;    /* -1: none */
  int32_t byte_ids[256];
  tl_vocabulary vocabulary;
  tl_merges merges;
  tl_token *tokens;
  int32_t token_count;
  tl_added_token *added; /* longest first */
  int32_t added_count;
  uint8_t added_begins[256]; /* can an added token begin with this byte? */
  tl_normalizer normalizers[TL_TOKENIZER_STEPS_MAX];
  int normalizer_count;
  tl_splitter splitters[TL_TOKENIZER_STEPS_MAX];
  int splitter_count;
  tl_ids before, after; /* of the template */
  char **texts;         /* memory of vocabulary and tokens */
  int64_t text_count, text_capacity;
};

/* A copy that lives as long as the tokenizer; NULL when memory is out. */
char *tl_tokenizer_keep(tl_tokenizer *tokenizer, const char *text, int64_t bytes);
tl_status tl_tokenizer_compile(tl_tokenizer *tokenizer, const char *pattern, int removed);
tl_status tl_tokenizer_read_json(tl_tokenizer *tokenizer, const char *path);
tl_status tl_tokenizer_read_gpt2(tl_tokenizer *tokenizer, const char *vocab, const char *merges);

/* The length of the UTF-8 character at `text`, 1 for a byte that begins none. */
int tl_character_length(const char *text, int64_t bytes);

extern const char *const tl_gpt2_pattern;

#endif
