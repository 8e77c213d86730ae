/* selftest.h - the two bit models (math.h's exp2, tensorcore.h), proven on the device that is here.
**
**   exp2     all 2^32 inputs in 4096 blocks of 2^20; the sum of block b, modulo 2^64, is over
**            mix64(x * 2^32 + bits of tl_exp2(x)), x = b * 2^20 .. (b + 1) * 2^20 - 1 as the bits
**            of an f32. A sum has no order: each device adds as it likes.
**   steps    tiles D (16, 8) = C (16, 8) + A (16, 16) B (16, 8), one tensor-core step each. The
**            operands come in patterns, each of which a wrong model gets wrong:
**
**     close      exponents within 2^+-2              wide      within 2^+-30
**     any        every bf16 and f32 at random: subnormal, infinite and NaN ones too
**     sparse     most products zero, C tiny or -0    cancel    b of k + 8 is -b of k, then C counts
**     edge       C = 1 and products of 2^-23 .. 2^-27: where the cut falls
**     full       all mantissa bits set               deep      products near 2^-133, C = 0
**
** `./tl doctor --selftest` compares a GPU with the host, and the host's levels with each other.
*/
#ifndef TL_SELFTEST_H
#define TL_SELFTEST_H

#include "../../runtime/cuda.h"
#include "../../runtime/team.h"

enum {
  TL_SELFTEST_BLOCKS = 4096, /* of exp2 */
  TL_SELFTEST_PATTERNS = 8,
  TL_SELFTEST_TILE = 128 /* outputs of a tile */
};

const char *tl_selftest_pattern(int32_t pattern);

/* Sums of blocks first .. first + count - 1. On the host by tl_exp2_many, at the level of the
** process. */
void tl_selftest_exp2_host(tl_team *team, int32_t first, int32_t count, uint64_t *sums);
tl_status tl_selftest_exp2_cuda(tl_cuda *cuda, int32_t first, int32_t count, uint64_t *sums);

/* `tiles` tiles of a pattern: a (tiles, 16, 16) and b (tiles, 16, 8) bf16, c (tiles, 16, 8). */
void tl_selftest_operands(int32_t pattern, uint64_t seed, int32_t tiles, uint16_t *a, uint16_t *b,
                          float *c);
/* d (tiles, 16, 8): on the host by tl_tensorcore_step, on a GPU by mma.sync. */
void tl_selftest_steps_host(const uint16_t *a, const uint16_t *b, const float *c, int32_t tiles,
                            float *d);
tl_status tl_selftest_steps_cuda(tl_cuda *cuda, const uint16_t *a, const uint16_t *b,
                                 const float *c, int32_t tiles, float *d);

#endif
