/* bind_lane.c - lanes in Lua: calls that run in order on a thread of their own, while Lua goes on.
**
**   local lane <close> = core.lane(threads)        workers of its calls, 1 unless given
**   local event = lane:call("scale", { x }, { y }, { factor = 2 } [, options])    as core.call
**   lane:after(other, event)      what follows begins after that event of another lane
**   lane:wait([event])            until it has passed, or everything has; raises what failed
**   lane:done() -> calls that have ended      lane:close()
**
** An event is a number: the calls of a lane, counted from 1. Calls behind a failed one are skipped
** until a wait has raised its message. A tensor that a call writes is read after a wait for it;
** closing it earlier is fine, the lane keeps what it needs.
*/
#include "../lane_call.h"
#include "bind_call.h"

static const char *const class_name = "tidelock.Lane";

typedef struct handle {
  tl_lane *lane; /* NULL before creation and after close() */
} handle;

static tl_lane *check_lane(lua_State *L, int arg) {
  const handle *h = luaL_checkudata(L, arg, class_name);
  luaL_argcheck(L, h->lane != NULL, arg, "lane is closed");
  return h->lane;
}

static int core_lane(lua_State *L) {
  const lua_Integer threads = luaL_optinteger(L, 1, 1);
  luaL_argcheck(L, threads >= 1 && threads <= 1024, 1, "threads must be 1 to 1024");
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->lane = NULL;
  luaL_setmetatable(L, class_name);
  bind_check(L, tl_lane_open((int32_t)threads, &h->lane));
  return 1;
}

/* Adds the tensors of the list at `arg` to `tensors`; read_operands has looked at them. */
static int32_t add_tensors(lua_State *L, int arg, tl_tensor **tensors, int32_t count) {
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, arg); i++) {
    lua_rawgeti(L, arg, i);
    if (lua_toboolean(L, -1)) tensors[count++] = bind_check_tensor(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  return count;
}

static int lane_call(lua_State *L) {
  tl_lane *lane = check_lane(L, 1);
  tl_call call;
  tl_step step;
  int64_t event = 0;
  const tl_op op = bind_read_call(L, 2, &call, &step);
  const char *const refused[] = {"threads", "scratch"};
  for (int i = 0; i < 2; i++)
    if (lua_getfield(L, 6, refused[i]) != LUA_TNIL)
      luaL_error(L, "%s is an option of core.call; a lane has the threads of tl.lane(n)",
                 refused[i]);
  if (bind_on_gpu(L, 6)) luaL_error(L, "a lane calls host kernels; tl.call runs one on a GPU");
  bind_need_host(L, op);
  tl_tensor **tensors =
      lua_newuserdatauv(L, sizeof *tensors * (size_t)(call.in_count + call.out_count + 1), 0);
  const int32_t count = add_tensors(L, 4, tensors, add_tensors(L, 3, tensors, 0));
  bind_check(L, tl_lane_call(lane, op, &call, tensors, count, &event));
  lua_pushinteger(L, event);
  return 1;
}

static int lane_after(lua_State *L) {
  tl_lane *lane = check_lane(L, 1), *other = check_lane(L, 2);
  bind_check(L, tl_lane_after(lane, other, luaL_checkinteger(L, 3)));
  return 0;
}

static int lane_wait(lua_State *L) {
  tl_lane *lane = check_lane(L, 1);
  const int64_t all = tl_lane_submitted(lane);
  bind_check(L, tl_lane_wait(lane, luaL_optinteger(L, 2, all)));
  return 0;
}

static int lane_done(lua_State *L) {
  lua_pushinteger(L, tl_lane_ended(check_lane(L, 1)));
  return 1;
}

static int lane_close(lua_State *L) {
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_lane_close(h->lane);
  h->lane = NULL;
  return 0;
}

void bind_lane_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"call",  lane_call },
      {"after", lane_after},
      {"wait",  lane_wait },
      {"done",  lane_done },
      {NULL,    NULL      },
  };
  bind_class(L, class_name, methods, lane_close);
  lua_pushcfunction(L, core_lane);
  lua_setfield(L, -2, "lane");
}
