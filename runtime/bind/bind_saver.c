/* bind_saver.c - core.saver: a folder of safetensors files, written in the background.
**
**   core.saver(folder, { { name =, tensors = { as core.weights.write takes them },
**              metadata = }, .. }, { { name =, text = }, .. }) -> saver
**   saver:busy() -> true until it ends        saver:wait()  raises what failed
**
** Tensors are read until then: the handle keeps them from the collector; do not change them.
*/
#include <string.h>

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

static void read_text(lua_State *L, int arg, int64_t i, int anchor, tl_saver_text *out) {
  lua_rawgeti(L, arg, i + 1);
  const int entry = lua_gettop(L);
  luaL_argcheck(L, lua_istable(L, entry), arg, "texts are tables with name and text");
  const int named = lua_getfield(L, entry, "name") == LUA_TSTRING;
  const int filled = lua_getfield(L, entry, "text") == LUA_TSTRING;
  luaL_argcheck(L, named && filled, arg, "a text has no name or no text");
  size_t bytes;
  out->name = lua_tostring(L, -2);
  out->text = lua_tolstring(L, -1, &bytes);
  out->bytes = (int64_t)bytes;
  while (lua_gettop(L) >= entry) keep(L, anchor);
}

/* Memory that lives as long as the table at `anchor`. */
static void *block(lua_State *L, int anchor, int64_t count, size_t bytes) {
  void *memory = lua_newuserdatauv(L, ((size_t)count + 1) * bytes, 0);
  memset(memory, 0, ((size_t)count + 1) * bytes);
  keep(L, anchor);
  return memory;
}

static int saver_open(lua_State *L) {
  tl_saver_job job = {.folder = luaL_checkstring(L, 1)};
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_settop(L, 3);
  handle *h = lua_newuserdatauv(L, sizeof *h, 1);
  h->saver = NULL;
  luaL_setmetatable(L, class_name);
  lua_newtable(L);
  const int anchor = lua_gettop(L);
  for (int arg = 1; arg <= 3; arg++) {
    lua_pushvalue(L, arg);
    keep(L, anchor);
  }
  job.file_count = (int64_t)lua_rawlen(L, 2);
  job.text_count = (int64_t)lua_rawlen(L, 3);
  tl_saver_file *files = block(L, anchor, job.file_count, sizeof *files);
  tl_saver_text *texts = block(L, anchor, job.text_count, sizeof *texts);
  for (int64_t i = 0; i < job.file_count; i++) read_file(L, 2, i, anchor, &files[i]);
  for (int64_t i = 0; i < job.text_count; i++) read_text(L, 3, i, anchor, &texts[i]);
  job.files = files;
  job.texts = texts;
  lua_setiuservalue(L, 4, 1);
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
