/* bind_comm.c - collectives over thread ranks, by hand.
**
**   local group <close> = core.group(4)
**   group:all_reduce({ x0, x1, x2, x3 }, { y0, y1, y2, y3 } [, { outer = 1, root = 0 }])
**   group:all_gather(..)  reduce_scatter  all_reduce_max  all_reduce_count  broadcast  barrier()
**   group:size() -> ranks      group:close()
**
**   core.comm("all_reduce", { x0, .. }, { y0, .. } [, options])     a group for one collective
**
** Entry i + 1 of both lists is rank i's; as many entries as ranks. A y may be the same tensor as
** its x where comm.h allows it. The call returns when all ranks have ended. The collectives are the
** rows of comm.def: a new row is a new method.
*/
#include "../comm_group.h"
#include "bind_program.h"

static const char *const class_name = "tidelock.Group";

typedef struct handle {
  tl_comm_group *group; /* NULL before creation and after close() */
} handle;

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

/* Lists and options from index 2 on; the arrays stay on the stack. */
static void read_job(lua_State *L, tl_comm_job *job) {
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 4);
  if (lua_isnil(L, 4)) {
    lua_newtable(L);
    lua_replace(L, 4);
  }
  luaL_checktype(L, 4, LUA_TTABLE);
  const lua_Integer count = (lua_Integer)lua_rawlen(L, 2);
  luaL_argcheck(L, count >= 1 && count <= TL_COMM_GROUP_MAX, 2, "1 to 4096 ranks");
  job->ranks = (int32_t)count;
  job->outer = bind_integer(L, 4, "comm", "outer", 1);
  job->root = (int32_t)bind_integer(L, 4, "comm", "root", 0);
  job->x = read_views(L, 2, count);
  job->y = read_views(L, 3, count);
}

static int core_comm(lua_State *L) {
  tl_comm_job job = {.kind = TL_COMM_barrier};
  bind_check(L, tl_collective_find(luaL_checkstring(L, 1), &job.kind));
  read_job(L, &job);
  bind_check(L, tl_comm_once(&job));
  return 0;
}

static tl_comm_group *check_group(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, class_name);
  luaL_argcheck(L, h->group != NULL, 1, "group is closed");
  return h->group;
}

static int core_group(lua_State *L) {
  const lua_Integer ranks = luaL_checkinteger(L, 1);
  luaL_argcheck(L, ranks >= 1 && ranks <= TL_COMM_GROUP_MAX, 1, "1 to 4096 ranks");
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->group = NULL;
  luaL_setmetatable(L, class_name);
  bind_check(L, tl_comm_group_open((int32_t)ranks, &h->group));
  return 1;
}

/* All collectives: which one is the function's upvalue. */
static int group_run(lua_State *L) {
  tl_comm_group *group = check_group(L);
  tl_comm_job job = {.kind = (tl_collective)lua_tointeger(L, lua_upvalueindex(1)),
                     .ranks = tl_comm_group_ranks(group)};
  if (job.kind != TL_COMM_barrier) read_job(L, &job);
  if (job.ranks != tl_comm_group_ranks(group))
    luaL_error(L, "%d tensors for a group of %d ranks", job.ranks, tl_comm_group_ranks(group));
  bind_check(L, tl_comm_group_run(group, &job));
  return 0;
}

static int group_size(lua_State *L) {
  lua_pushinteger(L, tl_comm_group_ranks(check_group(L)));
  return 1;
}

static int group_close(lua_State *L) {
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_comm_group_close(h->group);
  h->group = NULL;
  return 0;
}

void bind_comm_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"size", group_size},
      {NULL,   NULL      },
  };
  bind_class(L, class_name, methods, group_close);
  luaL_getmetatable(L, class_name);
  for (int kind = 0; kind < TL_COLLECTIVES; kind++) {
    lua_pushinteger(L, kind);
    lua_pushcclosure(L, group_run, 1);
    lua_setfield(L, -2, tl_collective_name((tl_collective)kind));
  }
  lua_pop(L, 1);
  lua_pushcfunction(L, core_comm);
  lua_setfield(L, -2, "comm");
  lua_pushcfunction(L, core_group);
  lua_setfield(L, -2, "group");
}
