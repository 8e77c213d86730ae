/* shape_choice.c - how launchers of decode steps cut their work for a GPU of 132 multiprocessors.
**
**   gate up   rows, features: tile of gemm_hopper_pair.cu, blocks
**   attention units: blocks of cache_hopper.cu, the most units of one, the least
*/
#include <stdio.h>

#include "../../kernels/cache/cache_cuda.h"
#include "../../kernels/gemm/gemm_hopper.h"

enum { MULTIPROCESSORS = 132 };

static void show_pair(int64_t rows, int64_t features) {
  const tl_gemm_pair_tile *t = tl_gemm_pair_choose(rows, features, MULTIPROCESSORS);
  if (t == NULL) {
    printf("%lld x %lld: none\n", (long long)rows, (long long)features);
    return;
  }
  const int64_t down = (rows + t->rows - 1) / t->rows;
  printf("%lld x %lld: %d x %d, %lld blocks\n", (long long)rows, (long long)features, t->rows,
         t->features, (long long)(down * ((features + t->features - 1) / t->features)));
}

static void show_units(int64_t units) {
  const tl_cached_plan plan = tl_cached_hopper_plan(units, MULTIPROCESSORS);
  const int64_t blocks = plan.blocks;
  printf("%lld: %lld blocks of %lld bytes, depth %d, %lld to %lld\n", (long long)units,
         (long long)blocks, (long long)plan.shared, plan.depth, (long long)(units / blocks),
         (long long)((units + blocks - 1) / blocks));
}

int main(void) {
  static const int64_t products[][2] = {
      {8,   5632 },
      {9,   5632 },
      {64,  5632 },
      {65,  5632 },
      {128, 5632 },
      {129, 5632 },
      {256, 5632 },
      {257, 5632 },
      {256, 3072 },
      {128, 192  },
      {64,  6336 },
      {64,  6337 },
      {64,  14336},
  };
  static const int64_t units[] = {1, 256, 396, 397, 528, 529, 1024, 2044};
  printf("gate up\n");
  for (size_t i = 0; i < sizeof products / sizeof products[0]; i++)
    show_pair(products[i][0], products[i][1]);
  printf("attention\n");
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) show_units(units[i]);
  return 0;
}
