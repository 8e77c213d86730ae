/* bind.c - opens the module, makes classes, raises errors.
**
**   core.memory([reset]) -> { arena = { current =, peak = }, .. } in bytes; with reset, peaks start
**                           again at the current values afterwards
**   core.lost(message) -> true when it is of the last failure, and that was the loss of a rank:
**                         gone, stuck, or in another order of calls
**   core.catch_interrupts(): from here on Ctrl-C, SIGTERM and SIGHUP set a flag, the second ends
**   core.interrupted() -> false, or "SIGINT", "SIGTERM", "SIGHUP" after such a signal
*/
#include "bind.h"

#include <string.h>

#include "../interrupt.h"
#include "../memory.h"

void bind_check(lua_State *L, tl_status status) {
  if (status != TL_OK) luaL_error(L, "%s", tl_last_error());
}

void bind_class(lua_State *L, const char *name, const luaL_Reg *methods, lua_CFunction close) {
  if (luaL_newmetatable(L, name)) {
    luaL_setfuncs(L, methods, 0);
    if (lua_getfield(L, -1, "__index") == LUA_TNIL) {
      lua_pushvalue(L, -2);
      lua_setfield(L, -3, "__index");
    }
    lua_pop(L, 1);
    static const char *const ends[] = {"__gc", "__close", "close"};
    for (int i = 0; i < 3; i++) {
      lua_pushcfunction(L, close);
      lua_setfield(L, -2, ends[i]);
    }
    lua_pushstring(L, name);
    lua_setfield(L, -2, "__metatable");
  }
  lua_pop(L, 1);
}

static int core_memory(lua_State *L) {
  const int reset = lua_toboolean(L, 1);
  lua_createtable(L, 0, TL_MEMORY_COUNT);
  for (int kind = 0; kind < TL_MEMORY_COUNT; kind++) {
    lua_createtable(L, 0, 2);
    lua_pushinteger(L, tl_memory_current((tl_memory)kind));
    lua_setfield(L, -2, "current");
    lua_pushinteger(L, tl_memory_peak((tl_memory)kind));
    lua_setfield(L, -2, "peak");
    lua_setfield(L, -2, tl_memory_name((tl_memory)kind));
  }
  if (reset) tl_memory_reset_peaks();
  return 1;
}

static int core_lost(lua_State *L) {
  const char *text = luaL_checkstring(L, 1);
  lua_pushboolean(L, tl_last_status() == TL_LOST && strstr(text, tl_last_error()) != NULL);
  return 1;
}

static int core_catch_interrupts(lua_State *L) {
  (void)L;
  tl_interrupt_catch();
  return 0;
}

static int core_interrupted(lua_State *L) {
  const char *name = tl_interrupted();
  if (name != NULL)
    lua_pushstring(L, name);
  else
    lua_pushboolean(L, 0);
  return 1;
}

int luaopen_tidelock_core(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"memory",           core_memory          },
      {"lost",             core_lost            },
      {"catch_interrupts", core_catch_interrupts},
      {"interrupted",      core_interrupted     },
      {NULL,               NULL                 },
  };
  luaL_newlib(L, functions);
#define BIND(name) bind_##name##_open(L);
#include "bind.def"
#undef BIND
  return 1;
}
