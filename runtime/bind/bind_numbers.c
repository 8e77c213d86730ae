/* bind_numbers.c - reads ints and floats by name. */
#include "bind_numbers.h"

#include <string.h>

/* Pushes attrs[name]; an error if it is absent. */
static int push_attribute(lua_State *L, int attrs, const char *place, const char *name) {
  const int type = lua_getfield(L, attrs, name);
  if (type == LUA_TNIL) return luaL_error(L, "%s: %s is missing", place, name);
  return type;
}

static int64_t to_int(lua_State *L, const char *place, const char *name) {
  int whole;
  const lua_Integer value = lua_tointegerx(L, -1, &whole);
  if (!whole || lua_type(L, -1) != LUA_TNUMBER)
    luaL_error(L, "%s: %s is %s, must be an integer", place, name, luaL_tolstring(L, -1, NULL));
  return value;
}

static float to_float(lua_State *L, const char *place, const char *name) {
  if (lua_type(L, -1) != LUA_TNUMBER)
    luaL_error(L, "%s: %s is %s, must be a number", place, name, luaL_tolstring(L, -1, NULL));
  return (float)lua_tonumber(L, -1);
}

/* Numbers that the last name takes: the length of its table, which is left on the stack. */
static int32_t push_rest(lua_State *L, int attrs, const char *place, const char *name) {
  if (push_attribute(L, attrs, place, name) != LUA_TTABLE)
    luaL_error(L, "%s: %s is a %s, must be a table of numbers", place, name, luaL_typename(L, -1));
  const lua_Unsigned count = lua_rawlen(L, -1);
  if (count > 1 << 20) luaL_error(L, "%s: %s has %I numbers", place, name, count);
  return (int32_t)count;
}

/* Leaves the array on the stack, where it lives until the call ends. */
int64_t *bind_read_ints(lua_State *L, int attrs, tl_op op, const char *place, int32_t *count) {
  const tl_signature *s = tl_op_signature(op);
  const int32_t plain = s->int_count - s->ints_rest;
  const char *list = s->ints[plain];
  const int32_t rest = s->ints_rest ? push_rest(L, attrs, place, list) : (lua_pushnil(L), 0);
  int64_t *ints = lua_newuserdatauv(L, sizeof *ints * (size_t)(plain + rest + 1), 0);
  for (int32_t i = 0; i < plain + rest; i++) {
    const char *name = i < plain ? s->ints[i] : list;
    if (i < plain) {
      push_attribute(L, attrs, place, name);
    } else {
      lua_rawgeti(L, -2, i - plain + 1);
    }
    ints[i] = to_int(L, place, name);
    lua_pop(L, 1);
  }
  lua_remove(L, -2);
  *count = plain + rest;
  return ints;
}

float *bind_read_floats(lua_State *L, int attrs, tl_op op, const char *place, int32_t *count) {
  const tl_signature *s = tl_op_signature(op);
  const int32_t plain = s->float_count - s->floats_rest;
  const char *list = s->floats[plain];
  const int32_t rest = s->floats_rest ? push_rest(L, attrs, place, list) : (lua_pushnil(L), 0);
  float *floats = lua_newuserdatauv(L, sizeof *floats * (size_t)(plain + rest + 1), 0);
  for (int32_t i = 0; i < plain + rest; i++) {
    const char *name = i < plain ? s->floats[i] : list;
    if (i < plain) {
      push_attribute(L, attrs, place, name);
    } else {
      lua_rawgeti(L, -2, i - plain + 1);
    }
    floats[i] = to_float(L, place, name);
    lua_pop(L, 1);
  }
  lua_remove(L, -2);
  *count = plain + rest;
  return floats;
}

static int row_has(const tl_signature *s, const char *name) {
  for (int32_t i = 0; i < s->int_count; i++)
    if (strcmp(s->ints[i], name) == 0) return 1;
  for (int32_t i = 0; i < s->float_count; i++)
    if (strcmp(s->floats[i], name) == 0) return 1;
  return 0;
}

void bind_refuse_unknown(lua_State *L, int attrs, tl_op op, const char *place) {
  lua_pushnil(L);
  while (lua_next(L, attrs)) {
    lua_pop(L, 1);
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "a position";
    if (!row_has(tl_op_signature(op), name))
      luaL_error(L, "%s: has no number %s; it has %s %s", place, name, tl_ops[op].ints,
                 tl_ops[op].floats);
  }
}
