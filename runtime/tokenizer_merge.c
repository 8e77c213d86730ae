/* tokenizer_merge.c - tables of tokens and pairs, and byte pair merging. */
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "tokenizer_parts.h"

static tl_status out_of_memory(void) { return tl_fail(TL_MEMORY, "out of memory for a tokenizer"); }

static int grow(void **data, int64_t *capacity, int64_t needed, size_t element) {
  if (needed <= *capacity) return 1;
  int64_t wanted = *capacity > 0 ? *capacity : 16;
  while (wanted < needed) wanted *= 2;
  void *bigger = realloc(*data, (size_t)wanted * element);
  if (bigger == NULL) return 0;
  *data = bigger;
  *capacity = wanted;
  return 1;
}

tl_status tl_bytes_append(tl_bytes *bytes, const void *data, int64_t count) {
  if (!grow((void **)&bytes->data, &bytes->capacity, bytes->count + count + 1, 1))
    return out_of_memory();
  if (count > 0) memcpy(bytes->data + bytes->count, data, (size_t)count);
  bytes->count += count;
  return TL_OK;
}

tl_status tl_ids_append(tl_ids *ids, int32_t id) {
  if (!grow((void **)&ids->id, &ids->capacity, ids->count + 1, sizeof *ids->id))
    return out_of_memory();
  ids->id[ids->count++] = id;
  return TL_OK;
}

void tl_ids_release(tl_ids *ids) {
  free(ids->id);
  *ids = (tl_ids){0};
}

/* ---- vocabulary ---- */

static int64_t power_above(int64_t count) {
  int64_t capacity = 16;
  while (capacity < 2 * count) capacity *= 2;
  return capacity;
}

tl_status tl_vocabulary_open(int64_t count, tl_vocabulary *out) {
  *out = (tl_vocabulary){.capacity = power_above(count)};
  out->slots = calloc((size_t)out->capacity, sizeof *out->slots);
  return out->slots != NULL ? TL_OK : out_of_memory();
}

void tl_vocabulary_release(tl_vocabulary *vocabulary) {
  free(vocabulary->slots);
  *vocabulary = (tl_vocabulary){0};
}

static struct tl_vocabulary_slot *slot_of(const tl_vocabulary *v, const char *text, int64_t bytes) {
  int64_t i = (int64_t)(tl_hash_bytes(text, bytes) & (uint64_t)(v->capacity - 1));
  for (;; i = (i + 1) & (v->capacity - 1)) {
    struct tl_vocabulary_slot *slot = &v->slots[i];
    if (slot->text == NULL) return slot;
    if (slot->bytes == bytes && memcmp(slot->text, text, (size_t)bytes) == 0) return slot;
  }
}

void tl_vocabulary_add(tl_vocabulary *vocabulary, const char *text, int64_t bytes, int32_t id) {
  struct tl_vocabulary_slot *slot = slot_of(vocabulary, text, bytes);
  if (slot->text != NULL) return;
  *slot = (struct tl_vocabulary_slot){text, bytes, id};
  vocabulary->count++;
}

int32_t tl_vocabulary_find(const tl_vocabulary *vocabulary, const char *text, int64_t bytes) {
  const struct tl_vocabulary_slot *slot = slot_of(vocabulary, text, bytes);
  return slot->text != NULL ? slot->id : -1;
}

/* ---- pairs ---- */

tl_status tl_merges_open(int64_t count, tl_merges *out) {
  *out = (tl_merges){.capacity = power_above(count)};
  out->slots = malloc((size_t)out->capacity * sizeof *out->slots);
  if (out->slots == NULL) return out_of_memory();
  for (int64_t i = 0; i < out->capacity; i++) out->slots[i].left = -1;
  return TL_OK;
}

void tl_merges_release(tl_merges *merges) {
  free(merges->slots);
  *merges = (tl_merges){0};
}

static tl_merge *pair_slot(const tl_merges *merges, int32_t left, int32_t right) {
  const uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  int64_t i = (int64_t)(tl_mix64(key) & (uint64_t)(merges->capacity - 1));
  for (;; i = (i + 1) & (merges->capacity - 1)) {
    tl_merge *slot = &merges->slots[i];
    if (slot->left < 0 || (slot->left == left && slot->right == right)) return slot;
  }
}

