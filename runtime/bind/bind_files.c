/* bind_files.c - core.files: the file system, the clock and the machine.
**
**   exists(path)  is_directory(path)  size(path)  mtime(path)  realpath(path)  sha256(path)
**   free(path) -> bytes that may still be written on its disk
**   list(folder)  glob(pattern) -> sorted names        mkdirs(path)
**   read_all(path) -> text        write_atomic(path, text, ...): all texts, one after the other
**   append(path, text): to the end of a file; returns when the disk has it
**   lock(path) -> what holds a folder or a file until it is closed; nil when another process has it
**   cpu_count()  isatty(descriptor)  getpid()  hostname()
**   columns() -> width of the terminal, nil when there is none
**   seconds() -> of a clock that never goes back        sleep(seconds)
**
** nil, message where failing is a normal answer (an absent file); write_atomic, append, mkdirs,
** glob and lock raise.
*/
#include <stdlib.h>
#include <unistd.h>

#include "../cores.h"
#include "../files.h"
#include "bind.h"

static const char *const names_class = "tidelock.Names";
static const char *const mapping_class = "tidelock.Mapping";
static const char *const lock_class = "tidelock.Lock";

static int absent(lua_State *L) {
  lua_pushnil(L);
  lua_pushstring(L, tl_last_error());
  return 2;
}

/* Lists live in a handle while their strings are pushed: that may raise. */
static int names_close(lua_State *L) {
  tl_names_release(luaL_checkudata(L, 1, names_class));
  return 0;
}

static tl_names *push_names(lua_State *L) {
  tl_names *names = lua_newuserdatauv(L, sizeof *names, 0);
  *names = (tl_names){0};
  luaL_setmetatable(L, names_class);
  return names;
}

static int return_names(lua_State *L, tl_names *names) {
  lua_createtable(L, (int)names->count, 0);
  for (int64_t i = 0; i < names->count; i++) {
    lua_pushstring(L, names->name[i]);
    lua_rawseti(L, -2, i + 1);
  }
  tl_names_release(names);
  return 1;
}

static int mapping_close(lua_State *L) {
  tl_file_unmap(luaL_checkudata(L, 1, mapping_class));
  return 0;
}

static int files_exists(lua_State *L) {
  lua_pushboolean(L, tl_file_exists(luaL_checkstring(L, 1)));
  return 1;
}

static int files_is_directory(lua_State *L) {
  lua_pushboolean(L, tl_file_is_directory(luaL_checkstring(L, 1)));
  return 1;
}

static int files_mkdirs(lua_State *L) {
  bind_check(L, tl_file_mkdirs(luaL_checkstring(L, 1)));
  return 0;
}

static int files_list(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tl_names *names = push_names(L);
  return tl_file_list(path, names) == TL_OK ? return_names(L, names) : absent(L);
}

static int files_glob(lua_State *L) {
  const char *pattern = luaL_checkstring(L, 1);
  tl_names *names = push_names(L);
  bind_check(L, tl_file_glob(pattern, names));
  return return_names(L, names);
}

static int files_read_all(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tl_mapping *mapping = lua_newuserdatauv(L, sizeof *mapping, 0);
  *mapping = (tl_mapping){0};
  luaL_setmetatable(L, mapping_class);
  if (tl_file_map(path, mapping) != TL_OK) return absent(L);
  lua_pushlstring(L, mapping->bytes > 0 ? mapping->data : "", (size_t)mapping->bytes);
  tl_file_unmap(mapping);
  return 1;
}

/* write_atomic(path, text, ...): all texts, one after the other. */
static int files_write_atomic(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  const int last = lua_gettop(L);
  for (int arg = 2; arg <= last; arg++) luaL_checkstring(L, arg);
  tl_writer writer;
  bind_check(L, tl_writer_open(path, &writer));
  tl_status status = TL_OK;
  for (int arg = 2; arg <= last && status == TL_OK; arg++) {
    size_t bytes;
    const char *text = lua_tolstring(L, arg, &bytes); /* a string already: cannot raise */
    status = tl_writer_write(&writer, text, (int64_t)bytes);
  }
  if (status == TL_OK)
    status = tl_writer_commit(&writer);
  else
    tl_writer_abandon(&writer);
  bind_check(L, status);
  return 0;
}

