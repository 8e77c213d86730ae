/* score.h - scores of a row of router logits and the experts it chooses; private to moe/. */
#ifndef TL_MOE_SCORE_H
#define TL_MOE_SCORE_H

#include "../rows.h"
#include "moe.h"

typedef enum tl_router { TL_ROUTER_SOFTMAX, TL_ROUTER_SIGMOID, TL_ROUTER_SQRT_SOFTPLUS } tl_router;

/* score (experts) of the row z, in the steps of moe.h. */
void tl_moe_scores(tl_router kind, const float *z, int64_t experts, float *score);
/* rule(a * b) of rows.h. */
float tl_moe_dot(const float *a, const float *b, int64_t n);
/* What the scores of the slots are divided by: their sum in slot order (and 1e-20). */
float tl_moe_total(tl_router kind, const float *score, const int32_t *expert, int64_t slots);

#endif
