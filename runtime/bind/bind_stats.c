/* bind_stats.c - one number of a whole tensor, in a fixed order: it has bits of its own.
**
**   t:norm()   root of the sum of squares      chunks of 65,536 elements, as square_sum adds them
**   t:rms()    root of their mean
**   t:mean()   sum of blocks of 64 elements, as sum_tokens adds them, divided once
**   t:max()    the largest element; NaN is never the largest
**
** f32 and bf16 only. Results are f32 numbers, the same for any thread count; log.watch prints them.
*/
#include <math.h>

#include "../../kernels/op.h"
#include "bind.h"

/* The f32 or bf16 tensor at `arg` as rows of `columns` elements. */
static tl_view check_numbers(lua_State *L, int arg, int64_t rows, int64_t columns) {
  const tl_view *whole = tl_tensor_view(bind_check_tensor(L, arg));
  luaL_argcheck(L, whole->dtype == TL_F32 || whole->dtype == TL_BF16, arg,
                "only f32 and bf16 tensors have these numbers");
  const int64_t count = tl_view_count(whole);
  luaL_argcheck(L, count > 0, arg, "tensor has no elements");
  if (rows == 0) rows = count;
  if (columns == 0) columns = count;
  return (tl_view){
      .data = whole->data, .dtype = whole->dtype, .dims = 2, .shape = {rows, columns}
  };
}

/* Calls an operator with one input and one f32 number as output. */
static float number_of(lua_State *L, tl_op op, const tl_view *x, const int64_t *ints,
                       int32_t int_count) {
  float number = 0;
  const tl_view in[4] = {*x};
  const tl_view out = {.data = &number, .dtype = TL_F32, .dims = 1, .shape = {1}};
  const tl_step step = {.step = 0};
  const tl_call call = {.in = in,
                        .out = &out,
                        .in_count = op == TL_OP_sum_tokens ? 4 : 1,
                        .out_count = 1,
                        .ints = ints,
                        .int_count = int_count,
                        .step = &step,
                        .team = bind_team(L, 0)};
  bind_check(L, tl_ops[op].host(&call));
  return number;
}

/* Sum of squares; `count` gets the number of elements. */
static float squares(lua_State *L, int64_t *count) {
  const tl_view x = check_numbers(L, 1, 1, 0);
  const int64_t ints[] = {0, 0, 1, 1, 0}; /* axis begin extent parts slot_first */
  *count = x.shape[1];
  return number_of(L, TL_OP_square_sum, &x, ints, 5);
}

static int tensor_norm(lua_State *L) {
  int64_t count;
  lua_pushnumber(L, sqrtf(squares(L, &count)));
  return 1;
}

static int tensor_rms(lua_State *L) {
  int64_t count;
  const float sum = squares(L, &count);
  lua_pushnumber(L, sqrtf((float)((double)sum / (double)count)));
  return 1;
}

static int tensor_mean(lua_State *L) {
  const tl_view x = check_numbers(L, 1, 0, 1);
  const int64_t count = x.shape[0];
  const int64_t ints[] = {0, 0, 1, count, 1, 0}; /* kind first samples length runs mode */
  const float sum = number_of(L, TL_OP_sum_tokens, &x, ints, 6);
  lua_pushnumber(L, (float)((double)sum / (double)count));
  return 1;
}

static int tensor_max(lua_State *L) {
  const tl_view x = check_numbers(L, 1, 1, 0);
  lua_pushnumber(L, number_of(L, TL_OP_row_max, &x, &x.shape[1], 1));
  return 1;
}

void bind_stats_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"norm", tensor_norm},
      {"rms",  tensor_rms },
      {"mean", tensor_mean},
      {"max",  tensor_max },
      {NULL,   NULL       },
  };
  luaL_getmetatable(L, "tidelock.Tensor"); /* made by bind_tensor_open, which stands before */
  luaL_setfuncs(L, methods, 0);
  lua_pop(L, 1);
}