static int files_append(lua_State *L) {
  size_t bytes;
  const char *path = luaL_checkstring(L, 1);
  const char *text = luaL_checklstring(L, 2, &bytes);
  bind_check(L, tl_file_append(path, text, (int64_t)bytes));
  return 0;
}

static int lock_close(lua_State *L) {
  tl_file_unlock(luaL_checkudata(L, 1, lock_class));
  return 0;
}

static int files_lock(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int32_t *lock = lua_newuserdatauv(L, sizeof *lock, 0);
  *lock = -1;
  luaL_setmetatable(L, lock_class);
  bind_check(L, tl_file_lock(path, lock));
  if (*lock < 0) lua_pushnil(L);
  return 1;
}

static int files_size(lua_State *L) {
  int64_t bytes;
  if (tl_file_size(luaL_checkstring(L, 1), &bytes) != TL_OK) return absent(L);
  lua_pushinteger(L, bytes);
  return 1;
}

static int files_free(lua_State *L) {
  int64_t bytes;
  if (tl_file_free(luaL_checkstring(L, 1), &bytes) != TL_OK) return absent(L);
  lua_pushinteger(L, bytes);
  return 1;
}

static int files_mtime(lua_State *L) {
  double seconds;
  if (tl_file_mtime(luaL_checkstring(L, 1), &seconds) != TL_OK) return absent(L);
  lua_pushnumber(L, seconds);
  return 1;
}

static int files_realpath(lua_State *L) {
  char *path;
  if (tl_file_realpath(luaL_checkstring(L, 1), &path) != TL_OK) return absent(L);
  lua_pushstring(L, path);
  free(path);
  return 1;
}

static int files_sha256(lua_State *L) {
  char text[TL_SHA256_TEXT];
  if (tl_file_sha256(luaL_checkstring(L, 1), text) != TL_OK) return absent(L);
  lua_pushstring(L, text);
  return 1;
}

static int files_cpu_count(lua_State *L) {
  lua_pushinteger(L, tl_cores_allowed());
  return 1;
}

static int files_isatty(lua_State *L) {
  lua_pushboolean(L, isatty((int)luaL_checkinteger(L, 1)));
  return 1;
}

/* columns() -> width of the terminal, nil when there is none */
static int files_columns(lua_State *L) {
  const int32_t columns = tl_machine_columns();
  if (columns > 0)
    lua_pushinteger(L, columns);
  else
    lua_pushnil(L);
  return 1;
}

static int files_seconds(lua_State *L) {
  lua_pushnumber(L, tl_machine_seconds());
  return 1;
}

static int files_sleep(lua_State *L) {
  tl_machine_sleep(luaL_checknumber(L, 1));
  return 0;
}

static int files_getpid(lua_State *L) {
  lua_pushinteger(L, getpid());
  return 1;
}

static int files_hostname(lua_State *L) {
  char name[256];
  if (gethostname(name, sizeof name) != 0) return luaL_error(L, "this machine has no name");
  name[sizeof name - 1] = '\0';
  lua_pushstring(L, name);
  return 1;
}

void bind_files_open(lua_State *L) {
  static const luaL_Reg none[] = {
      {NULL, NULL}
  };
  static const luaL_Reg functions[] = {
      {"exists",       files_exists      },
      {"is_directory", files_is_directory},
      {"mkdirs",       files_mkdirs      },
      {"list",         files_list        },
      {"glob",         files_glob        },
      {"read_all",     files_read_all    },
      {"write_atomic", files_write_atomic},
      {"append",       files_append      },
      {"lock",         files_lock        },
      {"size",         files_size        },
      {"free",         files_free        },
      {"mtime",        files_mtime       },
      {"realpath",     files_realpath    },
      {"sha256",       files_sha256      },
      {"cpu_count",    files_cpu_count   },
      {"isatty",       files_isatty      },
      {"columns",      files_columns     },
      {"seconds",      files_seconds     },
      {"sleep",        files_sleep       },
      {"getpid",       files_getpid      },
      {"hostname",     files_hostname    },
      {NULL,           NULL              },
  };
  bind_class(L, names_class, none, names_close);
  bind_class(L, mapping_class, none, mapping_close);
  bind_class(L, lock_class, none, lock_close);
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "files");
}
