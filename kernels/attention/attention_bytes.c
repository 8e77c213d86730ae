/* attention_bytes.c - attention_avx512.c for processors that also have VBMI and VNNI. */
#define TARGET TL_TARGET_BYTES
#define NAME(x) x##_bytes
#define EXP2 tl_exp2_x16_bytes

#include "attention_avx512.c"
