/* bind_json.c - JSON to and from Lua values (jansson reads; writing is here, to fix every byte).
**
**     json.encode(value) -> text    json.decode(text) -> value    json.array(table) -> the table
**
**     object  <->  table with string keys, written in bytewise order of keys
**     array   <->  table with the keys 1 .. n; an empty one is an object unless made by json.array
**     null    <->  json.null
**     3, 3.0  <->  integer, float: the kind survives; floats are written with the fewest of 15 to
**                  17 digits that read back as the same bits
*/
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bind.h"

enum { DEPTH_MAX = 100 };

static const char *const array_class = "tidelock.JsonArray";
static const char null_key; /* its address stands for null */

static void push_null(lua_State *L) { lua_pushlightuserdata(L, (void *)&null_key); }

static void mark_array(lua_State *L) { luaL_setmetatable(L, array_class); }

static void push_json(lua_State *L, const json_t *value) {
  luaL_checkstack(L, 4, "JSON");
  switch (json_typeof(value)) {
    case JSON_OBJECT: {
      const char *key;
      json_t *field;
      lua_newtable(L);
      json_object_foreach((json_t *)value, key, field) {
        push_json(L, field);
        lua_setfield(L, -2, key);
      }
      break;
    }
    case JSON_ARRAY:
      lua_createtable(L, (int)json_array_size(value), 0);
      for (size_t i = 0; i < json_array_size(value); i++) {
        push_json(L, json_array_get(value, i));
        lua_rawseti(L, -2, (lua_Integer)i + 1);
      }
      mark_array(L);
      break;
    case JSON_STRING:
      lua_pushlstring(L, json_string_value(value), json_string_length(value));
      break;
    case JSON_INTEGER: lua_pushinteger(L, json_integer_value(value)); break;
    case JSON_REAL: lua_pushnumber(L, json_real_value(value)); break;
    case JSON_TRUE: lua_pushboolean(L, 1); break;
    case JSON_FALSE: lua_pushboolean(L, 0); break;
    case JSON_NULL: push_null(L); break;
  }
}

/* json.decode(text) -> value; raises with line and column. */
static int decode_protected(lua_State *L) {
  push_json(L, lua_touserdata(L, 1));
  return 1;
}

static int json_decode(lua_State *L) {
  size_t length;
  json_error_t error;
  const char *text = luaL_checklstring(L, 1, &length);
  json_t *value =
      json_loadb(text, length, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  if (value == NULL)
    return luaL_error(L, "JSON, line %d, column %d: %s", error.line, error.column, error.text);
  lua_pushcfunction(L, decode_protected); /* what raises inside must not lose `value` */
  lua_pushlightuserdata(L, value);
  const int status = lua_pcall(L, 1, 1, 0);
  json_decref(value);
  return status == LUA_OK ? 1 : lua_error(L);
}

/* Pieces of text are collected in a table, then joined. */
typedef struct writer {
  lua_State *L;
  int pieces; /* stack index */
  lua_Integer count;
} writer;

static void add_top(writer *w) { lua_rawseti(w->L, w->pieces, ++w->count); }

static void add_text(writer *w, const char *text) {
  lua_pushstring(w->L, text);
  add_top(w);
}

static void add_string(writer *w, const char *text, size_t length) {
  json_t *valid = json_stringn(text, length);
  if (valid == NULL) luaL_error(w->L, "a string is not UTF-8, JSON cannot hold it");
  json_decref(valid);
  luaL_Buffer b;
  luaL_buffinit(w->L, &b);
  luaL_addchar(&b, '"');
  for (size_t i = 0; i < length; i++) {
    const unsigned char c = (unsigned char)text[i];
    char escape[8];
    if (c == '"' || c == '\\') {
      luaL_addchar(&b, '\\');
      luaL_addchar(&b, (char)c);
    } else if (c == '\n') {
      luaL_addstring(&b, "\\n");
    } else if (c < 0x20 || c == 0x7f) {
      snprintf(escape, sizeof escape, "\\u%04x", c);
      luaL_addstring(&b, escape);
    } else {
      luaL_addchar(&b, (char)c);
    }
  }
  luaL_addchar(&b, '"');
  luaL_pushresult(&b);
  add_top(w);
}

static void add_number(writer *w, int index) {
  char text[40];
  if (lua_isinteger(w->L, index)) {
    snprintf(text, sizeof text, LUA_INTEGER_FMT, lua_tointeger(w->L, index));
  } else {
    const double value = lua_tonumber(w->L, index);
    if (!isfinite(value)) luaL_error(w->L, "%f has no JSON form", value);
    for (int digits = 15; digits <= 17; digits++) {
      snprintf(text, sizeof text, "%.*g", digits, value);
      if (strtod(text, NULL) == value) break;
    }
    if (text[strcspn(text, ".e")] == '\0') strcat(text, ".0");
  }
  add_text(w, text);
}

static void add_value(writer *w, int index, int depth);

static void add_array(writer *w, int index, int depth) {
  add_text(w, "[");
  const lua_Unsigned count = lua_rawlen(w->L, index);
  for (lua_Unsigned i = 1; i <= count; i++) {
    if (i > 1) add_text(w, ",");
    lua_rawgeti(w->L, index, (lua_Integer)i);
    add_value(w, lua_gettop(w->L), depth + 1);
    lua_pop(w->L, 1);
  }
  add_text(w, "]");
}

/* Pushes the keys of the object at `index` as a sorted list; returns how many. */
static lua_Integer push_keys(lua_State *L, int index) {
  lua_Integer count = 0;
  lua_getglobal(L, "table");
  lua_getfield(L, -1, "sort");
  lua_remove(L, -2);
  lua_newtable(L);
  lua_pushnil(L);
  while (lua_next(L, index)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      luaL_error(L, "a JSON object has string keys, this table has a key that is a %s",
                 luaL_typename(L, -1));
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, ++count);
  }
  lua_pushvalue(L, -1);
  lua_insert(L, -3);
  lua_call(L, 1, 0);
  return count;
}

