/* data_given.c - samples that are written out.
**
**   tokens, targets   (samples, length)
**   ends              ends of segments, from the start of their sample; sample after sample
**   first             (samples + 1) where a sample's ends begin
*/
#include <stdio.h>
#include <string.h>

#include "data_source.h"
#include "hash.h"
#include "memory.h"

typedef struct given {
  tl_data data;
  int64_t samples;
  int32_t *tokens, *targets, *ends;
  int64_t *first;
} given;

static tl_status given_sample(const tl_data *data, int64_t g, tl_data_row *row) {
  const given *s = (const given *)data;
  const int64_t i = g % s->samples;
  const int32_t *tokens = s->tokens + i * data->length, *targets = s->targets + i * data->length;
  memcpy(row->tokens, tokens, (size_t)data->length * sizeof *tokens);
  memcpy(row->targets, targets, (size_t)data->length * sizeof *targets);
  for (int64_t e = s->first[i]; e < s->first[i + 1]; e++) tl_data_row_close(row, s->ends[e]);
  return TL_OK;
}

static int64_t given_targets(const tl_data *data, int64_t g) {
  const given *s = (const given *)data;
  const int32_t *targets = s->targets + g % s->samples * data->length;
  int64_t count = 0;
  for (int32_t t = 0; t < data->length; t++) count += targets[t] >= 0;
  return count;
}

static tl_data_about given_look(const tl_data *data) {
  const given *s = (const given *)data;
  return (tl_data_about){
      .documents = s->first[s->samples],
      .tokens = s->samples * data->length,
      .bytes = s->samples * data->length * (int64_t)sizeof(int32_t),
      .samples_per_epoch = s->samples,
      .beyond = {.file = -1, .token_max = -1}
  };
}

static void given_close(tl_data *data) {
  given *s = (given *)data;
  tl_memory_free(s->tokens);
  tl_memory_free(s->targets);
  tl_memory_free(s->ends);
  tl_memory_free(s->first);
}

static const tl_data_kind given_kind = {given_sample, given_targets, given_look, given_close};

static tl_status check_cu(const tl_data *data, int64_t i, const tl_data_sample *sample) {
  char lead[320];
  snprintf(lead, sizeof lead, "%sdata.given: sample %lld: cu_seqlens", data->site, (long long)i);
  const int64_t last = sample->cu_count - 1;
  const int32_t *cu = sample->cu;
  if (last < 1 || last > data->length)
    return tl_fail(TL_DATA, "%s: %lld entries, must be 2 to %d", lead, (long long)last + 1,
                   data->length + 1);
  if (cu[0] != 0) return tl_fail(TL_DATA, "%s: entry 0 is %d, must be 0", lead, cu[0]);
  for (int64_t e = 1; e <= last; e++) {
    if (cu[e] < cu[e - 1])
      return tl_fail(TL_DATA, "%s: entry %lld is %d, less than %d", lead, (long long)e, cu[e],
                     cu[e - 1]);
    if (cu[e] > data->length)
      return tl_fail(TL_DATA, "%s: entry %lld is %d, but there are %d rows", lead, (long long)e,
                     cu[e], data->length);
  }
  if (cu[last] != data->length)
    return tl_fail(TL_DATA, "%s: entry %lld is %d, but there are %d rows", lead, (long long)last,
                   cu[last], data->length);
  return TL_OK;
}

/* `what` is "token" or "target"; ids are least .. vocab - 1. */
static tl_status check_ids(const tl_data *data, int64_t i, const char *what, const int32_t *ids,
                           int32_t least) {
  for (int32_t t = 0; t < data->length; t++)
    if (ids[t] < least || ids[t] >= data->vocab)
      return tl_fail(TL_DATA, "%sdata.given: sample %lld: %s %d at position %d, but vocab is %lld",
                     data->site, (long long)i, what, ids[t], t, (long long)data->vocab);
  return TL_OK;
}

