/* pass_share_cuda.c - see pass_share.h. */
#include "pass_share.h"

enum { BEHIND = 128 /* bytes that a chain may read behind x */ };

/* Between two phases whose leaves pairs share is one whose x comes from all blocks: so sums of the
** first have been read before those of the second are sent. */
static tl_pass_pairs pairs_of(const tl_pass_phase *p, int32_t blocks, int *has_met) {
  const tl_gemm_few_args *g = &p->product;
  if (g->rows < 2) return TL_PASS_APART;
  if (p->before != TL_PASS_AS_IT_IS) {
    *has_met = 1;
    return p->before == TL_PASS_NORM && p->norm.norm.dim <= TL_DEVICE_PARTIALS ? TL_PASS_HALF_ROWS
                                                                               : TL_PASS_APART;
  }
  const int32_t clusters = blocks / 2, tiles = (g->tiles + clusters - 1) / clusters;
  const int32_t leaves = 1 << p->leaves_log, jobs = tiles * leaves / 2;
  if (!*has_met || (leaves != 2 && leaves != 4) || jobs > 2 * TL_PASS_WARPS) return TL_PASS_APART;
  *has_met = 0;
  return TL_PASS_HALF_LEAVES;
}

void tl_pass_share_out(tl_pass_phase *phases, int32_t count, int32_t blocks, int64_t *x) {
  int32_t tiles = 0; /* of all products so far */
  int has_met = 0;
  *x = 0;
  for (int32_t i = 0; i < count; i++) {
    tl_pass_phase *p = &phases[i];
    if (p->kind != TL_PASS_LINEAR) continue;
    p->pairs = pairs_of(p, blocks, &has_met);
    const int32_t half = p->pairs == TL_PASS_HALF_LEAVES, own = (blocks >> half) - p->spared;
    p->offset = (tiles >> half) % own;
    p->whole_rounds = p->product.tiles / own, p->last_tiles = p->product.tiles % own;
    tiles = (tiles + (p->product.tiles << half)) % blocks;
    p->x_pitch = (p->product.depth * 2 / (1 + half) + 127) / 128 * 128 + 16;
    const int64_t bytes = (int64_t)p->product.rows * p->x_pitch + BEHIND;
    if (bytes > *x) *x = bytes;
  }
}
