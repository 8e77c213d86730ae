/* data.c - micro-batches out of samples, whatever the kind of the source. */
#include "data.h"

#include <assert.h>
#include <stdio.h>

#include "data_source.h"
#include "memory.h"

tl_status tl_data_begin(tl_data *data, const tl_data_kind *kind, const tl_data_options *options) {
  *data = (tl_data){
      .kind = kind, .length = options->length, .vocab = options->vocab, .seed = options->seed};
  const char *site = options->site != NULL ? options->site : "";
  snprintf(data->site, sizeof data->site, site[0] != '\0' ? "%s: " : "%s", site);
  if (options->length < 1)
    return tl_fail(TL_ARGUMENT, "%sdata: length is %d, must be at least 1", data->site,
                   options->length);
  if (options->vocab < 1 || options->vocab > INT32_MAX)
    return tl_fail(TL_ARGUMENT, "%sdata: vocab is %lld, must be 1 to 2,147,483,647", data->site,
                   (long long)options->vocab);
  return TL_OK;
}

void tl_data_next_tokens(const int32_t *tokens, int32_t first, int32_t end, int32_t *targets) {
  for (int32_t t = first; t + 1 < end; t++) targets[t] = tokens[t + 1];
  if (first < end) targets[end - 1] = -1;
}

/* The running number of the first sample that is asked for. */
static tl_status find_first(const tl_data *data, int64_t step, int64_t samples_global,
                            int64_t sample_first, int32_t samples, int32_t length, int64_t *out) {
  if (length != data->length)
    return tl_fail(TL_ARGUMENT, "%sdata: samples of %d tokens asked for, the source has %d",
                   data->site, length, data->length);
  if (step < 0 || samples < 0 || sample_first < 0 || sample_first + samples > samples_global)
    return tl_fail(TL_ARGUMENT, "%sdata: samples %lld .. %lld of a batch of %lld in step %lld",
                   data->site, (long long)sample_first, (long long)sample_first + samples - 1,
                   (long long)samples_global, (long long)step);
  if ((int64_t)samples * length > INT32_MAX - 1)
    return tl_fail(TL_ARGUMENT, "%sdata: %d samples of %d tokens are more than int32 can count",
                   data->site, samples, length);
  *out = step * samples_global + sample_first;
  return TL_OK;
}

tl_status tl_data_micro(const tl_data *data, int64_t step, int64_t samples_global,
                        int64_t sample_first, int32_t samples, int32_t length, int32_t *tokens,
                        int32_t *targets, int32_t *cu) {
  int64_t first;
  TL_TRY(find_first(data, step, samples_global, sample_first, samples, length, &first));
  tl_data_row row = {.cu = cu};
  cu[0] = 0;
  for (int32_t i = 0; i < samples; i++) {
    row.first = i * length;
    row.tokens = tokens + row.first;
    row.targets = targets + row.first;
    TL_TRY(data->kind->sample(data, first + i, &row));
  }
  const int32_t total = samples * length;
  assert(row.segments <= total && cu[row.segments] == total);
  for (int32_t i = row.segments + 1; i <= total; i++) cu[i] = total;
  return TL_OK;
}

tl_status tl_data_targets(const tl_data *data, int64_t step, int64_t samples_global,
                          int64_t sample_first, int32_t samples, int32_t length, int64_t *out) {
  int64_t first, count = 0;
  TL_TRY(find_first(data, step, samples_global, sample_first, samples, length, &first));
  for (int32_t i = 0; i < samples; i++) count += data->kind->targets(data, first + i);
  *out = count;
  return TL_OK;
}

uint64_t tl_data_fingerprint(const tl_data *data) { return data->fingerprint; }

tl_data_about tl_data_look(const tl_data *data) { return data->kind->look(data); }

void tl_data_close(tl_data *data) {
  if (data == NULL) return;
  data->kind->close(data);
  tl_memory_free(data);
}
