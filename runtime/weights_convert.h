/* weights_convert.h - between the element types of safetensors files and f32.
**
**   F32 BF16 F16 F8_E4M3 F8_E5M2 F8_E8M0  --widen, exact-->  f32  --nearest even-->  BF16 F16
**
** F16 is IEEE binary16. F8_E4M3 (bias 7) has no infinity: S.1111.111 is its only NaN; F8_E5M2 (bias
** 15) is the upper half of a binary16; both as in Micikevicius et al., "FP8 Formats for Deep
** Learning", 2022. F8_E8M0 is a power of two, 2^(byte - 127), and 255 is NaN (OCP Microscaling
** Formats 1.0). Data need not be aligned.
*/
#ifndef TL_WEIGHTS_CONVERT_H
#define TL_WEIGHTS_CONVERT_H

#include <stdint.h>

#include "status.h"

/* Can a dtype, by its name in a file, become f32 (exactly), or be made of it? */
int tl_weights_widens(const char *dtype_name);
int tl_weights_narrows(const char *dtype_name); /* F32, BF16, F16 */

/* `count` elements of a dtype that widens. */
void tl_weights_widen(const char *dtype_name, const void *from, int64_t count, float *to);
/* `count` elements to a dtype that narrows; a NaN stays one, too large a number is infinite. */
void tl_weights_narrow(const char *dtype_name, const float *from, int64_t count, void *to);

#endif
