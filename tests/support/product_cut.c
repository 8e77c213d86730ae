/* product_cut.c - how the library would take a linear (gemm_library.h).
**
** Prints the products that a call of three parts is cut into, each with its parts and the elements
** between them: once with parts of one width at even distances, once with the middle one moved by
** 16 bytes, once with the first two the other way round, once with parts of two widths, once with a
** width that is no multiple of 16 bytes.
*/
#include <stdio.h>

#include "../../kernels/gemm/gemm_library.h"

enum { PARTS = 3, ROWS = 4, DEPTH = 64 };

/* Never read or written: only addresses count. */
static tl_view matrix(int64_t address, int64_t rows, int64_t columns) {
  return (tl_view){
      .data = (void *)(uintptr_t)address, .dtype = TL_BF16, .dims = 2, .shape = {rows, columns}
  };
}

static void show(const char *what, const int64_t *widths, const int64_t *weights) {
  const int64_t ints[] = {PARTS, 0, 1};
  tl_view in[1 + PARTS] = {matrix(1 << 12, ROWS, DEPTH)}, out[PARTS];
  tl_gemm_cut cut;
  for (int32_t i = 0; i < PARTS; i++) {
    in[1 + i] = matrix(weights[i], widths[i], DEPTH);
    out[i] = matrix((1 << 24) + i * (1 << 12), ROWS, widths[i]);
  }
  const tl_call call = {.in = in,
                        .out = out,
                        .in_count = 1 + PARTS,
                        .out_count = PARTS,
                        .ints = ints,
                        .int_count = 3};
  tl_gemm_cut_call(TL_GEMM_LINEAR, &call, &cut);
  printf("%s: %d", what, cut.count);
  for (int32_t i = 0; i < cut.count; i++)
    printf(", %lld x %lld by %lld", (long long)cut.shapes[i].parts,
           (long long)cut.shapes[i].columns, (long long)cut.operands[i].b_step);
  printf("\n");
}

int main(void) {
  const int64_t even[] = {32, 32, 32}, uneven[] = {32, 32, 16}, odd[] = {32, 33, 32};
  const int64_t side[] = {1 << 16, (1 << 16) + 8192, (1 << 16) + 16384};
  const int64_t moved[] = {1 << 16, (1 << 16) + 8208, (1 << 16) + 16384};
  const int64_t back[] = {(1 << 16) + 8192, 1 << 16, (1 << 16) + 16384};
  show("even", even, side);
  show("moved", even, moved);
  show("back", even, back);
  show("two widths", uneven, side);
  show("odd width", odd, side);
  return 0;
}
