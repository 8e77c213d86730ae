/* bind_trace.c - traces in Lua: what to record, what was recorded, and tensors from such bytes.
**
**   what to record, a table a rank: {
**     outputs = { { instruction, position, name (an integer), rows, cols, pitch, row_first,
**                   piece_rows, piece_stride, col_first, cols_full, sampled (0, 1),
**                   rows_per_sample }, .. },
**     captures = { { instruction, position, output (0, 1), after (0, 1), offset }, .. },
**     capture_bytes = N }
**
**   a record, 64 bytes, little-endian:  start_ns end_ns wait_ns moved (i64), launches blocks[3]
**                                       threads[3] shared (u32)
**
**   core.trace_tensor(dtype, shape, bytes) -> tensor
**   core.trace_compare(a, b) -> first element that differs, from 1, or nil; how many differ
**
** Instructions and positions count from 1 in Lua.
*/
#include "bind_trace.h"

#include <string.h>

#include "bind_program.h"

enum { RECORD_BYTES = 64, OUTPUT_FIELDS = 13, CAPTURE_FIELDS = 5 };

/* The numbers of the list on top of the stack. */
static void read_row(lua_State *L, const char *what, int64_t *row, int fields) {
  luaL_checktype(L, -1, LUA_TTABLE);
  for (int i = 0; i < fields; i++) row[i] = bind_element(L, what, i + 1);
}

static void read_output(lua_State *L, tl_trace_output *out) {
  int64_t v[OUTPUT_FIELDS];
  read_row(L, "outputs", v, OUTPUT_FIELDS);
  *out = (tl_trace_output){
      .instruction = (int32_t)v[0] - 1,
      .position = (int32_t)v[1] - 1,
      .rows_per_sample = v[12],
      .part = {.name = (uint64_t)v[2],
               .rows = v[3],
               .cols = v[4],
               .pitch = v[5],
               .row_first = v[6],
               .piece_rows = v[7],
               .piece_stride = v[8],
               .col_first = v[9],
               .cols_full = v[10],
               .sampled = v[11] != 0},
  };
}

static void read_capture(lua_State *L, tl_trace_capture *out) {
  int64_t v[CAPTURE_FIELDS];
  read_row(L, "captures", v, CAPTURE_FIELDS);
  *out = (tl_trace_capture){.instruction = (int32_t)v[0] - 1,
                            .operand = (int32_t)v[1] - 1,
                            .output = v[2] != 0,
                            .after = v[3] != 0,
                            .offset = v[4]};
}

/* The list options[name] of the table on top; an array of `size` bytes an entry, kept on the stack
** below that table. */
static void *open_list(lua_State *L, const char *name, size_t size, int32_t *count) {
  lua_getfield(L, -1, name);
  *count = lua_istable(L, -1) ? (int32_t)lua_rawlen(L, -1) : 0;
  void *array = lua_newuserdatauv(L, ((size_t)*count + 1) * size, 0);
  lua_rotate(L, -3, 1); /* array, options, list */
  return array;
}

