/* bind_weights.c - core.weights: safetensors files from Lua.
**
**   core.weights.open(path) -> file | nil, message
**   file:names()        in the order of their data
**   file:look(name)     -> dtype as in the file, shape; nil when there is no such tensor
**   file:read(name [, "f32"])  -> tensor, in its dtype or widened exactly; a single number
**                       becomes a tensor of shape (1)
**   file:slice(name, row, rows [, col, cols [, "f32"]]) -> tensor (rows, cols) of a tensor of 1 or
**                       2 dims, from 0; +0 past its last row: padded shards are one call
**   file:hash(name)     -> XXH64 of the tensor's bytes, 16 hex digits
**   file:metadata()     -> { key = text }
**   core.weights.write(path, { { name =, tensor = } or { name =, parts = { t, .. }, dim = }
**                      or { name =, file = file, entry = its name there, dtype = "BF16" } ... },
**                      { key = text })
**
** `parts` are joined along `dim` (from 1, 1 unless given). write raises; the old file then stays.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../hash.h"
#include "../weights_convert.h"
#include "bind_weights.h"

static const char *const class_name = "tidelock.Weights";

typedef struct handle {
  tl_weights *weights; /* NULL before opening and after close() */
} handle;

static tl_weights *check_weights(lua_State *L, int arg) {
  const handle *h = luaL_checkudata(L, arg, class_name);
  luaL_argcheck(L, h->weights != NULL, arg, "file is closed");
  return h->weights;
}

static int weights_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->weights = NULL;
  luaL_setmetatable(L, class_name);
  if (tl_weights_open(path, &h->weights) == TL_OK) return 1;
  lua_pushnil(L);
  lua_pushstring(L, tl_last_error());
  return 2;
}

static int weights_close(lua_State *L) { /* __gc, __close and close() */
  handle *h = luaL_checkudata(L, 1, class_name);
  tl_weights_close(h->weights);
  h->weights = NULL;
  return 0;
}

