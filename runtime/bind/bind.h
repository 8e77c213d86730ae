/* bind.h - what all bindings share: `tidelock.core`, the C half of the Lua module.
**
** Each bind_<name>.c has one function, bind_<name>_open, which adds fields to the table on top of
** the stack; bind.def lists them. A binding reads all its arguments, pushes an empty handle where
** it makes something, then acts; bind_check is the only place that turns a status into a Lua error.
** Dims and rows become 0-based here and nowhere else.
*/
#ifndef TL_BIND_H
#define TL_BIND_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

#include "../status.h"
#include "../team.h"
#include "../tensor.h"

/* May be called any number of times in one state; every call gives a table of its own. */
int luaopen_tidelock_core(lua_State *L);

#define BIND(name) void bind_##name##_open(lua_State *L);
#include "bind.def"
#undef BIND

/* Raises the thread's last message, with the place in Lua, unless status is TL_OK. */
void bind_check(lua_State *L, tl_status status);

/* Makes the metatable `name` once per state: methods, __gc and __close (may be the same function as
** `close`), and an opaque getmetatable. Leaves the stack as it was. */
void bind_class(lua_State *L, const char *name, const luaL_Reg *methods, lua_CFunction close);

/* The tensor at `arg`; an argument error if it is closed or something else. */
tl_tensor *bind_check_tensor(lua_State *L, int arg);
/* Pushes an empty tensor handle; write the new tensor to the result. */
tl_tensor **bind_push_tensor(lua_State *L);
tl_dtype bind_check_dtype(lua_State *L, int arg);

/* A team of `threads` workers that lives as long as the state; 0 for one worker per core. */
tl_team *bind_team(lua_State *L, lua_Integer threads);

#endif