void tl_merges_add(tl_merges *merges, tl_merge merge) {
  tl_merge *slot = pair_slot(merges, merge.left, merge.right);
  if (slot->left < 0) *slot = merge;
}

static const tl_merge *find_merge(const tl_merges *merges, int32_t left, int32_t right) {
  const tl_merge *slot = pair_slot(merges, left, right);
  return slot->left < 0 ? NULL : slot;
}

/* ---- merging ---- */

/* A pair that was seen: `at` is the place of its left symbol. Old ones stay in the heap and are
** passed over when their symbols have changed. */
typedef struct candidate {
  int32_t rank;
  int64_t at;
  const tl_merge *merge;
} candidate;

typedef struct merger {
  const tl_merges *merges;
  int32_t *symbols; /* -1: joined to its left neighbour */
  int64_t *before, *after;
  int64_t count;
  candidate *heap;
  int64_t heap_count, heap_capacity;
} merger;

static int earlier(const candidate *a, const candidate *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static int push(merger *m, candidate c) {
  if (!grow((void **)&m->heap, &m->heap_capacity, m->heap_count + 1, sizeof *m->heap)) return 0;
  int64_t i = m->heap_count++;
  for (; i > 0 && earlier(&c, &m->heap[(i - 1) / 2]); i = (i - 1) / 2)
    m->heap[i] = m->heap[(i - 1) / 2];
  m->heap[i] = c;
  return 1;
}

static candidate pop(merger *m) {
  const candidate top = m->heap[0], last = m->heap[--m->heap_count];
  int64_t i = 0;
  for (;;) {
    int64_t child = 2 * i + 1;
    if (child >= m->heap_count) break;
    if (child + 1 < m->heap_count && earlier(&m->heap[child + 1], &m->heap[child])) child++;
    if (!earlier(&m->heap[child], &last)) break;
    m->heap[i] = m->heap[child];
    i = child;
  }
  m->heap[i] = last;
  return top;
}

/* Looks at the pair that begins at place `at`. */
static int consider(merger *m, int64_t at) {
  if (at < 0 || m->after[at] >= m->count) return 1;
  const tl_merge *merge = find_merge(m->merges, m->symbols[at], m->symbols[m->after[at]]);
  return merge == NULL || push(m, (candidate){merge->rank, at, merge});
}

static int join(merger *m, const candidate *c) {
  const int64_t right = m->after[c->at];
  if (m->symbols[c->at] != c->merge->left || right >= m->count ||
      m->symbols[right] != c->merge->right)
    return 1;
  m->symbols[c->at] = c->merge->joined;
  m->symbols[right] = -1;
  m->after[c->at] = m->after[right];
  if (m->after[right] < m->count) m->before[m->after[right]] = c->at;
  return consider(m, m->before[c->at]) && consider(m, c->at);
}

tl_status tl_merges_apply(const tl_merges *merges, int32_t *symbols, int64_t *count) {
  const int64_t n = *count;
  if (n < 2) return TL_OK;
  merger m = {.merges = merges, .symbols = symbols, .count = n};
  m.before = malloc((size_t)n * sizeof *m.before);
  m.after = malloc((size_t)n * sizeof *m.after);
  int good = m.before != NULL && m.after != NULL;
  for (int64_t i = 0; good && i < n; i++) m.before[i] = i - 1, m.after[i] = i + 1;
  for (int64_t i = 0; good && i + 1 < n; i++) good = consider(&m, i);
  while (good && m.heap_count > 0) {
    const candidate c = pop(&m);
    if (symbols[c.at] >= 0) good = join(&m, &c);
  }
  int64_t kept = 0;
  for (int64_t i = 0; good && i < n; i++)
    if (symbols[i] != -1) symbols[kept++] = symbols[i];
  *count = kept;
  free(m.before);
  free(m.after);
  free(m.heap);
  return good ? TL_OK : out_of_memory();
}