static int weights_names(lua_State *L) {
  const tl_weights *weights = check_weights(L, 1);
  lua_newtable(L);
  for (int64_t i = 0; i < tl_weights_count(weights); i++) {
    lua_pushstring(L, tl_weights_at(weights, i)->name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int weights_look(lua_State *L) {
  const tl_weights_entry *entry = tl_weights_find(check_weights(L, 1), luaL_checkstring(L, 2));
  if (entry == NULL) {
    lua_pushnil(L);
    return 1;
  }
  lua_pushstring(L, entry->dtype_name);
  lua_createtable(L, entry->dims, 0);
  for (int32_t i = 0; i < entry->dims; i++) {
    lua_pushinteger(L, entry->shape[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 2;
}

static const tl_weights_entry *check_entry(lua_State *L, const char *name) {
  const tl_weights_entry *entry = tl_weights_find(check_weights(L, 1), name);
  if (entry == NULL) luaL_error(L, "there is no tensor %s in this file", name);
  return entry;
}

/* The dtype of the tensor that is read: that of the file, or f32 where the argument says so. */
static tl_dtype check_target(lua_State *L, const tl_weights_entry *entry, int arg) {
  const int widen = !lua_isnoneornil(L, arg);
  if (widen && strcmp(luaL_checkstring(L, arg), "f32") != 0)
    luaL_argerror(L, arg, "\"f32\" or nothing");
  if (widen && !tl_weights_widens(entry->dtype_name))
    luaL_error(L, "tensor %s has dtype %s, which does not become f32 exactly", entry->name,
               entry->dtype_name);
  if (!widen && entry->dtype < 0)
    luaL_error(L,
               "tensor %s has dtype %s; F32, BF16, I32, I64 and U8 can be read as they are, "
               "F16 and F8 as \"f32\"",
               entry->name, entry->dtype_name);
  return widen ? TL_F32 : (tl_dtype)entry->dtype;
}

static int weights_read(lua_State *L) {
  const char *name = luaL_checkstring(L, 2);
  const tl_weights_entry *entry = check_entry(L, name);
  const tl_dtype dtype = check_target(L, entry, 3);
  if (entry->dims > TL_DIMS_MAX)
    return luaL_error(L, "tensor %s has %d dims, at most %d can be read", name, entry->dims,
                      TL_DIMS_MAX);
  static const int64_t single[1] = {1};
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new_unset(dtype, entry->dims > 0 ? entry->dims : 1,
                                    entry->dims > 0 ? entry->shape : single, out));
  const tl_view *view = tl_tensor_view(*out);
  if (entry->dtype == (int32_t)dtype && entry->bytes > 0)
    memcpy(view->data, entry->data, (size_t)entry->bytes);
  else
    tl_weights_widen(entry->dtype_name, entry->data, tl_view_count(view), view->data);
  return 1;
}

/* Copies the box of a (rows, cols) tensor that begins at (row, col) to a tensor of its own size, in
** its dtype or widened; what reaches past the last row is +0. */
static void copy_box(const tl_weights_entry *entry, int64_t whole_cols, int64_t row, int64_t col,
                     const tl_view *to) {
  const int64_t count = tl_weights_elements(entry);
  const int64_t whole_rows = whole_cols > 0 ? count / whole_cols : 0;
  const int64_t from_bytes = count > 0 ? entry->bytes / count : 0;
  const int64_t cols = to->shape[1], row_bytes = cols * tl_dtype_bytes(to->dtype);
  for (int64_t r = 0; r < to->shape[0]; r++) {
    char *target = (char *)to->data + r * row_bytes;
    const char *from = (const char *)entry->data + ((row + r) * whole_cols + col) * from_bytes;
    if (row + r >= whole_rows)
      memset(target, 0, (size_t)row_bytes);
    else if (entry->dtype == (int32_t)to->dtype)
      memcpy(target, from, (size_t)row_bytes);
    else
      tl_weights_widen(entry->dtype_name, from, cols, (float *)(void *)target);
  }
}

static int weights_slice(lua_State *L) {
  const tl_weights_entry *entry = check_entry(L, luaL_checkstring(L, 2));
  const int64_t row = luaL_checkinteger(L, 3), rows = luaL_checkinteger(L, 4);
  const int64_t whole = entry->dims > 1 ? entry->shape[entry->dims - 1] : 1;
  const int64_t col = luaL_optinteger(L, 5, 0), cols = luaL_optinteger(L, 6, whole);
  const tl_dtype dtype = check_target(L, entry, 7);
  luaL_argcheck(L, entry->dims <= 2, 2, "a tensor of more than 2 dims");
  luaL_argcheck(L, row >= 0 && rows > 0, 3, "rows that the tensor does not have");
  luaL_argcheck(L, col >= 0 && cols > 0 && col <= whole - cols, 5,
                "columns that the tensor does not have");
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new_unset(dtype, 2, (int64_t[]){rows, cols}, out));
  copy_box(entry, whole, row, col, tl_tensor_view(*out));
  return 1;
}

static int weights_hash(lua_State *L) {
  const tl_weights_entry *entry = check_entry(L, luaL_checkstring(L, 2));
  char text[17];
  snprintf(text, sizeof text, "%016llx",
           (unsigned long long)tl_hash_bytes(entry->data, entry->bytes));
  lua_pushstring(L, text);
  return 1;
}

static int weights_metadata(lua_State *L) {
  const tl_weights *weights = check_weights(L, 1);
  const char *key, *value;
  lua_newtable(L);
  for (int64_t i = 0; tl_weights_metadata(weights, i, &key, &value); i++) {
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
  }
  return 1;
}

/* Memory that the collector takes back; stays on the stack. */
static void *push_block(lua_State *L, size_t count, size_t bytes) {
  void *block = lua_newuserdatauv(L, count > 0 ? count * bytes : 1, 0);
  memset(block, 0, count * bytes);
  return block;
}

/* The file's entry that a source names: { name =, file =, entry = its name there, dtype = "BF16" }.
** The file stays open as long as the list that holds it. */
static void read_file_source(lua_State *L, int entry, tl_weights_source *out) {
  lua_getfield(L, entry, "entry");
  const char *name = luaL_optstring(L, -1, out->name);
  const int handle_at = lua_gettop(L) - 1;
  out->entry = tl_weights_find(check_weights(L, handle_at), name);
  if (out->entry == NULL) luaL_error(L, "there is no tensor %s in this file", name);
  if (lua_getfield(L, entry, "dtype") == LUA_TSTRING) out->dtype_name = lua_tostring(L, -1);
  out->parts = NULL;
  out->part_count = 0;
  lua_settop(L, entry);
}

/* Reads the entry on top of the stack. Its views are kept in the table at `anchor`. */
static void read_source(lua_State *L, int anchor, tl_weights_source *out) {
  const int entry = lua_gettop(L);
  if (!lua_istable(L, entry) || lua_getfield(L, entry, "name") != LUA_TSTRING)
    luaL_error(L, "an entry is a table with a name");
  out->name = lua_tostring(L, -1); /* lives in the entry */
  out->entry = NULL;
  out->dtype_name = NULL;
  if (lua_getfield(L, entry, "file") != LUA_TNIL) {
    read_file_source(L, entry, out);
    return;
  }
  lua_getfield(L, entry, "dim");
  out->dim = (int32_t)luaL_optinteger(L, -1, 1) - 1;
  const int joined = lua_getfield(L, entry, "parts") == LUA_TTABLE;
  const int parts = lua_gettop(L);
  out->part_count = joined ? (int32_t)lua_rawlen(L, parts) : 1;
  if (out->part_count < 1) luaL_error(L, "tensor %s has no parts", out->name);
  tl_view *views = push_block(L, (size_t)out->part_count, sizeof *views);
  for (int32_t p = 0; p < out->part_count; p++) {
    if (joined)
      lua_rawgeti(L, parts, p + 1);
    else
      lua_getfield(L, entry, "tensor");
    views[p] = *tl_tensor_view(bind_check_tensor(L, -1)); /* lives in the entry */
    lua_pop(L, 1);
  }
  out->parts = views;
  lua_rawseti(L, anchor, (lua_Integer)lua_rawlen(L, anchor) + 1);
  lua_settop(L, entry);
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(((const tl_weights_text *)a)->key, ((const tl_weights_text *)b)->key);
}

/* The table at `arg` as pairs in bytewise order of keys; the block stays on the stack. */
const tl_weights_text *bind_read_metadata(lua_State *L, int arg, int64_t *count) {
  *count = 0;
  if (lua_isnoneornil(L, arg)) {
    lua_pushnil(L);
    return NULL;
  }
  luaL_checktype(L, arg, LUA_TTABLE);
  size_t pairs = 0;
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) pairs++;
  tl_weights_text *texts = push_block(L, pairs, sizeof *texts);
  for (lua_pushnil(L); lua_next(L, arg); lua_pop(L, 1)) {
    luaL_argcheck(L, lua_type(L, -2) == LUA_TSTRING && lua_type(L, -1) == LUA_TSTRING, arg,
                  "keys and values of the metadata are texts");
    texts[(*count)++] = (tl_weights_text){lua_tostring(L, -2), lua_tostring(L, -1)};
  }
  if (*count > 1) qsort(texts, (size_t)*count, sizeof *texts, compare_texts);
  return texts;
}

const tl_weights_source *bind_read_sources(lua_State *L, int arg, int64_t *count) {
  luaL_checktype(L, arg, LUA_TTABLE);
  *count = (int64_t)lua_rawlen(L, arg);
  tl_weights_source *sources = push_block(L, (size_t)*count, sizeof *sources);
  lua_newtable(L);
  const int anchor = lua_gettop(L);
  for (int64_t i = 0; i < *count; i++) {
    lua_rawgeti(L, arg, i + 1);
    read_source(L, anchor, &sources[i]);
    lua_settop(L, anchor);
  }
  return sources;
}

static int weights_write(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  lua_settop(L, 3);
  int64_t count, text_count;
  const tl_weights_text *texts = bind_read_metadata(L, 3, &text_count);
  const tl_weights_source *sources = bind_read_sources(L, 2, &count);
  bind_check(L, tl_weights_write(path, sources, count, texts, text_count));
  return 0;
}

void bind_weights_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"names",    weights_names   },
      {"look",     weights_look    },
      {"read",     weights_read    },
      {"slice",    weights_slice   },
      {"hash",     weights_hash    },
      {"metadata", weights_metadata},
      {NULL,       NULL            },
  };
  static const luaL_Reg functions[] = {
      {"open",  weights_open },
      {"write", weights_write},
      {NULL,    NULL         },
  };
  bind_class(L, class_name, methods, weights_close);
  luaL_newlib(L, functions);
  lua_setfield(L, -2, "weights");
}