static tl_status check_sample(const tl_data *data, int64_t i, const tl_data_sample *sample) {
  if (sample->token_count != data->length)
    return tl_fail(TL_DATA, "%sdata.given: sample %lld has %lld tokens, batch.length is %d",
                   data->site, (long long)i, (long long)sample->token_count, data->length);
  if (sample->targets != NULL && sample->target_count != data->length)
    return tl_fail(TL_DATA, "%sdata.given: sample %lld has %lld targets for %d tokens", data->site,
                   (long long)i, (long long)sample->target_count, data->length);
  TL_TRY(check_ids(data, i, "token", sample->tokens, 0));
  if (sample->targets != NULL) TL_TRY(check_ids(data, i, "target", sample->targets, -1));
  return sample->cu != NULL ? check_cu(data, i, sample) : TL_OK;
}

static void copy_sample(given *s, int64_t i, const tl_data_sample *sample) {
  const int32_t length = s->data.length;
  int32_t *tokens = s->tokens + i * length, *targets = s->targets + i * length;
  int32_t *ends = s->ends + s->first[i];
  const int64_t count = sample->cu != NULL ? sample->cu_count - 1 : 1;
  s->first[i + 1] = s->first[i] + count;
  memcpy(tokens, sample->tokens, (size_t)length * sizeof *tokens);
  for (int64_t e = 0; e < count; e++) ends[e] = sample->cu != NULL ? sample->cu[e + 1] : length;
  if (sample->targets != NULL) {
    memcpy(targets, sample->targets, (size_t)length * sizeof *targets);
    return;
  }
  for (int64_t e = 0; e < count; e++)
    tl_data_next_tokens(tokens, e > 0 ? ends[e - 1] : 0, ends[e], targets);
}

static tl_status allocate(given *s, int64_t count, int64_t ends) {
  const int64_t bytes = count * s->data.length * (int64_t)sizeof(int32_t);
  void *block;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, bytes, &block));
  s->tokens = block;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, bytes, &block));
  s->targets = block;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, ends * (int64_t)sizeof(int32_t), &block));
  s->ends = block;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, (count + 1) * (int64_t)sizeof(int64_t), &block));
  s->first = block;
  s->first[0] = 0;
  s->samples = count;
  return TL_OK;
}

static uint64_t fingerprint(const given *s) {
  const int64_t bytes = s->samples * s->data.length * (int64_t)sizeof(int32_t);
  const int64_t ends = s->first[s->samples] * (int64_t)sizeof(int32_t);
  uint64_t hash = tl_hash_bytes(s->tokens, bytes);
  hash = tl_mix64(hash + tl_hash_bytes(s->targets, bytes));
  return tl_mix64(hash + tl_hash_bytes(s->ends, ends));
}

tl_status tl_data_open_given(const tl_data_sample *samples, int64_t count,
                             const tl_data_options *options, tl_data **out) {
  void *block;
  TL_TRY(tl_memory_alloc(TL_MEMORY_DATA, (int64_t)sizeof(given), &block));
  given *s = block;
  *s = (given){0};
  int64_t ends = 0;
  tl_status status;
  TL_TRY_GOTO(status, tl_data_begin(&s->data, &given_kind, options), done);
  if (count < 1) {
    status = tl_fail(TL_DATA, "%sdata.given: no samples", s->data.site);
    goto done;
  }
  for (int64_t i = 0; i < count; i++) {
    TL_TRY_GOTO(status, check_sample(&s->data, i, &samples[i]), done);
    ends += samples[i].cu != NULL ? samples[i].cu_count - 1 : 1;
  }
  TL_TRY_GOTO(status, allocate(s, count, ends), done);
  for (int64_t i = 0; i < count; i++) copy_sample(s, i, &samples[i]);
  s->data.fingerprint = fingerprint(s);
  *out = &s->data, s = NULL;
done:
  if (s != NULL) {
    given_close(&s->data);
    tl_memory_free(s);
  }
  return status;
}
