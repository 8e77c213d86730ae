/* bind_data.c - data sources in Lua.
**
**   core.data.files(paths, { width, eos, parts }, options)     -> source | nil, message
**   core.data.mix(sources, shares, options)                    -> source | nil, message
**   core.data.given(samples, options)                          -> source | nil, message
**   core.data.order(seed, name, turn, count, i)                -> what place i (from 0) points to
**
**   options = { length, vocab, seed, site }
**   source:micro(step, samples_global, first, samples)   -> tokens, targets, cu | nil, message
**   source:targets(step, samples_global, first, samples) -> how many targets are not -1
**   source:fingerprint()                                 -> 16 hex digits
**   source:about() -> { files, documents, tokens, bytes, samples_per_epoch, token_max,
**                       beyond_file, beyond_position, beyond_token }
**                     beyond_*: nil unless a token is no id; beyond_file counts from 1 in paths
**
** What is wrong with the data is an answer, not a Lua error: the caller adds nothing to it.
*/
#include "bind_data.h"

#include <stdio.h>
#include <string.h>

#include "../data_order.h"

static const char *const class_name = "tidelock.Data";

typedef struct handle {
  tl_data *data; /* NULL before creation, after close(), and when a mixture has taken it over */
  int32_t length;
} handle;

static handle *check_handle(lua_State *L, int arg) {
  handle *h = luaL_checkudata(L, arg, class_name);
  luaL_argcheck(L, h->data != NULL, arg, "data source is closed");
  return h;
}

tl_data *bind_check_data(lua_State *L, int arg) { return check_handle(L, arg)->data; }

static handle *push_handle(lua_State *L, const tl_data_options *options) {
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  *h = (handle){.length = options->length};
  luaL_setmetatable(L, class_name);
  return h;
}

/* The source on top of the stack, or nil and the thread's message. */
static int answer(lua_State *L, tl_status status) {
  if (status == TL_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, tl_last_error());
  return 2;
}

static lua_Integer integer_field(lua_State *L, int arg, const char *name) {
  int whole;
  lua_getfield(L, arg, name);
  const lua_Integer value = lua_tointegerx(L, -1, &whole);
  if (!whole) luaL_error(L, "data: %s is a %s, wanted an integer", name, luaL_typename(L, -1));
  lua_pop(L, 1);
  return value;
}

/* The site stays on the stack: options point into it. */
static tl_data_options check_options(lua_State *L, int arg) {
  luaL_checktype(L, arg, LUA_TTABLE);
  const lua_Integer length = integer_field(L, arg, "length");
  luaL_argcheck(L, length >= 1 && length <= INT32_MAX, arg, "length is 1 to 2,147,483,647");
  tl_data_options options = {.length = (int32_t)length,
                             .vocab = integer_field(L, arg, "vocab"),
                             .seed = (uint64_t)integer_field(L, arg, "seed")};
  lua_getfield(L, arg, "site");
  options.site = lua_tostring(L, -1);
  return options;
}

/* Memory that the collector takes back; stays on the stack. */
static void *push_block(lua_State *L, size_t bytes) {
  luaL_checkstack(L, 8, "data");
  void *block = lua_newuserdatauv(L, bytes > 0 ? bytes : 1, 0);
  memset(block, 0, bytes);
  return block;
}

static int32_t read_parts(lua_State *L, int arg, tl_data_part *parts) {
  lua_getfield(L, arg, "parts");
  luaL_argcheck(L, lua_istable(L, -1), arg, "parts is a table");
  const lua_Unsigned count = lua_rawlen(L, -1);
  luaL_argcheck(L, count <= TL_DATA_PARTS_MAX, arg, "data can be split at most 16 times");
  for (lua_Unsigned i = 0; i < count; i++) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    lua_getfield(L, -1, "fraction");
    parts[i].fraction = luaL_checknumber(L, -1);
    lua_getfield(L, -2, "held");
    parts[i].held = lua_toboolean(L, -1);
    lua_pop(L, 3);
  }
  lua_pop(L, 1);
  return (int32_t)count;
}

