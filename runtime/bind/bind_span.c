/* bind_span.c - core.span: one range of addresses in the memory of several GPUs (span_cuda.h).
**
**   core.span { gpus = { 0, 1 }, bytes = n }         -> span; bytes of each GPU, rounded up
**   s:bytes()                                         -> of the whole range
**   s:parts()                                         -> { { gpu =, first =, bytes = }, .. }
**   s:write(at, tensor), s:read(at, tensor)           the tensor's bytes at byte `at`
**   s:call(gpu, "binary", inputs, outputs, attrs)     an operator on GPU `gpu`; operands are
**                                                     { at =, dtype =, shape = }, or false
**   s:close()
**
** Bytes and GPUs count from 0.
*/
#include "../call_cuda.h"
#include "../span_cuda.h"
#include "bind_cuda.h"
#include "bind_numbers.h"

enum { ALIGNMENT = 16 }; /* bytes, of operands: kernels take whole pieces */

static const char *const class_name = "tidelock.Span";

static tl_span *check_span(lua_State *L) {
  tl_span *span = *(tl_span **)luaL_checkudata(L, 1, class_name);
  luaL_argcheck(L, span != NULL, 1, "span is closed");
  return span;
}

static int64_t bytes_of(const tl_span *span) {
  return tl_span_count(span) * tl_span_part_bytes(span);
}

static int span_close(lua_State *L) {
  tl_span **h = luaL_checkudata(L, 1, class_name);
  tl_span_close(*h);
  *h = NULL;
  return 0;
}

static int span_bytes(lua_State *L) {
  lua_pushinteger(L, bytes_of(check_span(L)));
  return 1;
}

