/* bind_tensor.c - tensors in Lua: create, read, narrow, compare, close.
**
**   core.tensor(dtype, shape [, values])        +0 everywhere, or flat or nested numbers
**   core.tensor_from_bits(dtype, shape, bits)   the inverse of t:bits()
**   core.panels(matrix) -> (P, K, 64)           kernels/panels.h
**   core.equal(a, b) -> true | false [, first element that differs, from 1]
**   core.f32(x), core.bf16(x)                   x as that dtype would keep it
**   core.bf16_bits(f32 bits) -> bf16 bits       keeps NaN payloads, which a Lua number may not
**
**   t:shape() -> { 2, 3 }    t:dtype() -> "f32"    #t -> size of dim 1    t:close()
**   t:to_table() nested      t:flat() -> list      t:bits() -> list of integers
**   t:fill(x) -> t           t:narrow(1, first, count) -> rows, in the same memory
**   t:put(list, first, count) -> t              elements first .. become those of a flat list
**   t:hash([name]) -> 16 hex digits
**   t:hash_int([name [, row_first, col_first, cols_full]]) -> integer; shares of shards add up
**
** Numbers are rounded to f32 first, then to bf16 where that is the dtype. Integers must fit.
*/
#include <stdio.h>

#include "../../kernels/panels.h"
#include "../hash.h"
#include "bind.h"

static const char *const class_name = "tidelock.Tensor";

typedef struct handle {
  tl_tensor *tensor; /* NULL before creation and after close() */
} handle;

tl_tensor *bind_check_tensor(lua_State *L, int arg) {
  const handle *h = luaL_checkudata(L, arg, class_name);
  luaL_argcheck(L, h->tensor != NULL, arg, "tensor is closed");
  return h->tensor;
}

tl_tensor **bind_push_tensor(lua_State *L) {
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->tensor = NULL;
  luaL_setmetatable(L, class_name);
  return &h->tensor;
}

tl_dtype bind_check_dtype(lua_State *L, int arg) {
  tl_dtype dtype = TL_F32;
  const tl_status status = tl_dtype_parse(luaL_checkstring(L, arg), &dtype);
  luaL_argcheck(L, status == TL_OK, arg, tl_last_error());
  return dtype;
}

static const tl_view *check_view(lua_State *L, int arg) {
  return tl_tensor_view(bind_check_tensor(L, arg));
}

/* Reads a shape, {4, 8}, into `shape`; returns the number of dims. */
static int32_t check_shape(lua_State *L, int arg, int64_t *shape) {
  luaL_checktype(L, arg, LUA_TTABLE);
  const lua_Unsigned dims = lua_rawlen(L, arg);
  luaL_argcheck(L, dims >= 1 && dims <= TL_DIMS_MAX, arg, "a shape has 1 to 4 sizes");
  for (int32_t i = 0; i < (int32_t)dims; i++) {
    int whole;
    lua_rawgeti(L, arg, i + 1);
    shape[i] = lua_tointegerx(L, -1, &whole);
    luaL_argcheck(L, whole && shape[i] >= 0, arg, "a size is an integer from 0");
    lua_pop(L, 1);
  }
  return (int32_t)dims;
}

/* Writes the number on top of the stack. f32 and bf16 round it to f32 first (nearest even); bf16
** rounds that once more, as kernels do. Integers must fit. */
static void set_number(lua_State *L, const tl_view *view, int64_t index) {
  if (view->dtype == TL_F32 || view->dtype == TL_BF16) {
    int number;
    const float value = (float)lua_tonumberx(L, -1, &number);
    if (!number || lua_type(L, -1) != LUA_TNUMBER)
      luaL_error(L, "element %I is a %s, not a number", (LUAI_UACINT)index + 1,
                 luaL_typename(L, -1));
    const uint64_t bits = view->dtype == TL_F32 ? tl_bits_from_f32(value) : tl_bf16_from_f32(value);
    tl_view_set_bits(view, index, bits);
    return;
  }
  int whole;
  const lua_Integer value = lua_tointegerx(L, -1, &whole);
  const lua_Integer low = view->dtype == TL_U8 ? 0 : view->dtype == TL_I32 ? INT32_MIN : INT64_MIN;
  const lua_Integer high = view->dtype == TL_U8    ? 255
                           : view->dtype == TL_I32 ? INT32_MAX
                                                   : INT64_MAX;
  if (!whole || lua_type(L, -1) != LUA_TNUMBER || value < low || value > high)
    luaL_error(L, "element %I is %s; %s takes integers from %I to %I", (LUAI_UACINT)index + 1,
               luaL_tolstring(L, -1, NULL), tl_dtype_name(view->dtype), (LUAI_UACINT)low,
               (LUAI_UACINT)high);
  tl_view_set_bits(view, index, (uint64_t)value);
}