static int data_files(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  const tl_data_options options = check_options(L, 3);
  const lua_Integer width = integer_field(L, 2, "width");
  luaL_argcheck(L, width == 1 || width == 2 || width == 4, 2, "width is 1, 2 or 4 bytes");
  tl_data_part parts[TL_DATA_PARTS_MAX];
  const int32_t part_count = read_parts(L, 2, parts);
  const int64_t count = (int64_t)lua_rawlen(L, 1);
  const char **paths = push_block(L, (size_t)count * sizeof *paths);
  for (int64_t i = 0; i < count; i++) {
    lua_rawgeti(L, 1, i + 1);
    luaL_argcheck(L, lua_type(L, -1) == LUA_TSTRING, 1, "a path is a string");
    paths[i] = lua_tostring(L, -1); /* lives in the table */
    lua_pop(L, 1);
  }
  const tl_data_files files = {.paths = paths,
                               .count = count,
                               .width = (int32_t)width,
                               .eos = integer_field(L, 2, "eos"),
                               .parts = parts,
                               .part_count = part_count};
  handle *h = push_handle(L, &options);
  return answer(L, tl_data_open_files(&files, &options, &h->data));
}

static int data_mix(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  const tl_data_options options = check_options(L, 3);
  const int32_t count = (int32_t)lua_rawlen(L, 1);
  luaL_argcheck(L, (int32_t)lua_rawlen(L, 2) == count, 2, "one share for each source");
  tl_data **sources = push_block(L, (size_t)count * sizeof *sources);
  int64_t *shares = push_block(L, (size_t)count * sizeof *shares);
  for (int32_t i = 0; i < count; i++) {
    lua_rawgeti(L, 1, i + 1);
    lua_rawgeti(L, 2, i + 1);
    const handle *h = check_handle(L, -2);
    luaL_argcheck(L, h->length == options.length, 1, "sources of other sample lengths");
    for (int32_t j = 0; j < i; j++)
      luaL_argcheck(L, sources[j] != h->data, 1, "a source stands twice");
    sources[i] = h->data;
    shares[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 2);
  }
  handle *mix = push_handle(L, &options);
  const tl_status status = tl_data_open_mix(sources, shares, count, &options, &mix->data);
  for (int32_t i = 0; i < count && status == TL_OK; i++) { /* they belong to the mixture now */
    lua_rawgeti(L, 1, i + 1);
    ((handle *)lua_touserdata(L, -1))->data = NULL;
    lua_pop(L, 1);
  }
  return answer(L, status);
}

/* Field `name` of the table on top as int32 numbers in a block that is stored in the table at
** `anchor`; NULL when the field is nil. */
static int32_t *read_ints(lua_State *L, int anchor, const char *name, int64_t *count) {
  *count = 0;
  if (lua_getfield(L, -1, name) == LUA_TNIL) {
    lua_pop(L, 1);
    return NULL;
  }
  if (!lua_istable(L, -1))
    luaL_error(L, "data.given: %s is a %s, wanted a table", name, luaL_typename(L, -1));
  *count = (int64_t)lua_rawlen(L, -1);
  int32_t *ints = push_block(L, (size_t)*count * sizeof *ints);
  for (int64_t i = 0; i < *count; i++) {
    int whole;
    lua_rawgeti(L, -2, i + 1);
    const lua_Integer value = lua_tointegerx(L, -1, &whole);
    if (!whole || value < INT32_MIN || value > INT32_MAX)
      luaL_error(L, "data.given: %s: entry %I is %s, wanted an int32", name, (LUAI_UACINT)i,
                 luaL_tolstring(L, -1, NULL));
    ints[i] = (int32_t)value;
    lua_pop(L, 1);
  }
  lua_rawseti(L, anchor, (lua_Integer)lua_rawlen(L, anchor) + 1);
  lua_pop(L, 1);
  return ints;
}

static int data_given(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  const tl_data_options options = check_options(L, 2);
  const int64_t count = (int64_t)lua_rawlen(L, 1);
  tl_data_sample *samples = push_block(L, (size_t)count * sizeof *samples);
  lua_newtable(L);
  const int anchor = lua_gettop(L);
  for (int64_t i = 0; i < count; i++) {
    lua_rawgeti(L, 1, i + 1);
    if (!lua_istable(L, -1)) luaL_error(L, "data.given: sample %I is not a table", (LUAI_UACINT)i);
    tl_data_sample *s = &samples[i];
    s->tokens = read_ints(L, anchor, "tokens", &s->token_count);
    s->targets = read_ints(L, anchor, "targets", &s->target_count);
    s->cu = read_ints(L, anchor, "cu_seqlens", &s->cu_count);
    lua_pop(L, 1);
  }
  handle *h = push_handle(L, &options);
  return answer(L, tl_data_open_given(samples, count, &options, &h->data));
}

