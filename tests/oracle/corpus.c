/* corpus.c - section 6 of docs/numerics.md: texts, their order, samples and segments. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

struct corpus {
  int64_t tokens, documents;
  unsigned char *stream; /* (tokens), documents in shuffled order */
  int64_t *end;          /* (documents) where each ends in the stream */
};

typedef struct document {
  unsigned char *bytes;
  int64_t count;
} document;

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

static document read_document(const char *path) {
  document d = {0};
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    fprintf(stderr, "cannot read %s\n", path);
    exit(1);
  }
  d.count = ftell(file);
  d.bytes = zeroed(d.count, 1);
  rewind(file);
  if (fread(d.bytes, 1, (size_t)d.count, file) != (size_t)d.count) exit(1);
  fclose(file);
  return d;
}

corpus *corpus_open(const config *c, char **paths, int count) {
  corpus *k = zeroed(1, sizeof *k);
  document *list = zeroed(count, sizeof *list);
  k->end = zeroed(count, sizeof *k->end);
  k->documents = count;
  for (int i = 0; i < count; i++) {
    list[i] = read_document(paths[i]);
    k->tokens += list[i].count;
  }
  k->stream = zeroed(k->tokens, 1);
  int64_t at = 0;
  for (int i = 0; i < count; i++) {
    const document *d = &list[order(c->seed, "data/documents", 0, count, i)];
    memcpy(k->stream + at, d->bytes, (size_t)d->count);
    k->end[i] = at += d->count;
  }
  return k;
}

/* Running sample g into rows first .. of the batch. */
static void sample(const corpus *k, const config *c, int64_t g, int64_t first, batch *out) {
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
  for (int64_t i = 0; i < c->samples; i++) sample(k, c, step * c->samples + i, i * c->length, out);
}