static void push_number(lua_State *L, const tl_view *view, int64_t index) {
  const uint64_t bits = tl_view_bits(view, index);
  switch (view->dtype) {
    case TL_F32: lua_pushnumber(L, tl_f32_from_bits((uint32_t)bits)); break;
    case TL_BF16: lua_pushnumber(L, tl_f32_from_bf16((uint16_t)bits)); break;
    case TL_I32: lua_pushinteger(L, (int32_t)(uint32_t)bits); break;
    default: lua_pushinteger(L, (lua_Integer)bits);
  }
}

/* Fills dim `dim` and those below it from the nested table on top of the stack; returns the index
** after the last element written. */
static int64_t set_nested(lua_State *L, const tl_view *view, int32_t dim, int64_t index) {
  luaL_checkstack(L, 4, "nested values");
  if (!lua_istable(L, -1) || (int64_t)lua_rawlen(L, -1) != view->shape[dim])
    luaL_error(L, "values of dim %d: expected a table of %I, got %s of %I", dim + 1,
               (LUAI_UACINT)view->shape[dim], luaL_typename(L, -1),
               (LUAI_UACINT)(lua_istable(L, -1) ? lua_rawlen(L, -1) : 0));
  for (int64_t i = 1; i <= view->shape[dim]; i++) {
    lua_rawgeti(L, -1, i);
    if (dim + 1 < view->dims) {
      index = set_nested(L, view, dim + 1, index);
    } else {
      set_number(L, view, index++);
    }
    lua_pop(L, 1);
  }
  return index;
}

/* Calls `set` for every element of the flat table at `arg`. */
static void set_flat(lua_State *L, const tl_view *view, int arg,
                     void (*set)(lua_State *L, const tl_view *view, int64_t index)) {
  const int64_t count = tl_view_count(view);
  if ((int64_t)lua_rawlen(L, arg) != count)
    luaL_error(L, "expected %I values, got %I", (LUAI_UACINT)count,
               (LUAI_UACINT)lua_rawlen(L, arg));
  for (int64_t i = 0; i < count; i++) {
    lua_rawgeti(L, arg, i + 1);
    set(L, view, i);
    lua_pop(L, 1);
  }
}

static int core_tensor(lua_State *L) {
  int64_t shape[TL_DIMS_MAX];
  const tl_dtype dtype = bind_check_dtype(L, 1);
  const int32_t dims = check_shape(L, 2, shape);
  const int filled = !lua_isnoneornil(L, 3);
  if (filled) luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new(dtype, dims, shape, out));
  if (!filled) return 1;
  const tl_view *view = tl_tensor_view(*out);
  const int nested = lua_rawgeti(L, 3, 1) == LUA_TTABLE;
  lua_pop(L, 1);
  if (nested) {
    lua_pushvalue(L, 3);
    set_nested(L, view, 0, 0);
    lua_pop(L, 1);
  } else {
    set_flat(L, view, 3, set_number);
  }
  return 1;
}

static void set_bits(lua_State *L, const tl_view *view, int64_t index) {
  int whole;
  const lua_Integer bits = lua_tointegerx(L, -1, &whole);
  const int64_t size = tl_dtype_bytes(view->dtype);
  if (!whole || (size < 8 && (uint64_t)bits >> (8 * size) != 0))
    luaL_error(L, "element %I: bits %s do not fit %s", (LUAI_UACINT)index + 1,
               luaL_tolstring(L, -1, NULL), tl_dtype_name(view->dtype));
  tl_view_set_bits(view, index, (uint64_t)bits);
}

static int core_tensor_from_bits(lua_State *L) {
  int64_t shape[TL_DIMS_MAX];
  const tl_dtype dtype = bind_check_dtype(L, 1);
  const int32_t dims = check_shape(L, 2, shape);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new(dtype, dims, shape, out));
  set_flat(L, tl_tensor_view(*out), 3, set_bits);
  return 1;
}

