/* bind_lines.c - core.lines: which line runs, told to a function of Lua.
**
**   core.lines(note [, skip]) -> whether a function was told so far
**       from now on note(source, line) before each line of Lua; not in chunks whose source begins
**       with `skip`, and not in `note` itself
**   core.lines(nil)              no more
**
** A line hook of the debug library makes a table for each line to say which file it is in. A model
** of 1,000 layers runs a million lines of the library and some thousand of its recipe; here the
** library's cost a comparison.
*/
#include <string.h>

#include "bind.h"

/* Addresses of these are keys of the registry. */
static const char note_key = 0, skip_key = 0;

static void on_line(lua_State *L, lua_Debug *ar) {
  if (lua_rawgetp(L, LUA_REGISTRYINDEX, &note_key) != LUA_TFUNCTION) {
    lua_pop(L, 1); /* a coroutine keeps the hook that it was made under */
    return;
  }
  lua_rawgetp(L, LUA_REGISTRYINDEX, &skip_key);
  size_t length = 0;
  const char *skip = lua_tolstring(L, -1, &length);
  lua_getinfo(L, "S", ar);
  if (skip != NULL && strncmp(ar->source, skip, length) == 0) {
    lua_pop(L, 2);
    return;
  }
  lua_pop(L, 1);
  lua_pushlstring(L, ar->source, ar->srclen);
  lua_pushinteger(L, ar->currentline);
  lua_call(L, 2, 0);
}

static int core_lines(lua_State *L) {
  const int on = !lua_isnoneornil(L, 1), was_on = lua_gethook(L) == on_line;
  if (on) luaL_checktype(L, 1, LUA_TFUNCTION);
  luaL_optstring(L, 2, NULL);
  lua_settop(L, 2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &skip_key);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &note_key);
  lua_sethook(L, on ? on_line : NULL, on ? LUA_MASKLINE : 0, 0);
  lua_pushboolean(L, was_on);
  return 1;
}

void bind_lines_open(lua_State *L) {
  lua_pushcfunction(L, core_lines);
  lua_setfield(L, -2, "lines");
}
