/* moe_check.h - what the operators of moe.h refuse before they look at data: shapes, dtypes, ints.
** Host twins and launchers for a GPU begin with the same check, so both refuse in the same words.
** Numbers in memory (ids, places, offsets) are looked at by the host twins; on a GPU they come from
** kernels of this folder, which write no others. Private to moe/.
*/
#ifndef TL_MOE_CHECK_H
#define TL_MOE_CHECK_H

#include "exchange.h"
#include "moe.h"

enum { TL_MOE_PARTS_MAX = 8, TL_MOE_RUNS_MAX = 64, TL_MOE_LISTED_MAX = 4 * TL_MOE_EXPERTS_MAX };

tl_status tl_route_check(const tl_call *call);
tl_status tl_route_table_check(const tl_call *call);
tl_status tl_route_grad_check(const tl_call *call);
tl_status tl_route_sums_check(const tl_call *call);
tl_status tl_balance_loss_check(const tl_call *call);
tl_status tl_expert_counts_check(const tl_call *call);
/* place_of (TL_MOE_EXPERTS_MAX): the listing place of each expert; *experts: how many there are. */
tl_status tl_expert_order_check(const tl_call *call, int32_t *place_of, int64_t *experts);
tl_status tl_expert_load_check(const tl_call *call);
tl_status tl_load_sign_check(const tl_call *call);
tl_status tl_expert_segments_check(const tl_call *call, tl_exchange *exchange);
tl_status tl_take_rows_check(const tl_call *call);
tl_status tl_combine_check(const tl_call *call);
tl_status tl_grouped_linear_check(const tl_call *call);
tl_status tl_grouped_linear_grad_input_check(const tl_call *call);
tl_status tl_grouped_linear_grad_weight_check(const tl_call *call);
/* expert_swiglu (2 inputs before the offsets, 1 output) and its gradient (3, 2). */
tl_status tl_expert_rows_check(const char *op, const tl_call *call, int32_t in, int32_t out);
tl_status tl_expert_scale_grad_check(const tl_call *call);

/* The first row of logits that cannot be routed, as an error (moe.h). What is wrong: */
typedef enum tl_route_fault {
  TL_ROUTE_NAN,
  TL_ROUTE_INFINITE,
  TL_ROUTE_FEW,
  TL_ROUTE_TABLE /* its id has no row of different experts */
} tl_route_fault;
tl_status tl_route_refuse(int64_t layer, int64_t token, tl_route_fault what);

#endif
