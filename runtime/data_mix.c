/* data_mix.c - whole shares of other sources in every cycle of samples. */
#include <string.h>

#include "data_order.h"
#include "data_source.h"
#include "memory.h"

typedef struct mix {
  tl_data data;
  int32_t count;
  int64_t cycle;    /* samples of a cycle: the sum of the shares */
  tl_data **source; /* (count) */
  int64_t *first;   /* (count + 1) places of the cycle before each source's own */
} mix;

/* Which source has running sample g, and which of its own samples that is. */
static const tl_data *find_source(const mix *m, int64_t g, int64_t *own) {
  const int64_t cycle = g / m->cycle;
  const tl_order order = tl_order_new(m->data.seed, "data/mix", cycle, m->cycle);
  const int64_t k = tl_order_at(&order, g % m->cycle);
  int32_t i = 0;
  while (m->first[i + 1] <= k) i++;
  *own = cycle * (m->first[i + 1] - m->first[i]) + k - m->first[i];
  return m->source[i];
}

static tl_status mix_sample(const tl_data *data, int64_t g, tl_data_row *row) {
  int64_t own;
  const tl_data *source = find_source((const mix *)data, g, &own);
  return source->kind->sample(source, own, row);
}

static int64_t mix_targets(const tl_data *data, int64_t g) {
  int64_t own;
  const tl_data *source = find_source((const mix *)data, g, &own);
  return source->kind->targets(source, own);
}

static tl_data_about mix_look(const tl_data *data) {
  const mix *m = (const mix *)data;
  tl_data_about sum = {
      .beyond = {.file = -1, .token_max = -1}
  };
  for (int32_t i = 0; i < m->count; i++) {
    const tl_data_about one = tl_data_look(m->source[i]);
    sum.files += one.files;
    sum.documents += one.documents;
    sum.tokens += one.tokens;
    sum.bytes += one.bytes;
  }
  return sum;
}

static void mix_close(tl_data *data) {
  mix *m = (mix *)data;
  for (int32_t i = 0; i < m->count; i++) tl_data_close(m->source[i]);
  tl_memory_free(m->source);
  tl_memory_free(m->first);
}

static const tl_data_kind mix_kind = {mix_sample, mix_targets, mix_look, mix_close};

static tl_status check_shares(const tl_data *data, const int64_t *shares, int32_t count) {
  if (count < 1) return tl_fail(TL_ARGUMENT, "%sdata.mix: no sources", data->site);
  int64_t sum = 0;
  for (int32_t i = 0; i < count; i++) {
    if (shares[i] < 1 || shares[i] > 1000000)
      return tl_fail(TL_ARGUMENT, "%sdata.mix: share %d is %lld, must be 1 to 1,000,000",
                     data->site, i + 1, (long long)shares[i]);
    sum += shares[i];
  }
  if (sum > 1000000)
    return tl_fail(TL_ARGUMENT, "%sdata.mix: the shares add up to %lld, at most 1,000,000 can",
                   data->site, (long long)sum);
  return TL_OK;
}

tl_status tl_data_open_mix(tl_data *const *sources, const int64_t *shares, int32_t count,
                           const tl_data_options *options, tl_data **out) {
  void *block, *source = NULL, *first = NULL;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, (int64_t)sizeof(mix), &block));
  mix *m = block;
  tl_status status;
  TL_TRY_GOTO(status, tl_data_begin(&m->data, &mix_kind, options), done);
  TL_TRY_GOTO(status, check_shares(&m->data, shares, count), done);
  const int64_t word = (int64_t)sizeof(int64_t), bytes = count * word;
  TL_TRY_GOTO(status, tl_memory_alloc(TL_MEMORY_DATA, bytes, &source), done);
  TL_TRY_GOTO(status, tl_memory_alloc(TL_MEMORY_DATA, bytes + word, &first), done);
  m->count = count;
  m->source = source, source = NULL;
  m->first = first, first = NULL;
  m->first[0] = 0;
  m->data.fingerprint = tl_mix64((uint64_t)count);
  for (int32_t i = 0; i < count; i++) {
    m->source[i] = sources[i];
    m->first[i + 1] = m->first[i] + shares[i];
    m->data.fingerprint = tl_mix64(m->data.fingerprint + (uint64_t)shares[i]);
    m->data.fingerprint = tl_mix64(m->data.fingerprint + sources[i]->fingerprint);
  }
  m->cycle = m->first[count];
  *out = &m->data, block = NULL;
done:
  tl_memory_free(source);
  tl_memory_free(first);
  tl_memory_free(block);
  return status;
}
