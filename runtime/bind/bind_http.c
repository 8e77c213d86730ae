/* bind_http.c - core.http: an HTTP server whose thread reads and writes while Lua is busy.
**
**   core.http { host =, port = [, body_bytes, header_bytes, connections, open, timeout, key] }
**     -> server | nil, message
**   server:port()                          the one that it has, also where 0 was asked for
**   server:page(path, type, text [, open]) GET path gives text from now on; open: without the key
**   server:next(seconds)                   { id, method, path, body }, { id, gone = true } or nil
**   server:reply(id, status, text [, type [, retry_after [, allow]]])
**   server:begin(id, type)    server:send(id, text)    server:finish(id)          as a stream
**   server:refuse()                        new requests get 503
**   server:refused(status)                 how often the thread itself answered so: http.h
**   server:close()
*/
#include "../http.h"
#include "bind.h"

static const char *const class_name = "tidelock.Http";

typedef struct handle {
  tl_http *server; /* NULL before opening and after close() */
} handle;

static tl_http *check_server(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, class_name);
  luaL_argcheck(L, h->server != NULL, 1, "server is closed");
  return h->server;
}

static lua_Integer field(lua_State *L, const char *name, lua_Integer least, lua_Integer most,
                         lua_Integer otherwise) {
  lua_getfield(L, 1, name);
  const lua_Integer value = lua_isnil(L, -1) ? otherwise : lua_tointeger(L, -1);
  if (!(lua_isnil(L, -1) || lua_isinteger(L, -1)) || value < least || value > most)
    luaL_error(L, "%s: an integer from %I to %I", name, (LUAI_UACINT)least, (LUAI_UACINT)most);
  lua_pop(L, 1);
  return value;
}

static const char *text_field(lua_State *L, const char *name, const char *otherwise) {
  const int type = lua_getfield(L, 1, name);
  if (type == LUA_TNIL) return otherwise;
  if (type != LUA_TSTRING) luaL_error(L, "%s: a text", name);
  return lua_tostring(L, -1);
}

static int http_open(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const tl_http_options options = {
      .host = text_field(L, "host", "127.0.0.1"),
      .key = text_field(L, "key", NULL),
      .port = (int32_t)field(L, "port", 0, 65535, 0),
      .body_bytes = field(L, "body_bytes", 1, 1 << 30, 1 << 20),
      .header_bytes = field(L, "header_bytes", 256, 1 << 24, 1 << 14),
      .connections = (int32_t)field(L, "connections", 1, 1 << 20, 256),
      .open = (int32_t)field(L, "open", 1, 1 << 20, 64),
      .timeout_s = (int32_t)field(L, "timeout", 1, 86400, 30),
  };
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->server = NULL;
  luaL_setmetatable(L, class_name);
  if (tl_http_open(&options, &h->server) == TL_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, tl_last_error());
  return 2;
}

static int http_close(lua_State *L) { /* __gc, __close and close() */
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_http_close(h->server);
  h->server = NULL;
  return 0;
}

static int http_port(lua_State *L) {
  lua_pushinteger(L, tl_http_port(check_server(L)));
  return 1;
}

static int http_page(lua_State *L) {
  size_t bytes;
  tl_http *server = check_server(L);
  const char *path = luaL_checkstring(L, 2), *type = luaL_checkstring(L, 3);
  const char *text = luaL_checklstring(L, 4, &bytes);
  bind_check(L, tl_http_page(server, path, type, text, (int64_t)bytes, lua_toboolean(L, 5)));
  return 0;
}

static int http_next(lua_State *L) {
  tl_http_event event;
  if (!tl_http_next(check_server(L), luaL_optnumber(L, 2, 0), &event)) return 0;
  lua_createtable(L, 0, 4);
  lua_pushinteger(L, event.id);
  lua_setfield(L, -2, "id");
  if (event.gone) {
    lua_pushboolean(L, 1);
    lua_setfield(L, -2, "gone");
    return 1;
  }
  lua_pushstring(L, event.method);
  lua_setfield(L, -2, "method");
  lua_pushstring(L, event.path);
  lua_setfield(L, -2, "path");
  lua_pushlstring(L, event.body, (size_t)event.bytes);
  lua_setfield(L, -2, "body");
  return 1;
}

static int answer(lua_State *L, tl_http_reply reply) {
  bind_check(L, tl_http_answer(check_server(L), luaL_checkinteger(L, 2), &reply));
  return 0;
}

static int http_reply(lua_State *L) {
  size_t bytes;
  const lua_Integer status = luaL_checkinteger(L, 3);
  luaL_argcheck(L, status >= 200 && status <= 599, 3, "status must be 200 to 599");
  const char *text = luaL_checklstring(L, 4, &bytes);
  return answer(L, (tl_http_reply){.part = TL_HTTP_WHOLE,
                                   .status = (int32_t)status,
                                   .text = text,
                                   .bytes = (int64_t)bytes,
                                   .type = luaL_optstring(L, 5, "application/json"),
                                   .retry_after = (int32_t)luaL_optinteger(L, 6, 0),
                                   .allow = luaL_optstring(L, 7, NULL)});
}

static int http_begin(lua_State *L) {
  return answer(
      L, (tl_http_reply){
             .part = TL_HTTP_FIRST, .status = 200, .type = luaL_checkstring(L, 3), .text = ""});
}

static int http_send(lua_State *L) {
  size_t bytes;
  const char *text = luaL_checklstring(L, 3, &bytes);
  return answer(L, (tl_http_reply){.part = TL_HTTP_MORE, .text = text, .bytes = (int64_t)bytes});
}

static int http_finish(lua_State *L) {
  return answer(L, (tl_http_reply){.part = TL_HTTP_LAST, .text = ""});
}

static int http_refuse(lua_State *L) {
  tl_http_refuse(check_server(L));
  return 0;
}

static int http_refused(lua_State *L) {
  const lua_Integer status = luaL_checkinteger(L, 2);
  luaL_argcheck(L, status >= 400 && status <= 599, 2, "status must be 400 to 599");
  lua_pushinteger(L, tl_http_refused(check_server(L), (int32_t)status));
  return 1;
}

void bind_http_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"port",    http_port   },
      {"page",    http_page   },
      {"next",    http_next   },
      {"reply",   http_reply  },
      {"begin",   http_begin  },
      {"send",    http_send   },
      {"finish",  http_finish },
      {"refuse",  http_refuse },
      {"refused", http_refused},
      {NULL,      NULL        },
  };
  bind_class(L, class_name, methods, http_close);
  lua_pushcfunction(L, http_open);
  lua_setfield(L, -2, "http");
}
