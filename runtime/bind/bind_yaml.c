/* bind_yaml.c - YAML in Lua: yaml.decode(text) gives tables, numbers, booleans and strings.
**
**   core.yaml.decode(text) -> value        maps and lists become tables; plain scalars are typed as
**                                          in the YAML 1.2 core schema; null is absent
**
** One document, no anchors, no tags: machine facts need neither, and a file that has them is an
** error with its line. Parsing is libyaml's.
*/
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "bind.h"

enum { DEPTH_MAX = 64 };

typedef struct reader {
  yaml_parser_t parser; /* empty until begun */
  int begun;
} reader;

static int reader_close(lua_State *L) {
  reader *r = luaL_checkudata(L, 1, "tidelock.Yaml");
  if (r->begun) yaml_parser_delete(&r->parser);
  r->begun = 0;
  return 0;
}

static _Noreturn void fail(lua_State *L, const yaml_mark_t *mark, const char *text) {
  luaL_error(L, "yaml: line %d: %s", (int)mark->line + 1, text);
  abort(); /* luaL_error does not return */
}

static void next_event(lua_State *L, reader *r, yaml_event_t *event) {
  if (yaml_parser_parse(&r->parser, event)) return;
  fail(L, &r->parser.problem_mark, r->parser.problem ? r->parser.problem : "cannot be read");
}

/* Pushes a plain scalar as what it looks like; quoted ones are strings. */
static void push_scalar(lua_State *L, const yaml_event_t *event) {
  const char *text = (const char *)event->data.scalar.value;
  const int plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
  if (plain && (*text == 0 || strcmp(text, "null") == 0 || strcmp(text, "~") == 0)) {
    lua_pushnil(L);
  } else if (plain && (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)) {
    lua_pushboolean(L, *text == 't');
  } else if (!plain || lua_stringtonumber(L, text) == 0) {
    lua_pushlstring(L, text, event->data.scalar.length);
  }
}

static void push_value(lua_State *L, reader *r, yaml_event_t *event, int depth);

static void push_list(lua_State *L, reader *r, int depth) {
  lua_Integer count = 0;
  yaml_event_t event;
  lua_newtable(L);
  for (;;) {
    next_event(L, r, &event);
    if (event.type == YAML_SEQUENCE_END_EVENT) break;
    push_value(L, r, &event, depth);
    lua_rawseti(L, -2, ++count);
  }
}

static void push_map(lua_State *L, reader *r, int depth) {
  yaml_event_t event;
  lua_newtable(L);
  for (;;) {
    next_event(L, r, &event);
    if (event.type == YAML_MAPPING_END_EVENT) break;
    const yaml_mark_t mark = event.start_mark;
    if (event.type != YAML_SCALAR_EVENT) fail(L, &mark, "a key must be a word");
    lua_pushstring(L, (const char *)event.data.scalar.value);
    yaml_event_delete(&event);
    lua_pushvalue(L, -1);
    if (lua_rawget(L, -3) != LUA_TNIL) fail(L, &mark, "this key stands twice");
    lua_pop(L, 1);
    next_event(L, r, &event);
    push_value(L, r, &event, depth);
    lua_rawset(L, -3);
  }
}

/* Consumes the event. */
static void push_value(lua_State *L, reader *r, yaml_event_t *event, int depth) {
  const yaml_mark_t mark = event->start_mark;
  const yaml_event_type_t type = event->type;
  luaL_checkstack(L, 8, "yaml");
  if (depth > DEPTH_MAX) fail(L, &mark, "more than 64 levels");
  if (type == YAML_SCALAR_EVENT) push_scalar(L, event);
  yaml_event_delete(event);
  switch (type) {
    case YAML_SCALAR_EVENT: return;
    case YAML_SEQUENCE_START_EVENT: push_list(L, r, depth + 1); return;
    case YAML_MAPPING_START_EVENT: push_map(L, r, depth + 1); return;
    default: fail(L, &mark, "anchors are not read");
  }
}

static int yaml_decode(lua_State *L) {
  static const luaL_Reg none[] = {
      {NULL, NULL}
  };
  size_t length;
  const char *text = luaL_checklstring(L, 1, &length);
  yaml_event_t event;
  bind_class(L, "tidelock.Yaml", none, reader_close);
  reader *r = lua_newuserdatauv(L, sizeof *r, 0);
  r->begun = 0;
  luaL_setmetatable(L, "tidelock.Yaml");
  if (!yaml_parser_initialize(&r->parser)) return luaL_error(L, "yaml: no memory");
  r->begun = 1;
  yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, length);
  next_event(L, r, &event); /* the stream */
  yaml_event_delete(&event);
  next_event(L, r, &event); /* the document */
  const int empty = event.type == YAML_STREAM_END_EVENT;
  yaml_event_delete(&event);
  if (empty) return 0;
  next_event(L, r, &event);
  push_value(L, r, &event, 0);
  return 1;
}

void bind_yaml_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"decode", yaml_decode},
      {NULL,     NULL       },
  };
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "yaml");
}