static int span_parts(lua_State *L) {
  const tl_span *span = check_span(L);
  lua_createtable(L, tl_span_count(span), 0);
  for (int32_t i = 0; i < tl_span_count(span); i++) {
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, tl_span_gpu(span, i));
    lua_setfield(L, -2, "gpu");
    lua_pushinteger(L, i * tl_span_part_bytes(span));
    lua_setfield(L, -2, "first");
    lua_pushinteger(L, tl_span_part_bytes(span));
    lua_setfield(L, -2, "bytes");
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int span_write(lua_State *L) {
  tl_span *span = check_span(L);
  const lua_Integer at = luaL_checkinteger(L, 2);
  const tl_view *view = tl_tensor_view(bind_check_tensor(L, 3));
  bind_check(L, tl_span_write(span, at, tl_view_bytes(view), view->data));
  return 0;
}

static int span_read(lua_State *L) {
  tl_span *span = check_span(L);
  const lua_Integer at = luaL_checkinteger(L, 2);
  const tl_view *view = tl_tensor_view(bind_check_tensor(L, 3));
  bind_check(L, tl_span_read(span, at, tl_view_bytes(view), view->data));
  lua_settop(L, 3);
  return 1;
}

/* The shape of the table on top of the stack. */
static void read_shape(lua_State *L, const char *place, tl_view *view) {
  if (!lua_istable(L, -1)) luaL_error(L, "%s: shape is missing", place);
  const lua_Unsigned dims = lua_rawlen(L, -1);
  if (dims < 1 || dims > TL_DIMS_MAX) luaL_error(L, "%s: a shape has 1 to 4 sizes", place);
  view->dims = (int32_t)dims;
  for (int32_t i = 0; i < view->dims; i++) {
    int whole;
    lua_rawgeti(L, -1, i + 1);
    view->shape[i] = lua_tointegerx(L, -1, &whole);
    if (!whole || view->shape[i] < 0) luaL_error(L, "%s: a size is an integer from 0", place);
    lua_pop(L, 1);
  }
}

/* The operand { at =, dtype =, shape = } on top of the stack. */
static tl_view read_place(lua_State *L, const tl_span *span, const char *place) {
  tl_view view = {.data = NULL};
  int whole;
  if (!lua_istable(L, -1)) luaL_error(L, "%s: must be { at =, dtype =, shape = }", place);
  lua_getfield(L, -1, "dtype");
  view.dtype = bind_check_dtype(L, lua_gettop(L));
  lua_getfield(L, -2, "at");
  const int64_t at = lua_tointegerx(L, -1, &whole);
  lua_getfield(L, -3, "shape");
  read_shape(L, place, &view);
  lua_pop(L, 3);
  const int64_t bytes = tl_view_bytes(&view), all = bytes_of(span);
  if (!whole || at < 0 || at % ALIGNMENT != 0 || bytes > all || at > all - bytes)
    luaL_error(L, "%s: at is a multiple of %d, and %I bytes from there lie inside %I", place,
               ALIGNMENT, (LUAI_UACINT)bytes, (LUAI_UACINT)all);
  view.data = tl_span_address(span, at);
  return view;
}

/* Operands of the table at `arg`; the array stays on the stack. */
static tl_view *read_places(lua_State *L, int arg, const tl_span *span, tl_op op, int32_t outputs,
                            const tl_call *call, int32_t *count) {
  bind_check(L, tl_op_operands(op, outputs, call->ints, count));
  tl_view *views = lua_newuserdatauv(L, sizeof *views * (size_t)(*count + 1), 0);
  if ((int64_t)lua_rawlen(L, arg) > *count)
    luaL_error(L, "%s takes %d %s", tl_ops[op].name, *count, outputs ? "outputs" : "inputs");
  for (int32_t i = 0; i < *count; i++) {
    const tl_operand *operand = tl_op_operand(op, outputs, call->ints, i);
    lua_rawgeti(L, arg, i + 1);
    if (lua_toboolean(L, -1)) {
      views[i] = read_place(L, span, operand->name);
    } else if (operand->optional && !operand->many) {
      views[i] = (tl_view){.data = NULL};
    } else {
      luaL_error(L, "%s: %s is missing", tl_ops[op].name, operand->name);
    }
    lua_pop(L, 1);
  }
  return views;
}

static int is_part(const tl_span *span, lua_Integer gpu) {
  for (int32_t i = 0; i < tl_span_count(span); i++)
    if (tl_span_gpu(span, i) == gpu) return 1;
  return 0;
}

static int span_call(lua_State *L) {
  tl_span *span = check_span(L);
  const lua_Integer gpu = luaL_checkinteger(L, 2);
  tl_op op = (tl_op)0;
  const tl_step step = {.step = 0};
  tl_call call = {.step = &step};
  luaL_argcheck(L, is_part(span, gpu), 2, "the span has no memory of this GPU");
  bind_check(L, tl_op_find(luaL_checkstring(L, 3), &op));
  luaL_checktype(L, 4, LUA_TTABLE);
  luaL_checktype(L, 5, LUA_TTABLE);
  luaL_checktype(L, 6, LUA_TTABLE);
  luaL_checkstack(L, 16, "operands");
  bind_refuse_unknown(L, 6, op, tl_ops[op].name);
  call.ints = bind_read_ints(L, 6, op, tl_ops[op].name, &call.int_count);
  call.floats = bind_read_floats(L, 6, op, tl_ops[op].name, &call.float_count);
  call.in = read_places(L, 4, span, op, 0, &call, &call.in_count);
  call.out = read_places(L, 5, span, op, 1, &call, &call.out_count);
  bind_check(L, tl_call_in_place(bind_cuda(L, gpu), op, &call));
  return 0;
}

static int core_span(lua_State *L) {
  int32_t gpus[TL_SPAN_GPUS_MAX] = {0};
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_getfield(L, 1, "bytes");
  const lua_Integer bytes = luaL_checkinteger(L, -1);
  lua_getfield(L, 1, "gpus");
  luaL_checktype(L, -1, LUA_TTABLE);
  const lua_Unsigned count = lua_rawlen(L, -1);
  luaL_argcheck(L, count <= TL_SPAN_GPUS_MAX, 1, "too many GPUs");
  for (int32_t i = 0; i < (int32_t)count; i++) {
    lua_rawgeti(L, -1, i + 1);
    gpus[i] = (int32_t)luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  tl_span **h = lua_newuserdatauv(L, sizeof *h, 0);
  *h = NULL;
  luaL_setmetatable(L, class_name);
  bind_check(L, tl_span_open(gpus, (int32_t)count, bytes, h));
  return 1;
}

void bind_span_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"bytes", span_bytes},
      {"parts", span_parts},
      {"write", span_write},
      {"read",  span_read },
      {"call",  span_call },
      {"close", span_close},
      {NULL,    NULL      },
  };
  bind_class(L, class_name, methods, span_close);
  lua_pushcfunction(L, core_span);
  lua_setfield(L, -2, "span");
}
