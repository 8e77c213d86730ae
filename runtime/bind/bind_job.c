/* bind_job.c - the processes of a run in Lua.
**
**   core.job { rank = 0, world = 8, mpi = true, timeout_s = 10, start_s = 300 }
**   core.job { rank = 0, world = 2, address = "n01", port = 29500 }      without MPI
**   job:rank()  job:world()  job:about() -> "Open MPI v4.1.4" or nil
**   job:gather(text) -> { text of rank 0, .. }       called by all ranks
**   job:fail(message)   ends the run on every rank   job:headless() -> rank 0 was lost
**   job:close(good)     good: waits for all ranks; else it tells them to end
**   job:leave(status)   tells them to end, and ends this process at once
*/
#define _GNU_SOURCE
#include "bind_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const char *const class_name = "tidelock.Job";

typedef struct handle {
  tl_job *job; /* NULL before creation and after close() */
} handle;

tl_job *bind_check_job(lua_State *L, int arg) {
  const handle *h = luaL_checkudata(L, arg, class_name);
  luaL_argcheck(L, h->job != NULL, arg, "job is closed");
  return h->job;
}

/* build/tidelock -> build/lib/tidelock/mpi.so */
static void find_module(char out[PATH_BYTES]) {
  const ssize_t length = readlink("/proc/self/exe", out, PATH_BYTES - 64);
  out[length < 0 ? 0 : length] = '\0';
  char *slash = strrchr(out, '/');
  snprintf(slash == NULL ? out : slash, 64, "/lib/tidelock/mpi.so");
}

static double number_of(lua_State *L, const char *name, double otherwise) {
  lua_getfield(L, 1, name);
  const double value = luaL_optnumber(L, -1, otherwise);
  lua_pop(L, 1);
  return value;
}

static int core_job(lua_State *L) {
  char module[PATH_BYTES];
  luaL_checktype(L, 1, LUA_TTABLE);
  tl_job_options o = {.rank = (int32_t)number_of(L, "rank", -1),
                      .world = (int32_t)number_of(L, "world", 0),
                      .port = (int32_t)number_of(L, "port", 0),
                      .timeout_s = number_of(L, "timeout_s", 10),
                      .start_s = number_of(L, "start_s", 300)};
  if (o.world < 1 || o.world > 4096 || o.rank < 0 || o.rank >= o.world)
    luaL_error(L, "job: rank %d of %d", o.rank, o.world);
  lua_getfield(L, 1, "mpi");
  if (lua_toboolean(L, -1)) {
    find_module(module);
    o.module = module;
  }
  lua_getfield(L, 1, "address");
  o.address = lua_tostring(L, -1);
  if (o.module == NULL && o.address == NULL) luaL_error(L, "job: neither mpi nor an address");
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->job = NULL;
  luaL_setmetatable(L, class_name);
  bind_check(L, tl_job_open(&o, &h->job));
  return 1;
}

static int job_rank(lua_State *L) {
  lua_pushinteger(L, tl_job_rank(bind_check_job(L, 1)));
  return 1;
}

static int job_world(lua_State *L) {
  lua_pushinteger(L, tl_job_world(bind_check_job(L, 1)));
  return 1;
}

static int job_about(lua_State *L) {
  const tl_mover *mover = tl_job_mover(bind_check_job(L, 1));
  lua_pushstring(L, mover == NULL ? NULL : mover->about());
  return 1;
}

static int job_gather(lua_State *L) {
  tl_job *job = bind_check_job(L, 1);
  const int32_t world = tl_job_world(job);
  char **texts = NULL;
  const tl_status status = tl_job_gather(job, luaL_checkstring(L, 2), &texts);
  lua_createtable(L, world, 0);
  for (int32_t i = 0; texts != NULL && i < world; i++) {
    lua_pushstring(L, texts[i]);
    lua_rawseti(L, -2, i + 1);
    free(texts[i]);
  }
  free(texts);
  bind_check(L, status);
  return 1;
}

static int job_fail(lua_State *L) {
  tl_job_fail(bind_check_job(L, 1), luaL_checkstring(L, 2));
  return 0;
}

static int job_headless(lua_State *L) {
  lua_pushboolean(L, tl_job_headless(bind_check_job(L, 1)));
  return 1;
}

/* What is closed without `good`, or by the collector, has failed. */
static int job_close(lua_State *L) {
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_job_close(h->job, !lua_toboolean(L, 2));
  h->job = NULL;
  return 0;
}

/* Ends this process at once: libraries that would wait for lost peers at exit are not asked. */
static int job_leave(lua_State *L) {
  const int status = (int)luaL_checkinteger(L, 2);
  lua_settop(L, 1);
  job_close(L);
  fflush(NULL);
  _exit(status);
}

void bind_job_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"rank",     job_rank    },
      {"world",    job_world   },
      {"about",    job_about   },
      {"gather",   job_gather  },
      {"fail",     job_fail    },
      {"headless", job_headless},
      {"leave",    job_leave   },
      {NULL,       NULL        },
  };
  bind_class(L, class_name, methods, job_close);
  lua_pushcfunction(L, core_job);
  lua_setfield(L, -2, "job");
}
