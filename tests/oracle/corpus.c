/* corpus.c - section 6 of docs/numerics.md: texts, their order, samples and segments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

/* Documents in shuffled order, and samples of them. */
typedef struct source {
  int64_t tokens, documents, share;
  int32_t *stream; /* (tokens) */
  int64_t *end;    /* (documents) where each ends in the stream */
} source;

struct corpus {
  source source[2];
  int sources;
};

typedef struct document {
  const unsigned char *bytes;
  int64_t count; /* of bytes */
} document;

enum { NEWLINE = 10, DOCUMENTS_MAX = 4096 };

/* Where place i of order(name, turn, count) points. */
static int64_t order(int64_t seed, const char *name, int64_t turn, int64_t count, int64_t i) {
  int h = 1;
  while ((int64_t)1 << 2 * h < count) h++;
  const uint64_t size = (uint64_t)1 << h;
  uint64_t x = (uint64_t)i;
  do {
    uint64_t left = x >> h, right = x % size;
    for (uint64_t round = 0; round < 6; round++) {
      uint32_t word[2];
      words((uint64_t)seed, hash_name(name), (round << 32) + right, (uint64_t)turn, word);
      const uint64_t next = left ^ word[0] % size;
      left = right;
      right = next;
    }
    x = left * size + right;
  } while (x >= (uint64_t)count);
  return (int64_t)x;
}

static document read_file(const char *path) {
  document d = {0};
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(1);
  }
  d.count = ftell(file);
  unsigned char *bytes = zeroed(d.count, 1);
  rewind(file);
  if (fread(bytes, 1, (size_t)d.count, file) != (size_t)d.count) exit(1);
  fclose(file);
  d.bytes = bytes;
  return d;
}

/* Whether the split of depth 0 gives the document to its first part. */
static int is_kept(const config *c, const document *d) {
  return c->fraction >= 1 ||
         (double)(mix64(hash_bytes(d->bytes, d->count)) >> 11) < c->fraction * 0x1p53;
}

/* The documents of a file behind those of `list`: itself, or, of 16-bit ids, its lines. */
static int64_t add_documents(const config *c, const document *file, document *list, int64_t count) {
  const int64_t width = c->lines ? 2 : 1;
  for (int64_t first = 0, at = 0; at < file->count; at += width) {
    const int ends = c->lines && file->bytes[at] == NEWLINE && file->bytes[at + 1] == 0;
    if (!ends && at + width < file->count) continue;
    const document d = {file->bytes + first, at + width - first};
    first = at + width;
    if (is_kept(c, &d)) list[count++] = d;
  }
  return count;
}

static source source_of(const config *c, char **paths, int files, int64_t share) {
  source k = {.share = share};
  document *list = zeroed(DOCUMENTS_MAX, sizeof *list);
  const int64_t width = c->lines ? 2 : 1;
  for (int i = 0; i < files; i++) {
    const document file = read_file(paths[i]);
    k.documents = add_documents(c, &file, list, k.documents);
  }
  for (int64_t i = 0; i < k.documents; i++) k.tokens += list[i].count / width;
  k.stream = zeroed(k.tokens, sizeof *k.stream);
  k.end = zeroed(k.documents, sizeof *k.end);
  int64_t at = 0;
  for (int64_t i = 0; i < k.documents; i++) {
    const document *d = &list[order(c->seed, "data/documents", 0, k.documents, i)];
    for (int64_t t = 0; t < d->count; t += width)
      k.stream[at++] = c->lines ? d->bytes[t] + 256 * d->bytes[t + 1] : d->bytes[t];
    k.end[i] = at;
  }
  free(list);
  return k;
}

/* Of a mixture the first half of the files has three samples of five, the other half two. */
corpus *corpus_open(const config *c, char **paths, int count) {
  corpus *k = zeroed(1, sizeof *k);
  const int half = c->mix ? count / 2 : count;
  k->sources = c->mix ? 2 : 1;
  k->source[0] = source_of(c, paths, half, c->mix ? 3 : 1);
  if (c->mix) k->source[1] = source_of(c, paths + half, count - half, 2);
  return k;
}

/* Running sample g of a source into rows first .. of the batch. */
static void sample(const source *k, const config *c, int64_t g, int64_t first, batch *out) {
  const int64_t samples = k->tokens / c->length;
  const int64_t position =
      order(c->seed, "data/samples", g / samples, samples, g % samples) * c->length;
  int64_t slot = 0;
  for (int64_t t = 0; t < c->length;) {
    while (k->end[slot] <= position + t) slot++;
    const int64_t left = k->end[slot] - position;
    const int64_t end = left < c->length ? left : c->length, start = t;
    for (; t < end; t++) {
      const int64_t row = first + t;
      out->id[row] = k->stream[position + t];
      out->target[row] = t + 1 < end ? k->stream[position + t + 1] : -1;
      out->start[row] = (int32_t)(first + start);
      out->end[row] = (int32_t)(first + end);
      out->targets += t + 1 < end;
    }
  }
}

void corpus_batch(const corpus *k, const config *c, int64_t step, batch *out) {
  const int64_t bytes = sizeof(int32_t);
  out->id = zeroed(c->tokens, bytes), out->target = zeroed(c->tokens, bytes);
  out->start = zeroed(c->tokens, bytes), out->end = zeroed(c->tokens, bytes);
  out->targets = 0;
  for (int64_t i = 0; i < c->samples; i++) {
    const int64_t g = step * c->samples + i;
    const int64_t shares = k->source[0].share + k->source[1].share, turn = g / shares;
    int64_t place = order(c->seed, "data/mix", turn, shares, g % shares);
    const source *from = &k->source[0];
    if (place >= from->share) place -= from->share, from = &k->source[1];
    sample(from, c, k->sources == 1 ? g : turn * from->share + place, i * c->length, out);
  }
}
