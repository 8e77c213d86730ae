/* fault.c - the faults that change numbers. */
#include "fault.h"

#include <string.h>

tl_status tl_fault_find(const char *name, tl_fault_kind *out) {
  static const char *const names[] = {
#define FAULT(name, text) text,
#include "fault.def"
#undef FAULT
  };
  for (int i = 0; i < TL_FAULTS; i++)
    if (strcmp(name, names[i]) == 0) {
      *out = (tl_fault_kind)i;
      return TL_OK;
    }
  return tl_fail(TL_ARGUMENT,
                 "no fault %s; there are fail, stall, nan, ulp, swap, stale, seed, twice", name);
}

const tl_fault *tl_fault_at(const tl_fault *faults, int32_t count, int32_t rank,
                            int32_t instruction, int64_t step) {
  for (int32_t i = 0; i < count; i++) {
    const tl_fault *f = &faults[i];
    if (f->rank == rank && f->instruction == instruction && (f->step < 0 || f->step == step))
      return f;
  }
  return NULL;
}

uint32_t tl_fault_word(tl_fault_kind kind, tl_dtype dtype, uint32_t bits) {
  if (kind == TL_FAULT_NAN) return dtype == TL_F32 ? 0x7fc00000u : 0x7fc0u;
  return bits + 1;
}

void tl_fault_swap(const tl_view *in, int32_t count) {
  for (int32_t k = 0; k < count; k++) {
    const int same = in[k].data != NULL && in[k].shape[0] == in[0].shape[0];
    if (!same || in[k].shape[0] < 3) continue;
    const size_t bytes = (size_t)(tl_view_row(&in[k]) * tl_dtype_bytes(in[k].dtype));
    char *a = (char *)in[k].data + bytes, *b = a + bytes;
    for (size_t i = 0; i < bytes; i++) {
      const char kept = a[i];
      a[i] = b[i], b[i] = kept;
    }
  }
}