static int core_equal(lua_State *L) {
  const int64_t index = tl_view_difference(check_view(L, 1), check_view(L, 2));
  lua_pushboolean(L, index == -1);
  if (index < 0) return 1;
  lua_pushinteger(L, index + 1);
  return 2;
}

static int core_f32(lua_State *L) {
  lua_pushnumber(L, (float)luaL_checknumber(L, 1));
  return 1;
}

static int core_bf16(lua_State *L) {
  lua_pushnumber(L, tl_f32_from_bf16(tl_bf16_from_f32((float)luaL_checknumber(L, 1))));
  return 1;
}

static int core_bf16_bits(lua_State *L) {
  const lua_Integer bits = luaL_checkinteger(L, 1);
  luaL_argcheck(L, bits >= 0 && bits <= UINT32_MAX, 1, "a word has 32 bits");
  lua_pushinteger(L, tl_bf16_from_f32(tl_f32_from_bits((uint32_t)bits)));
  return 1;
}

static int tensor_shape(lua_State *L) {
  const tl_view *view = check_view(L, 1);
  lua_createtable(L, view->dims, 0);
  for (int32_t i = 0; i < view->dims; i++) {
    lua_pushinteger(L, view->shape[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int tensor_dtype(lua_State *L) {
  lua_pushstring(L, tl_dtype_name(check_view(L, 1)->dtype));
  return 1;
}

static int64_t push_nested(lua_State *L, const tl_view *view, int32_t dim, int64_t index) {
  luaL_checkstack(L, 4, "nested values");
  lua_newtable(L);
  for (int64_t i = 1; i <= view->shape[dim]; i++) {
    if (dim + 1 < view->dims) {
      index = push_nested(L, view, dim + 1, index);
    } else {
      push_number(L, view, index++);
    }
    lua_rawseti(L, -2, i);
  }
  return index;
}

static int tensor_to_table(lua_State *L) {
  push_nested(L, check_view(L, 1), 0, 0);
  return 1;
}

static int tensor_flat(lua_State *L) {
  const tl_view *view = check_view(L, 1);
  const int64_t count = tl_view_count(view);
  lua_createtable(L, (int)(count < INT32_MAX ? count : 0), 0);
  for (int64_t i = 0; i < count; i++) {
    push_number(L, view, i);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int tensor_bits(lua_State *L) {
  const tl_view *view = check_view(L, 1);
  const int64_t count = tl_view_count(view);
  lua_createtable(L, (int)(count < INT32_MAX ? count : 0), 0);
  for (int64_t i = 0; i < count; i++) {
    lua_pushinteger(L, (lua_Integer)tl_view_bits(view, i));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int tensor_fill(lua_State *L) {
  const tl_view *view = check_view(L, 1);
  luaL_checknumber(L, 2);
  lua_settop(L, 2);
  const int64_t count = tl_view_count(view);
  if (count > 0) set_number(L, view, 0);
  for (int64_t i = 1; i < count; i++) tl_view_set_bits(view, i, tl_view_bits(view, 0));
  lua_settop(L, 1);
  return 1;
}

/* What is outside the tensor or the list is an error before anything is written. */
static int tensor_put(lua_State *L) {
  const tl_view *view = check_view(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  const lua_Integer first = luaL_checkinteger(L, 3), count = luaL_checkinteger(L, 4);
  const lua_Integer all = (lua_Integer)tl_view_count(view);
  luaL_argcheck(L, first >= 1 && first <= all + 1, 3, "no such element");
  luaL_argcheck(L, count >= 0 && count <= all + 1 - first, 4, "more elements than there are");
  luaL_argcheck(L, count + first - 1 <= (lua_Integer)lua_rawlen(L, 2), 2, "the list is shorter");
  lua_settop(L, 2);
  for (lua_Integer i = first; i < first + count; i++) {
    lua_rawgeti(L, 2, i);
    set_number(L, view, i - 1);
    lua_pop(L, 1);
  }
  lua_settop(L, 1);
  return 1;
}

static int tensor_narrow(lua_State *L) {
  tl_tensor *base = bind_check_tensor(L, 1);
  const lua_Integer dim = luaL_checkinteger(L, 2);
  const lua_Integer first = luaL_checkinteger(L, 3);
  const lua_Integer count = luaL_checkinteger(L, 4);
  luaL_argcheck(L, dim >= 1 && dim <= tl_tensor_view(base)->dims, 2, "no such dim");
  luaL_argcheck(L, dim == 1, 2, "only dim 1 can be narrowed without a copy; use to_table()");
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_narrow(base, first - 1, count, out));
  return 1;
}

static int tensor_hash_int(lua_State *L) {
  const tl_view *view = check_view(L, 1);
  size_t length;
  const char *name = luaL_optlstring(L, 2, "", &length);
  const tl_hash_place place = {.row_first = luaL_optinteger(L, 3, 0),
                               .col_first = luaL_optinteger(L, 4, 0),
                               .cols_full = luaL_optinteger(L, 5, tl_view_row(view))};
  const uint64_t name_hash = tl_hash_bytes(name, (int64_t)length);
  lua_pushinteger(L, (lua_Integer)tl_hash_shard(name_hash, view, &place));
  return 1;
}

static int tensor_hash(lua_State *L) {
  char text[17];
  tensor_hash_int(L);
  snprintf(text, sizeof text, "%016llx", (unsigned long long)lua_tointeger(L, -1));
  lua_pushstring(L, text);
  return 1;
}

static int tensor_close(lua_State *L) { /* __gc, __close and close() */
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_tensor_release(h->tensor);
  h->tensor = NULL; /* closing twice is fine */
  return 0;
}

static int tensor_length(lua_State *L) {
  lua_pushinteger(L, check_view(L, 1)->shape[0]);
  return 1;
}

static int tensor_text(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, class_name);
  if (h->tensor == NULL) {
    lua_pushliteral(L, "tensor(closed)");
    return 1;
  }
  const tl_view *view = tl_tensor_view(h->tensor);
  lua_pushliteral(L, "tensor(");
  for (int32_t i = 0; i < view->dims; i++)
    lua_pushfstring(L, i == 0 ? "%I" : " x %I", (LUAI_UACINT)view->shape[i]);
  lua_pushfstring(L, ", %s)", tl_dtype_name(view->dtype));
  lua_concat(L, view->dims + 2);
  return 1;
}

/* Methods by name; a number is a mistake that would hide a copy from a device. */
static int tensor_index(lua_State *L) {
  if (lua_type(L, 2) == LUA_TNUMBER)
    return luaL_error(L, "a tensor has no t[i]; use to_table() for values or narrow() for rows");
  luaL_getmetatable(L, class_name);
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  return 1;
}

static int core_panels(lua_State *L) {
  const tl_view *matrix = tl_tensor_view(bind_check_tensor(L, 1));
  luaL_argcheck(L, matrix->dims == 2 && matrix->dtype == TL_F32, 1, "a matrix of f32");
  const int64_t shape[] = {tl_panels_of(matrix->shape[0]), matrix->shape[1], TL_PANEL};
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new(TL_F32, 3, shape, out));
  tl_view panels = *tl_tensor_view(*out);
  bind_check(L, tl_panels_fill(matrix, &panels));
  return 1;
}

void bind_tensor_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"__index",    tensor_index   },
      {"__len",      tensor_length  },
      {"__tostring", tensor_text    },
      {"bits",       tensor_bits    },
      {"dtype",      tensor_dtype   },
      {"fill",       tensor_fill    },
      {"flat",       tensor_flat    },
      {"hash",       tensor_hash    },
      {"hash_int",   tensor_hash_int},
      {"narrow",     tensor_narrow  },
      {"put",        tensor_put     },
      {"shape",      tensor_shape   },
      {"to_table",   tensor_to_table},
      {NULL,         NULL           },
  };
  static const luaL_Reg functions[] = {
      {"tensor",           core_tensor          },
      {"tensor_from_bits", core_tensor_from_bits},
      {"panels",           core_panels          },
      {"equal",            core_equal           },
      {"f32",              core_f32             },
      {"bf16",             core_bf16            },
      {"bf16_bits",        core_bf16_bits       },
      {NULL,               NULL                 },
  };
  bind_class(L, class_name, methods, tensor_close);
  luaL_setfuncs(L, functions, 0);
}
