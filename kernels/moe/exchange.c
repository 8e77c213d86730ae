/* exchange.c - the blocks that a pair of ranks exchanges, from the counts alone. */
#include "exchange.h"

static int64_t count_of(const tl_exchange *x, int64_t rank, int64_t piece, int64_t expert) {
  return expert < 0 ? 0 : x->counts[(rank * x->pieces + piece) * x->experts + expert];
}

static int64_t rows_of(const tl_exchange *x, int64_t rank, int64_t expert) {
  int64_t rows = 0;
  for (int64_t piece = 0; piece < x->pieces; piece++) rows += count_of(x, rank, piece, expert);
  return rows;
}

/* Rows of `home` at the listing places first .. last - 1. */
static int64_t rows_between(const tl_exchange *x, int64_t home, int64_t first, int64_t last) {
  int64_t rows = 0;
  for (int64_t place = first; place < last; place++) rows += rows_of(x, home, x->listing[place]);
  return rows;
}

static int64_t wave_first(const tl_exchange *x) { return x->wave * x->ranks * x->slots; }

void tl_exchange_pair(const tl_exchange *x, int32_t home, int32_t owner, tl_exchange_visit visit,
                      void *context) {
  const int64_t first = wave_first(x) + owner * x->slots;
  int64_t home_row = rows_between(x, home, x->whole ? 0 : wave_first(x), first), owner_row = 0;
  for (int64_t slot = 0; slot < x->slots; slot++) {
    const int64_t expert = x->listing[first + slot];
    for (int64_t source = 0; source < x->ranks; source += x->share) {
      for (int64_t piece = 0; piece < x->pieces; piece++) {
        for (int64_t rank = source; rank < source + x->share; rank++) {
          const int64_t rows = count_of(x, rank, piece, expert);
          if (rank == home && rows > 0) {
            visit(context, home_row, owner_row, rows);
            home_row += rows;
          }
          owner_row += rows;
        }
      }
    }
  }
}

int64_t tl_exchange_home_rows(const tl_exchange *x, int32_t home) {
  const int64_t first = wave_first(x), each = x->ranks * x->slots;
  return x->whole ? rows_between(x, home, 0, x->waves * each)
                  : rows_between(x, home, first, first + each);
}

int64_t tl_exchange_owner_rows(const tl_exchange *x, int32_t owner) {
  const int64_t first = wave_first(x) + owner * x->slots;
  int64_t rows = 0;
  for (int64_t rank = 0; rank < x->ranks; rank++)
    rows += rows_between(x, rank, first, first + x->slots);
  return rows;
}

tl_status tl_exchange_check(const char *op, const tl_view *counts, tl_exchange *x, int64_t listed) {
  if (counts->dtype != TL_I32 || counts->dims != 2)
    return tl_fail(TL_DTYPE, "%s: counts must be i32 (ranks * pieces, experts)", op);
  x->experts = counts->shape[1];
  const int64_t places = x->waves * x->ranks;
  if (x->ranks < 1 || x->waves < 1 || x->share < 1 || x->ranks % x->share != 0 || x->wave < 0 ||
      x->wave >= x->waves || counts->shape[0] % x->ranks != 0 || listed < 1 || listed % places != 0)
    return tl_fail(TL_ARGUMENT,
                   "%s: %lld ranks in shares of %lld, wave %lld of %lld, %lld rows of counts, "
                   "%lld experts listed do not fit",
                   op, (long long)x->ranks, (long long)x->share, (long long)x->wave,
                   (long long)x->waves, (long long)counts->shape[0], (long long)listed);
  x->pieces = counts->shape[0] / x->ranks;
  x->slots = listed / places;
  for (int64_t i = 0; i < listed; i++)
    if (x->listing[i] < -1 || x->listing[i] >= x->experts)
      return tl_fail(TL_ARGUMENT, "%s: expert %lld is listed; there are %lld", op,
                     (long long)x->listing[i], (long long)x->experts);
  x->counts = counts->data;
  return TL_OK;
}
