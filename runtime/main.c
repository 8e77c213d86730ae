/* main.c - the program: a Lua interpreter with tidelock.core inside.
**
**   tidelock lua FILE [args]   runs a Lua file
**   tidelock repl              reads expressions and statements from stdin
**   tidelock ...               everything else is lua/tidelock/cli.lua's
**
** The tree lua/ is found beside the folder of the program (build/tidelock -> lua/), where it was
** installed (bin/tidelock -> share/tidelock/lua/), or in TIDELOCK_LUA. The exit status is what the
** file returns: an integer, false for 1, anything else for 0; an error that nobody caught is
** printed and ends with 1, with a traceback when TIDELOCK_TRACEBACK is set.
*/
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bind/bind.h"

enum { PATH_BYTES = 4096 };

/* The folder that holds tidelock/cli.lua. */
static void find_lua(char out[PATH_BYTES]) {
  const char *chosen = getenv("TIDELOCK_LUA");
  if (chosen != NULL) {
    snprintf(out, PATH_BYTES, "%s", chosen);
    return;
  }
  char program[PATH_BYTES - 32];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  program[length < 0 ? 0 : length] = '\0';
  for (int up = 0; up < 2; up++) { /* .../build/tidelock -> ... */
    char *slash = strrchr(program, '/');
    if (slash != NULL) *slash = '\0';
  }
  static const char *const below[] = {"lua", "share/tidelock/lua"};
  for (int i = 0; i < 2; i++) {
    char file[PATH_BYTES + 32];
    snprintf(out, PATH_BYTES, "%.4000s/%s", program, below[i]);
    snprintf(file, sizeof file, "%s/tidelock/cli.lua", out);
    if (access(file, R_OK) == 0) return;
  }
}

static void set_path(lua_State *L, const char *root) {
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;%s", root, root, lua_tostring(L, -1));
  lua_setfield(L, -3, "path");
  lua_pop(L, 1);
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_tidelock_core);
  lua_setfield(L, -2, "tidelock.core");
  lua_pop(L, 2);
}

/* Sets the global `arg` as lua5.4 does: the script at 0, its arguments from 1, the rest below. */
static void set_arguments(lua_State *L, int argc, char **argv, int script) {
  lua_createtable(L, argc, script + 1);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  lua_setglobal(L, "arg");
}

static int add_traceback(lua_State *L) {
  const char *message = lua_tostring(L, 1);
  if (message == NULL) message = luaL_tolstring(L, 1, NULL);
  if (getenv("TIDELOCK_TRACEBACK") == NULL) {
    lua_pushstring(L, message);
  } else {
    luaL_traceback(L, L, message, 1);
  }
  return 1;
}

/* Runs the chunk on top of the stack with argv[first ..]; returns the exit status. */
static int run_chunk(lua_State *L, int argc, char **argv, int first) {
  luaL_checkstack(L, argc + 4, "arguments");
  lua_pushcfunction(L, add_traceback);
  lua_insert(L, -2);
  const int handler = lua_gettop(L) - 1;
  for (int i = first; i < argc; i++) lua_pushstring(L, argv[i]);
  if (lua_pcall(L, argc - first, 1, handler) != LUA_OK) {
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    return 1;
  }
  if (lua_isinteger(L, -1)) return (int)lua_tointeger(L, -1);
  return lua_isboolean(L, -1) && !lua_toboolean(L, -1) ? 1 : 0;
}

static int run_file(lua_State *L, const char *file, int argc, char **argv, int first) {
  if (luaL_loadfile(L, file) != LUA_OK) {
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    return 1;
  }
  return run_chunk(L, argc, argv, first);
}

/* Writes the values from `first` on, by the function at `printed` or, where it is nil, as tostring
** does. Returns the status of the call; an error's message is on top. */
static int print_results(lua_State *L, int printed, int first) {
  const int last = lua_gettop(L);
  for (int i = first; i <= last; i++) {
    lua_pushvalue(L, printed);
    lua_pushvalue(L, i);
    if (!lua_isnil(L, printed)) {
      const int status = lua_pcall(L, 1, 1, 0);
      if (status != LUA_OK) return status;
    }
    printf(i == first ? "%s" : "\t%s", luaL_tolstring(L, -1, NULL));
    lua_settop(L, last);
  }
  if (last >= first) putchar('\n');
  return LUA_OK;
}

/* An expression first, then a statement. */
static int load_line(lua_State *L, const char *line) {
  lua_pushfstring(L, "return %s", line);
  const char *expression = lua_tostring(L, -1);
  if (luaL_loadbufferx(L, expression, strlen(expression), "=stdin", "t") == LUA_OK) return LUA_OK;
  lua_pop(L, 1);
  return luaL_loadbufferx(L, line, strlen(line), "=stdin", "t");
}

static int run_repl(lua_State *L) {
  char line[PATH_BYTES];
  const int terminal = isatty(STDIN_FILENO);
  static const char preset[] =
      "local whole = package.searchpath('tidelock', package.path) "
      "tl = require(whole and 'tidelock' or 'tidelock.core') "
      "return whole and require 'tidelock.text.printed'";
  if (luaL_dostring(L, preset) != LUA_OK) {
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    return 1;
  }
  for (;;) {
    if (terminal) fputs("> ", stdout), fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) break;
    lua_settop(L, 1); /* what the preset returned: how values are printed */
    lua_pushcfunction(L, add_traceback);
    int status = load_line(L, line);
    if (lua_gettop(L) == 4) lua_remove(L, 3); /* the text of the expression */
    if (status == LUA_OK) status = lua_pcall(L, 0, LUA_MULTRET, 2);
    if (status == LUA_OK) status = print_results(L, 1, 3);
    if (status != LUA_OK) fprintf(stderr, "%s\n", luaL_tolstring(L, -1, NULL));
  }
  return 0;
}

/* A descriptor that is not open would be given to the next file, and messages would land in it. */
static void open_standard_files(void) {
  for (int file = 0; file <= 2; file++)
    while (fcntl(file, F_GETFD) < 0 && open("/dev/null", O_RDWR) >= 0) continue;
}

/* The exit status, once everything has been written: what nobody got is a failure. */
static int end_output(int status) {
  errno = 0;
  if (fflush(stdout) == 0 && !ferror(stdout)) return status;
  fprintf(stderr, "tidelock: cannot write to standard output%s%s\n", errno != 0 ? ": " : "",
          errno != 0 ? strerror(errno) : "");
  return status == 0 ? 1 : status;
}

int main(int argc, char **argv) {
  open_standard_files();
  char root[PATH_BYTES], cli[PATH_BYTES + 32];
  lua_State *L = luaL_newstate();
  if (L == NULL) {
    fprintf(stderr, "tidelock: no memory for Lua\n");
    return 1;
  }
  luaL_openlibs(L);
  find_lua(root);
  set_path(L, root);
  int status;
  if (argc == 2 && strcmp(argv[1], "repl") == 0) {
    status = run_repl(L);
  } else if (argc > 2 && strcmp(argv[1], "lua") == 0 && argv[2][0] != '-') {
    set_arguments(L, argc, argv, 2);
    status = run_file(L, argv[2], argc, argv, 3);
  } else {
    snprintf(cli, sizeof cli, "%s/tidelock/cli.lua", root);
    set_arguments(L, argc, argv, 0);
    status = run_file(L, cli, argc, argv, 1);
  }
  lua_close(L);
  return end_output(status);
}
