/* tokenizer.h - text to token ids and back.
**
**   text --cut out added tokens--> parts --normalize, split--> pieces --merge--> ids --template-->
**
** Three kinds, read from what models come with:
**
**   bytes         the id of a byte is its value; 256 ids
**   byte-level    GPT-2, Llama 3, Qwen: pieces by a regular expression, symbols are bytes
**   SentencePiece Llama 2, Mistral as tokenizer.json: spaces become U+2581, symbols are characters,
**                 a character without a token becomes its UTF-8 bytes
**
** Merging is byte pair encoding: of all neighbours that form a token, the pair with the lowest rank
** is joined, the leftmost on a tie, until none is left (Sennrich et al., 2016). A heap makes that
** n log n, so a million spaces are a fraction of a second.
**
** decode(encode(s)) = s for every string of bytes with the first two kinds; with SentencePiece for
** every string that is UTF-8 and has no U+2581.
**
** What a file asks for and this program does not do is an error that names it: nothing is skipped.
*/
#ifndef TL_TOKENIZER_H
#define TL_TOKENIZER_H

#include <stdint.h>

#include "status.h"

typedef struct tl_tokenizer tl_tokenizer;

/* `path` is "bytes", a tokenizer.json, or a folder with tokenizer.json, with vocab.json and
** merges.txt, or with encoder.json and vocab.bpe. TL_IO when it cannot be read, TL_DATA when it is
** damaged or asks for what is not there. */
tl_status tl_tokenizer_open(const char *path, tl_tokenizer **out);
void tl_tokenizer_close(tl_tokenizer *tokenizer); /* NULL is allowed */

/* One more than the largest id. */
int32_t tl_tokenizer_vocab(const tl_tokenizer *tokenizer);
/* The id of an added token such as "<|endoftext|>", or -1. */
int32_t tl_tokenizer_added(const tl_tokenizer *tokenizer, const char *content);

/* A list of ids that grows; release with tl_ids_release. */
typedef struct tl_ids {
  int32_t *id;
  int64_t count, capacity;
} tl_ids;

void tl_ids_release(tl_ids *ids); /* leaves an empty list */

typedef enum tl_tokenizer_flags {
  TL_TOKENIZER_TEMPLATE = 1, /* add what the file puts around a text, such as <s> */
  TL_TOKENIZER_PLAIN = 2,    /* "<s>" inside the text is three characters, not a token */
} tl_tokenizer_flags;

/* Appends the ids of a text of any bytes, zeros too. */
tl_status tl_tokenizer_encode(const tl_tokenizer *tokenizer, const char *text, int64_t bytes,
                              int flags, tl_ids *ids);

/* The bytes of one token: what decoding appends. Special tokens have their content. Fails with
** TL_DATA, the id and the vocabulary for an id that is none. */
tl_status tl_tokenizer_token(const tl_tokenizer *tokenizer, int64_t id, const char **text,
                             int64_t *bytes, int *special);
/* Bytes that decoding drops at the very beginning of a text: 1 where the file says that the first
** space is the tokenizer's own and the text begins with one. */
int64_t tl_tokenizer_strip(const tl_tokenizer *tokenizer, const char *text, int64_t bytes);

#endif
