/* bind_comm.c - one collective over thread ranks, by hand.
**
**   core.comm("all_reduce", { x0, x1, x2, x3 }, { y0, y1, y2, y3 } [, { outer = 1, root = 0 }])
**
** Entry i + 1 of both lists is rank i's; as many ranks as entries. A y may be the same tensor as
** its x where comm.h allows it. "barrier" takes lists too, and looks at their length only.
*/
#include "../comm_once.h"
#include "bind_program.h"

/* The views of the tensors at `arg`; the array stays on the stack. */
static tl_view *read_views(lua_State *L, int arg, lua_Integer count) {
  tl_view *views = lua_newuserdatauv(L, sizeof *views * ((size_t)count + 1), 0);
  luaL_argcheck(L, (lua_Integer)lua_rawlen(L, arg) == count, arg, "the lists differ in length");
  for (lua_Integer i = 0; i < count; i++) {
    lua_rawgeti(L, arg, i + 1);
    views[i] = *tl_tensor_view(bind_check_tensor(L, lua_gettop(L)));
    lua_pop(L, 1);
  }
  return views;
}

static int core_comm(lua_State *L) {
  tl_comm_job job = {.kind = TL_COMM_barrier};
  bind_check(L, tl_collective_find(luaL_checkstring(L, 1), &job.kind));
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 4);
  if (lua_isnil(L, 4)) {
    lua_newtable(L);
    lua_replace(L, 4);
  }
  luaL_checktype(L, 4, LUA_TTABLE);
  const lua_Integer count = (lua_Integer)lua_rawlen(L, 2);
  luaL_argcheck(L, count >= 1 && count <= 4096, 2, "1 to 4096 ranks");
  job.ranks = (int32_t)count;
  job.outer = bind_integer(L, 4, "comm", "outer", 1);
  job.root = (int32_t)bind_integer(L, 4, "comm", "root", 0);
  job.x = read_views(L, 2, count);
  job.y = read_views(L, 3, count);
  bind_check(L, tl_comm_once(&job));
  return 0;
}

void bind_comm_open(lua_State *L) {
  lua_pushcfunction(L, core_comm);
  lua_setfield(L, -2, "comm");
}
