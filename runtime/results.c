/* results.c - reading results from arenas. */
#include "results.h"

#include <string.h>

static void *target_of(tl_results *out, tl_result result) {
  switch (result) {
    case TL_RESULT_LOSS: return &out->loss;
    case TL_RESULT_GRAD_NORM: return &out->grad_norm;
    case TL_RESULT_CONTROL: return out->control;
    default: return &out->count;
  }
}

static tl_status differ(const void *a, const void *b, size_t bytes, tl_result result, int32_t first,
                        int32_t rank) {
  uint64_t x = 0, y = 0;
  memcpy(&x, a, bytes < sizeof x ? bytes : sizeof x);
  memcpy(&y, b, bytes < sizeof y ? bytes : sizeof y);
  return tl_fail(TL_NUMERIC,
                 "%s differs between ranks: rank %d has bits %08llx, rank %d has %08llx",
                 tl_result_name(result), first, (unsigned long long)x, rank, (unsigned long long)y);
}

static tl_status read_result(const tl_ranks *ranks, tl_section section, tl_result result,
                             tl_results *out) {
  int32_t first = -1;
  uint64_t known[2] = {0}, value[2] = {0}; /* no result is larger */
  for (int32_t rank = 0; rank < tl_ranks_count(ranks); rank++) {
    const tl_program *p = tl_ranks_program(ranks, rank);
    tl_view view = {.data = NULL};
    if (!p->result_written[section][result]) continue;
    TL_TRY(tl_ranks_view(ranks, rank, p->results[result], &view));
    const size_t bytes = (size_t)tl_view_bytes(&view);
    if (bytes > sizeof value)
      return tl_fail(TL_PROGRAM, "result %s has %zu bytes", tl_result_name(result), bytes);
    TL_TRY(tl_ranks_result(ranks, rank, result, value));
    if (first < 0) {
      first = rank;
      memcpy(known, value, sizeof known);
      memcpy(target_of(out, result), value, bytes);
      out->has[result] = 1;
    } else if (memcmp(known, value, bytes) != 0) {
      return differ(known, value, bytes, result, first, rank);
    }
  }
  return TL_OK;
}

tl_status tl_results_read(const tl_ranks *ranks, tl_section section, tl_results *out) {
  for (int32_t r = 0; r < TL_RESULTS; r++) TL_TRY(read_result(ranks, section, (tl_result)r, out));
  return TL_OK;
}