static void read_rank(lua_State *L, tl_trace_options *out) {
  *out = (tl_trace_options){0};
  if (!lua_istable(L, -1)) return;
  tl_trace_output *outputs = open_list(L, "outputs", sizeof *outputs, &out->output_count);
  for (int32_t i = 0; i < out->output_count; i++) {
    lua_rawgeti(L, -1, i + 1);
    read_output(L, &outputs[i]);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  tl_trace_capture *captures = open_list(L, "captures", sizeof *captures, &out->capture_count);
  for (int32_t i = 0; i < out->capture_count; i++) {
    lua_rawgeti(L, -1, i + 1);
    read_capture(L, &captures[i]);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  out->outputs = outputs, out->captures = captures;
  lua_getfield(L, -1, "capture_bytes");
  out->capture_bytes = luaL_optinteger(L, -1, 0);
  lua_pop(L, 1);
}

const tl_trace_options *bind_read_trace_options(lua_State *L, int arg, int32_t count) {
  tl_trace_options *options = lua_newuserdatauv(L, (size_t)count * sizeof *options, 0);
  luaL_checkstack(L, 3 * count + 10, "trace");
  for (int32_t i = 0; i < count; i++) {
    lua_rawgeti(L, arg, i + 1);
    read_rank(L, &options[i]);
    lua_pop(L, 1);
  }
  return options;
}

void bind_push_record(lua_State *L, const tl_trace *trace, int32_t all, lua_Integer first,
                      lua_Integer count) {
  if (first < 0 || count < 0 || first > all - count)
    luaL_error(L, "record: instructions %I to %I of %d", first + 1, first + count, (int)all);
  const tl_trace_record *records = tl_trace_records(trace) + first;
  int32_t hash_count;
  const uint64_t *hashes = tl_trace_hashes(trace, &hash_count);
  luaL_Buffer buffer;
  const size_t bytes = (size_t)count * RECORD_BYTES + (size_t)hash_count * sizeof *hashes;
  char *at = luaL_buffinitsize(L, &buffer, bytes);
  for (lua_Integer i = 0; i < count; i++, at += RECORD_BYTES) {
    const tl_trace_record *r = &records[i];
    const int64_t times[4] = {r->start_ns, r->end_ns, r->wait_ns, r->moved};
    const uint32_t launch[8] = {r->launches,   r->blocks[0],  r->blocks[1],  r->blocks[2],
                                r->threads[0], r->threads[1], r->threads[2], r->shared};
    memcpy(at, times, sizeof times);
    memcpy(at + sizeof times, launch, sizeof launch);
  }
  memcpy(at, hashes, (size_t)hash_count * sizeof *hashes);
  luaL_pushresultsize(&buffer, bytes);
}

static int trace_tensor(lua_State *L) {
  const tl_dtype dtype = bind_check_dtype(L, 1);
  int64_t shape[TL_DIMS_MAX];
  size_t length;
  luaL_checktype(L, 2, LUA_TTABLE);
  const lua_Unsigned dims = lua_rawlen(L, 2);
  luaL_argcheck(L, dims >= 1 && dims <= TL_DIMS_MAX, 2, "a shape has 1 to 4 sizes");
  lua_pushvalue(L, 2);
  for (lua_Unsigned i = 0; i < dims; i++) shape[i] = bind_element(L, "shape", (lua_Integer)i + 1);
  lua_pop(L, 1);
  const char *bytes = luaL_checklstring(L, 3, &length);
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new(dtype, (int32_t)dims, shape, out));
  const tl_view *view = tl_tensor_view(*out);
  luaL_argcheck(L, tl_view_bytes(view) == (int64_t)length, 3, "as many bytes as the shape says");
  memcpy(view->data, bytes, length);
  return 1;
}

static int trace_compare(lua_State *L) {
  const tl_view *a = tl_tensor_view(bind_check_tensor(L, 1));
  const tl_view *b = tl_tensor_view(bind_check_tensor(L, 2));
  const int64_t count = tl_view_count(a), size = tl_dtype_bytes(a->dtype);
  luaL_argcheck(L, a->dtype == b->dtype && count == tl_view_count(b), 2, "tensors unlike");
  int64_t first = 0, differ = 0;
  for (int64_t i = 0; i < count; i++) {
    const size_t at = (size_t)(i * size);
    if (memcmp((const char *)a->data + at, (const char *)b->data + at, (size_t)size) == 0) continue;
    if (differ++ == 0) first = i + 1;
  }
  if (differ == 0)
    lua_pushnil(L);
  else
    lua_pushinteger(L, first);
  lua_pushinteger(L, differ);
  return 2;
}

void bind_trace_open(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"trace_tensor",  trace_tensor },
      {"trace_compare", trace_compare},
      {NULL,            NULL         },
  };
  luaL_setfuncs(L, functions, 0);
}
