/* bind_saver.c - core.saver: a folder of safetensors files, written in the background.
**
**   core.saver(folder, { { name =, tensors = { as core.weights.write takes them }, metadata = }, .. },
**              text_name, text) -> saver
**   saver:busy() -> true until it ends        saver:wait()  raises what failed
**
** Tensors stay as they are until then: the handle keeps them from the collector; do not change them.
*/
#include "../saver.h"
#include "bind_weights.h"

static const char *const class_name = "tidelock.Saver";

typedef struct handle {
  tl_saver *saver; /* NULL before opening and after close() */
} handle;

static tl_saver *check_saver(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, class_name);
  luaL_argcheck(L, h->saver != NULL, 1, "saver is closed");
  return h->saver;
}

static int saver_close(lua_State *L) { /* __gc, __close and close() */
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_saver_close(h->saver);
  h->saver = NULL;
  lua_pushnil(L);
  lua_setiuservalue(L, 1, 1);
  return 0;
}

static int saver_busy(lua_State *L) {
  lua_pushboolean(L, tl_saver_busy(check_saver(L)));
  return 1;
}

static int saver_wait(lua_State *L) {
  bind_check(L, tl_saver_wait(check_saver(L)));
  return 0;
}

/* Appends the value on top of the stack to the table at `anchor` and pops it. */
static void keep(lua_State *L, int anchor) {
  lua_rawseti(L, anchor, (lua_Integer)lua_rawlen(L, anchor) + 1);
}

/* Reads entry `i` of the list at `arg`. All that it points to is kept in the table at `anchor`. */
static void read_file(lua_State *L, int arg, int64_t i, int anchor, tl_saver_file *out) {
  lua_rawgeti(L, arg, i + 1);
  const int entry = lua_gettop(L);
  luaL_argcheck(L, lua_istable(L, entry), arg, "files are tables with name and tensors");
  lua_getfield(L, entry, "name");
  luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, arg, "a file has no name");
  out->name = lua_tostring(L, -1);
  lua_getfield(L, entry, "metadata");
  out->metadata = bind_read_metadata(L, lua_gettop(L), &out->metadata_count);
  lua_getfield(L, entry, "tensors");
  out->sources = bind_read_sources(L, lua_gettop(L), &out->count);
  while (lua_gettop(L) >= entry) keep(L, anchor);
}

static int saver_open(lua_State *L) {
  tl_saver_job job = {.folder = luaL_checkstring(L, 1), .text_name = luaL_checkstring(L, 3)};
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t text_bytes;
  job.text = luaL_checklstring(L, 4, &text_bytes);
  job.text_bytes = (int64_t)text_bytes;
  lua_settop(L, 4);
  handle *h = lua_newuserdatauv(L, sizeof *h, 1);
  h->saver = NULL;
  luaL_setmetatable(L, class_name);
  lua_newtable(L);
  const int anchor = lua_gettop(L);
  for (int arg = 1; arg <= 4; arg++) {
    lua_pushvalue(L, arg);
    keep(L, anchor);
  }
  job.file_count = (int64_t)lua_rawlen(L, 2);
  tl_saver_file *files = lua_newuserdatauv(L, ((size_t)job.file_count + 1) * sizeof *files, 0);
  keep(L, anchor);
  for (int64_t i = 0; i < job.file_count; i++) {
    files[i] = (tl_saver_file){0};
    read_file(L, 2, i, anchor, &files[i]);
  }
  job.files = files;
  lua_setiuservalue(L, 5, 1);
  bind_check(L, tl_saver_open(&job, &h->saver));
  return 1;
}

void bind_saver_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"busy", saver_busy},
      {"wait", saver_wait},
      {NULL,   NULL      },
  };
  bind_class(L, class_name, methods, saver_close);
  lua_pushcfunction(L, saver_open);
  lua_setfield(L, -2, "saver");
}