static int data_close(lua_State *L) { /* __gc, __close and close() */
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_data_close(h->data);
  h->data = NULL;
  return 0;
}

static void push_ints(lua_State *L, const int32_t *ints, int64_t count) {
  lua_createtable(L, (int)count, 0);
  for (int64_t i = 0; i < count; i++) {
    lua_pushinteger(L, ints[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

static int32_t check_samples(lua_State *L, int arg) {
  const lua_Integer samples = luaL_checkinteger(L, arg);
  luaL_argcheck(L, samples >= 0 && samples <= 1 << 20, arg, "0 to 1,048,576 samples");
  return (int32_t)samples;
}

static int data_micro(lua_State *L) {
  const handle *h = check_handle(L, 1);
  const lua_Integer step = luaL_checkinteger(L, 2), global = luaL_checkinteger(L, 3);
  const lua_Integer first = luaL_checkinteger(L, 4);
  const int32_t samples = check_samples(L, 5);
  const int64_t total = (int64_t)samples * h->length;
  int32_t *tokens = push_block(L, (size_t)total * sizeof *tokens);
  int32_t *targets = push_block(L, (size_t)total * sizeof *targets);
  int32_t *cu = push_block(L, (size_t)(total + 1) * sizeof *cu);
  const tl_status status =
      tl_data_micro(h->data, step, global, first, samples, h->length, tokens, targets, cu);
  if (status != TL_OK) return answer(L, status);
  push_ints(L, tokens, total);
  push_ints(L, targets, total);
  push_ints(L, cu, total + 1);
  return 3;
}

static int data_targets(lua_State *L) {
  const handle *h = check_handle(L, 1);
  const lua_Integer step = luaL_checkinteger(L, 2), global = luaL_checkinteger(L, 3);
  const lua_Integer first = luaL_checkinteger(L, 4);
  const int32_t samples = check_samples(L, 5);
  int64_t count = 0;
  bind_check(L, tl_data_targets(h->data, step, global, first, samples, h->length, &count));
  lua_pushinteger(L, count);
  return 1;
}

static int data_fingerprint(lua_State *L) {
  char text[17];
  const uint64_t hash = tl_data_fingerprint(bind_check_data(L, 1));
  snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
  lua_pushstring(L, text);
  return 1;
}

static int data_about(lua_State *L) {
  const tl_data_about about = tl_data_look(bind_check_data(L, 1));
  const struct {
    const char *name;
    int64_t value;
  } fields[] = {
      {"files",             about.files            },
      {"documents",         about.documents        },
      {"tokens",            about.tokens           },
      {"bytes",             about.bytes            },
      {"samples_per_epoch", about.samples_per_epoch},
      {"token_max",         about.beyond.token_max },
      {"beyond_file",       about.beyond.file + 1  },
      {"beyond_position",   about.beyond.position  },
      {"beyond_token",      about.beyond.token     }
  };
  const size_t count = sizeof fields / sizeof fields[0] - (about.beyond.file < 0 ? 3 : 0);
  lua_newtable(L);
  for (size_t i = 0; i < count; i++) {
    lua_pushinteger(L, fields[i].value);
    lua_setfield(L, -2, fields[i].name);
  }
  return 1;
}

static int data_order(lua_State *L) {
  const uint64_t seed = (uint64_t)luaL_checkinteger(L, 1);
  const char *name = luaL_checkstring(L, 2);
  const lua_Integer turn = luaL_checkinteger(L, 3), count = luaL_checkinteger(L, 4);
  const lua_Integer i = luaL_checkinteger(L, 5);
  luaL_argcheck(L, count >= 1, 4, "at least 1");
  luaL_argcheck(L, i >= 0 && i < count, 5, "0 to count - 1");
  const tl_order order = tl_order_new(seed, name, turn, count);
  lua_pushinteger(L, tl_order_at(&order, i));
  return 1;
}

void bind_data_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"micro",       data_micro      },
      {"targets",     data_targets    },
      {"fingerprint", data_fingerprint},
      {"about",       data_about      },
      {NULL,          NULL            },
  };
  static const luaL_Reg functions[] = {
      {"files", data_files},
      {"mix",   data_mix  },
      {"given", data_given},
      {"order", data_order},
      {NULL,    NULL      },
  };
  bind_class(L, class_name, methods, data_close);
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "data");
}
