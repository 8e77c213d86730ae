/* bind_tokenizer.c - core.tokenizer: text to ids and back.
**
**   core.tokenizer(path) -> tokenizer | nil, message        "bytes", tokenizer.json or a folder
**   t:encode(text [, template [, plain]]) -> { ids }  raises
**   t:decode(ids [, keep_special])        -> text of all ids; special tokens are left out
**   t:token(id) -> bytes, special         t:added("<s>") -> id or nil        t:vocab() -> count
*/
#include <stdio.h>

#include "../tokenizer.h"
#include "bind.h"

static const char *const class_name = "tidelock.Tokenizer";
static const char *const ids_class = "tidelock.Ids";

typedef struct handle {
  tl_tokenizer *tokenizer; /* NULL before opening and after close() */
} handle;

static tl_tokenizer *check_tokenizer(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, class_name);
  luaL_argcheck(L, h->tokenizer != NULL, 1, "tokenizer is closed");
  return h->tokenizer;
}

static int tokenizer_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->tokenizer = NULL;
  luaL_setmetatable(L, class_name);
  if (tl_tokenizer_open(path, &h->tokenizer) == TL_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, tl_last_error());
  return 2;
}

static int tokenizer_close(lua_State *L) { /* __gc, __close and close() */
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_tokenizer_close(h->tokenizer);
  h->tokenizer = NULL;
  return 0;
}

static int ids_close(lua_State *L) {
  tl_ids_release(luaL_checkudata(L, 1, ids_class));
  return 0;
}

static int tokenizer_encode(lua_State *L) {
  const tl_tokenizer *tokenizer = check_tokenizer(L);
  size_t bytes;
  const char *text = luaL_checklstring(L, 2, &bytes);
  const int flags = (lua_toboolean(L, 3) ? TL_TOKENIZER_TEMPLATE : 0) |
                    (lua_toboolean(L, 4) ? TL_TOKENIZER_PLAIN : 0);
  tl_ids *ids = lua_newuserdatauv(L, sizeof *ids, 0);
  *ids = (tl_ids){0};
  luaL_setmetatable(L, ids_class);
  bind_check(L, tl_tokenizer_encode(tokenizer, text, (int64_t)bytes, flags, ids));
  lua_createtable(L, (int)ids->count, 0);
  for (int64_t i = 0; i < ids->count; i++) {
    lua_pushinteger(L, ids->id[i]);
    lua_rawseti(L, -2, i + 1);
  }
  tl_ids_release(ids);
  return 1;
}

/* The failure of id `position` of a list, from 0, with its place. */
static tl_status at_position(tl_status status, lua_Integer position) {
  char message[512];
  snprintf(message, sizeof message, "%s", tl_last_error());
  return tl_fail(status, "token %lld: %s", (long long)position, message);
}

static int tokenizer_decode(lua_State *L) {
  const tl_tokenizer *tokenizer = check_tokenizer(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  const int keep_special = lua_toboolean(L, 3);
  const lua_Integer count = (lua_Integer)lua_rawlen(L, 2);
  luaL_Buffer buffer;
  luaL_buffinit(L, &buffer);
  int begun = 0;
  for (lua_Integer i = 1; i <= count; i++) {
    const char *text;
    int64_t bytes;
    int special;
    lua_rawgeti(L, 2, i);
    const lua_Integer id = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
    const tl_status status = tl_tokenizer_token(tokenizer, id, &text, &bytes, &special);
    if (status != TL_OK) bind_check(L, at_position(status, i - 1));
    if (special && !keep_special) continue;
    const int64_t skipped = begun || special ? 0 : tl_tokenizer_strip(tokenizer, text, bytes);
    begun |= !special;
    luaL_addlstring(&buffer, text + skipped, (size_t)(bytes - skipped));
  }
  luaL_pushresult(&buffer);
  return 1;
}

static int tokenizer_token(lua_State *L) {
  const char *text;
  int64_t bytes;
  int special;
  bind_check(
      L, tl_tokenizer_token(check_tokenizer(L), luaL_checkinteger(L, 2), &text, &bytes, &special));
  lua_pushlstring(L, text, (size_t)bytes);
  lua_pushboolean(L, special);
  return 2;
}

static int tokenizer_added(lua_State *L) {
  const int32_t id = tl_tokenizer_added(check_tokenizer(L), luaL_checkstring(L, 2));
  if (id >= 0)
    lua_pushinteger(L, id);
  else
    lua_pushnil(L);
  return 1;
}

static int tokenizer_vocab(lua_State *L) {
  lua_pushinteger(L, tl_tokenizer_vocab(check_tokenizer(L)));
  return 1;
}

void bind_tokenizer_open(lua_State *L) {
  static const luaL_Reg none[] = {
      {NULL, NULL}
  };
  static const luaL_Reg methods[] = {
      {"encode", tokenizer_encode},
      {"decode", tokenizer_decode},
      {"token",  tokenizer_token },
      {"added",  tokenizer_added },
      {"vocab",  tokenizer_vocab },
      {NULL,     NULL            },
  };
  bind_class(L, class_name, methods, tokenizer_close);
  bind_class(L, ids_class, none, ids_close);
  lua_pushcfunction(L, tokenizer_open);
  lua_setfield(L, -2, "tokenizer");
}