static void add_object(writer *w, int index, int depth) {
  lua_State *L = w->L;
  const lua_Integer count = push_keys(L, index);
  const int keys = lua_gettop(L);
  add_text(w, "{");
  for (lua_Integer i = 1; i <= count; i++) {
    size_t length;
    if (i > 1) add_text(w, ",");
    lua_rawgeti(L, keys, i);
    const char *key = lua_tolstring(L, -1, &length);
    add_string(w, key, length);
    add_text(w, ":");
    lua_rawget(L, index);
    add_value(w, lua_gettop(L), depth + 1);
    lua_pop(L, 1);
  }
  add_text(w, "}");
  lua_pop(L, 1);
}

static void add_table(writer *w, int index, int depth) {
  if (depth > DEPTH_MAX) luaL_error(w->L, "JSON deeper than %d tables", DEPTH_MAX);
  int array = lua_rawlen(w->L, index) > 0;
  if (lua_getmetatable(w->L, index)) {
    luaL_getmetatable(w->L, array_class);
    array = array || lua_rawequal(w->L, -1, -2);
    lua_pop(w->L, 2);
  }
  (array ? add_array : add_object)(w, index, depth);
}

static void add_value(writer *w, int index, int depth) {
  luaL_checkstack(w->L, 12, "JSON");
  switch (lua_type(w->L, index)) {
    case LUA_TTABLE: add_table(w, index, depth); break;
    case LUA_TSTRING: {
      size_t length;
      const char *text = lua_tolstring(w->L, index, &length);
      add_string(w, text, length);
      break;
    }
    case LUA_TNUMBER: add_number(w, index); break;
    case LUA_TBOOLEAN: add_text(w, lua_toboolean(w->L, index) ? "true" : "false"); break;
    case LUA_TLIGHTUSERDATA:
      if (lua_touserdata(w->L, index) == (const void *)&null_key) {
        add_text(w, "null");
        break;
      } /* fall through */
    default: luaL_error(w->L, "a %s has no JSON form", luaL_typename(w->L, index));
  }
}

/* json.encode(value) -> one line of text; raises for what JSON cannot hold. */
static int json_encode(lua_State *L) {
  luaL_checkany(L, 1);
  lua_settop(L, 1);
  lua_newtable(L);
  writer w = {.L = L, .pieces = 2};
  add_value(&w, 1, 0);
  luaL_Buffer b;
  luaL_buffinit(L, &b);
  for (lua_Integer i = 1; i <= w.count; i++) {
    lua_rawgeti(L, w.pieces, i);
    luaL_addvalue(&b);
  }
  luaL_pushresult(&b);
  return 1;
}

/* json.array(table) -> the same table, written as an array also when empty. */
static int json_array_of(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_settop(L, 1);
  mark_array(L);
  return 1;
}

void bind_json_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"encode", json_encode  },
      {"decode", json_decode  },
      {"array",  json_array_of},
      {NULL,     NULL         },
  };
  luaL_newmetatable(L, array_class);
  lua_pop(L, 1);
  luaL_newlib(L, functions);
  push_null(L);
  lua_setfield(L, -2, "null");
  lua_setfield(L, -2, "json");
}
