/* frequencies.h - how fast each pair of rope turns, shared by C and CUDA.
**
** f64, with the operations + - * / and steps that are exact; the order is that of the code.
**
**   log2(x)   x = 2^e m, m in [1, 2); z = (m - 1) / (m + 1);
**             e + (2 / ln 2) (z + z^3/3 + ... + z^41/41), by Horner in z^2 from the last term
**   2^x       n = the whole number nearest to x (ties away from 0), t = (x - n) ln 2;
**             2^n (1 + t/1 (1 + t/2 (1 + ... (1 + t/20))))
*/
#ifndef TL_FREQUENCIES_H
#define TL_FREQUENCIES_H

#include "../math.h"

#define TL_LN2_F64 0x1.62e42fefa39efp-1

/* Numbers of rope_table. */
typedef struct tl_rope_rule {
  int64_t kind, original;
  float base, factor, low, high, magnitude;
} tl_rope_rule;

TL_MATH double tl_log2_f64(double x) {
  int32_t e = 0;
  for (; x >= 2.0; x /= 2.0) e++;
  for (; x < 1.0; x *= 2.0) e--;
  const double z = (x - 1.0) / (x + 1.0), square = z * z;
  double sum = 1.0 / 41.0;
  for (int32_t i = 39; i >= 1; i -= 2) sum = sum * square + 1.0 / (double)i;
  return (double)e + (2.0 / TL_LN2_F64) * (z * sum);
}

TL_MATH double tl_exp2_f64(double x) {
  const int32_t n = (int32_t)(x < 0.0 ? x - 0.5 : x + 0.5);
  const double t = (x - (double)n) * TL_LN2_F64;
  double y = 1.0;
  for (int32_t i = 20; i >= 1; i--) y = 1.0 + t / (double)i * y;
  for (int32_t i = 0; i < n; i++) y *= 2.0;
  for (int32_t i = 0; i > n; i--) y /= 2.0;
  return y;
}

/* The yarn rule: waves that turn less than `low` times in the original length are slowed by
** `factor`, those that turn more than `high` times are kept, and between the two borders, rounded
** outwards to whole pairs, the share of the slow ones rises evenly. A border is the pair that turns
** so many times. */
TL_MATH double tl_rope_border(const tl_rope_rule *rule, int64_t pairs, double turns) {
  const double waves = (double)rule->original / (turns * (2.0 * 0x1.921fb54442d18p+1));
  return (double)(2 * pairs) * tl_log2_f64(waves) / (2.0 * tl_log2_f64((double)rule->base));
}

TL_MATH double tl_rope_yarn(const tl_rope_rule *rule, double f, int64_t i, int64_t pairs) {
  const double from = tl_rope_border(rule, pairs, (double)rule->high);
  const double to = tl_rope_border(rule, pairs, (double)rule->low);
  int64_t below = (int64_t)from, above = (int64_t)to; /* towards 0, then down and up */
  if ((double)below > from) below--;
  if ((double)above < to) above++;
  const double low = below < 0 ? 0.0 : (double)below;
  double high = above > 2 * pairs - 1 ? (double)(2 * pairs - 1) : (double)above;
  if (low == high) high += 0.001;
  double ramp = ((double)i - low) / (high - low);
  if (ramp < 0.0) ramp = 0.0;
  if (ramp > 1.0) ramp = 1.0;
  return f / (double)rule->factor * ramp + f * (1.0 - ramp);
}

/* The llama3 rule: long waves are slowed by `factor`, short ones kept, those between mixed. */
TL_MATH double tl_rope_scaled(const tl_rope_rule *rule, double f) {
  const double wave = 2.0 * 0x1.921fb54442d18p+1 / f, original = (double)rule->original;
  const double slow = f / (double)rule->factor;
  const double low = (double)rule->low, high = (double)rule->high;
  if (wave > original / low) return slow;
  if (wave < original / high) return f;
  const double mix = (original / wave - low) / (high - low);
  return (1.0 - mix) * slow + mix * f;
}

/* f_i of elementwise.h. */
TL_MATH float tl_rope_frequency(const tl_rope_rule *rule, int64_t i, int64_t pairs) {
  const double base_log2 = tl_log2_f64((double)rule->base);
  const double f = tl_exp2_f64(-((double)(2 * i) / (double)(2 * pairs)) * base_log2);
  if (rule->kind == 1) return (float)tl_rope_scaled(rule, f);
  if (rule->kind == 2) return (float)tl_rope_yarn(rule, f, i, pairs);
  return (float)f;
}

#endif
