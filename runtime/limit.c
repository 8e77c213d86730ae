/* limit.c - medians of the last runs. */
#include "limit.h"

#include <stdlib.h>
#include <string.h>

enum { MEDIANS = 20 };

static int compare_ns(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

double tl_limit_of(const tl_limit *limit, tl_section section) {
  const int64_t runs = limit->runs[section];
  const int64_t known = runs < TL_LIMIT_RUNS ? runs : TL_LIMIT_RUNS;
  int64_t sorted[TL_LIMIT_RUNS];
  if (runs == 0) return limit->start_s;
  memcpy(sorted, limit->ns[section], (size_t)known * sizeof *sorted);
  qsort(sorted, (size_t)known, sizeof *sorted, compare_ns);
  const double median_s = (double)sorted[known / 2] / 1e9;
  return MEDIANS * median_s > limit->timeout_s ? MEDIANS * median_s : limit->timeout_s;
}

void tl_limit_note(tl_limit *limit, tl_section section, int64_t ns) {
  limit->ns[section][limit->runs[section]++ % TL_LIMIT_RUNS] = ns;
}
