/* bind_cuda.c - GPUs in Lua: cuda_count(), and cuda_device(i), facts of one.
**
**   core.cuda_count() -> GPUs that can be used, and why there are none
**   core.cuda_device(0) -> { name, pci, major, minor, multiprocessors, shared_max, memory }
**   core.cuda_vitals(0) -> { clock_mhz, memory_mhz, celsius, watts }, each where the GPU reports
**                          it; nil and why there are none
**   core.nccl_version() -> "2.28.3"; raises where there is no NCCL
*/
#include "bind_cuda.h"

#include "../nccl.h"
#include "../nvml.h"

static const char *const class_name = "tidelock.Cuda";

static int device_close(lua_State *L) {
  tl_cuda **h = luaL_checkudata(L, 1, class_name);
  tl_cuda_close(*h);
  *h = NULL;
  return 0;
}

tl_cuda *bind_cuda(lua_State *L, lua_Integer ordinal) {
  static const luaL_Reg none[] = {
      {NULL, NULL}
  };
  bind_class(L, class_name, none, device_close);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, "tidelock.gpus");
  if (lua_rawgeti(L, -1, ordinal) == LUA_TNIL) {
    tl_cuda **h = lua_newuserdatauv(L, sizeof(tl_cuda *), 0);
    *h = NULL;
    luaL_setmetatable(L, class_name);
    bind_check(L, tl_cuda_open((int32_t)ordinal, h));
    lua_rawseti(L, -3, ordinal);
    lua_pop(L, 1);
    lua_rawgeti(L, -1, ordinal);
  }
  tl_cuda *cuda = *(tl_cuda **)luaL_checkudata(L, -1, class_name);
  lua_pop(L, 2);
  return cuda;
}

static int cuda_count(lua_State *L) {
  int32_t count = 0;
  const tl_status status = tl_cuda_count(&count);
  lua_pushinteger(L, status == TL_OK ? count : 0);
  if (status == TL_OK) return 1;
  lua_pushstring(L, tl_last_error());
  return 2;
}

static void set_integer(lua_State *L, const char *name, int64_t value) {
  lua_pushinteger(L, value);
  lua_setfield(L, -2, name);
}

static int cuda_device(lua_State *L) {
  tl_cuda_facts facts;
  bind_check(L, tl_cuda_facts_of((int32_t)luaL_checkinteger(L, 1), &facts));
  lua_newtable(L);
  lua_pushstring(L, facts.name);
  lua_setfield(L, -2, "name");
  lua_pushstring(L, facts.pci);
  lua_setfield(L, -2, "pci");
  set_integer(L, "major", facts.major);
  set_integer(L, "minor", facts.minor);
  set_integer(L, "multiprocessors", facts.multiprocessors);
  set_integer(L, "shared_max", facts.shared_max);
  set_integer(L, "memory", facts.memory);
  return 1;
}

static void set_reported(lua_State *L, const char *name, int32_t value, double unit) {
  if (value < 0) return;
  lua_pushnumber(L, value * unit);
  lua_setfield(L, -2, name);
}

static int cuda_vitals(lua_State *L) {
  tl_cuda_facts facts;
  tl_nvml_vitals vitals;
  tl_status status = tl_cuda_facts_of((int32_t)luaL_checkinteger(L, 1), &facts);
  if (status == TL_OK) status = tl_nvml_read(facts.pci, &vitals);
  if (status != TL_OK) {
    lua_pushnil(L);
    lua_pushstring(L, tl_last_error());
    return 2;
  }
  lua_newtable(L);
  set_reported(L, "clock_mhz", vitals.clock_mhz, 1);
  set_reported(L, "memory_mhz", vitals.memory_mhz, 1);
  set_reported(L, "celsius", vitals.celsius, 1);
  set_reported(L, "watts", vitals.milliwatts, 1e-3);
  return 1;
}

/* "2.28.3" */
static int nccl_version(lua_State *L) {
  int32_t version = 0;
  bind_check(L, tl_nccl_version(&version));
  lua_pushfstring(L, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  return 1;
}

void bind_cuda_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"cuda_count",   cuda_count  },
      {"cuda_device",  cuda_device },
      {"cuda_vitals",  cuda_vitals },
      {"nccl_version", nccl_version},
      {NULL,           NULL        },
  };
  luaL_setfuncs(L, functions, 0);
}
