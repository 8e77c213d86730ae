/* bind_ranks.c - ranks in Lua: open, run, look, close. Options are read in bind_ranks_options.c.
**
**   ranks:run(section, { step =, scalars = { .. }, check =, eager =, fresh =, profile = }) ->
**     { loss =, loss_bits =, grad_norm =, grad_norm_bits =, control = { scale, skip }, skipped =,
**       count =, ms = }; profile: 1 ranges, 2 the profiler starts, 4 it stops (execute.h)
**   core.profiler() -> true if one listens (nvtx.h); else false and why not
**   ranks:read(rank, tensor) -> tensor        ranks:write(rank, tensor, from)
**   ranks:queue(place, section, { step =, fresh = }, { rank, tensor, from, .. },
**     { rank, tensor, .. })
**   ranks:await(place) -> tensors, in the order of the last list    ranks:queues() -> boolean
**   ranks:hash(rank, tensor, name, { row_first, col_first, cols_full, rows, cols,
**     pitch }) -> integer
**   ranks:trace(on)    ranks:times(rank) -> { ns, .. }    ranks:spans(rank) -> { { from, to }, .. }
**   ranks:record(rank, instruction, count) -> bytes    ranks:captured(rank, first, count) -> bytes
**   ranks:serve()   of a process whose rank is not 0 (job.h): until rank 0 closes its ranks
**   ranks:traffic(rank) -> { moved by group, from the program's first }, ns waited,
**     { peer, network, host } of rows of experts; on a GPU these alone, nil before them
**   ranks:memory() -> { arena =, .., peak = { arena =, .. } }    ranks:count()    ranks:close()
**
** Ranks count from 0, tensors and instructions from 1. Fields of a result that the section does not
** write are absent. Bits are eight hex digits.
*/
#include "bind_ranks.h"

#include <stdio.h>
#include <string.h>

#include "../hash.h"
#include "../memory.h"
#include "../nvtx.h"
#include "bind_trace.h"

static const char *const class_name = "tidelock.Ranks";

typedef struct handle {
  tl_ranks *ranks; /* NULL before creation and after close() */
} handle;

static tl_ranks *check_ranks(lua_State *L) {
  const handle *h = luaL_checkudata(L, 1, class_name);
  luaL_argcheck(L, h->ranks != NULL, 1, "ranks are closed");
  return h->ranks;
}

/* Programs and sources stay in the handle's user values, so that they live as long. */
static int core_ranks(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkstack(L, 24, "ranks");
  handle *h = lua_newuserdatauv(L, sizeof *h, 2 + TL_QUEUE_PLACES);
  h->ranks = NULL;
  luaL_setmetatable(L, class_name);
  const int self = lua_gettop(L);
  tl_ranks_options options;
  bind_read_ranks_options(L, 1, &options);
  bind_check(L, tl_ranks_open(&options, &h->ranks));
  lua_getfield(L, 1, "programs");
  bind_copy_list(L);
  for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, -1); i++) {
    lua_rawgeti(L, -1, i);
    bind_hold_program(L, lua_gettop(L), 1);
    lua_pop(L, 1);
  }
  lua_setiuservalue(L, self, 1);
  lua_getfield(L, 1, "data");
  if (!lua_isnil(L, -1)) bind_copy_list(L);
  lua_setiuservalue(L, self, 2);
  lua_settop(L, self);
  return 1;
}

static int ranks_close(lua_State *L) {
  handle *h = luaL_checkudata(L, 1, class_name);
  if (h->ranks == NULL) return 0;
  tl_ranks_close(h->ranks);
  h->ranks = NULL;
  lua_getiuservalue(L, 1, 1);
  for (lua_Integer i = 1; lua_istable(L, -1) && i <= (lua_Integer)lua_rawlen(L, -1); i++) {
    lua_rawgeti(L, -1, i);
    bind_hold_program(L, lua_gettop(L), -1);
    lua_pop(L, 1);
  }
  return 0;
}

static void set_float(lua_State *L, const char *name, float value) {
  char text[32];
  lua_pushnumber(L, value);
  lua_setfield(L, -2, name);
  lua_pushfstring(L, "%s_bits", name);
  snprintf(text, sizeof text, "%08x", tl_bits_from_f32(value));
  lua_pushstring(L, text);
  lua_settable(L, -3);
}

static void push_results(lua_State *L, const tl_results *results) {
  lua_newtable(L);
  if (results->has[TL_RESULT_LOSS]) set_float(L, "loss", results->loss);
  if (results->has[TL_RESULT_GRAD_NORM]) set_float(L, "grad_norm", results->grad_norm);
  if (results->has[TL_RESULT_CONTROL]) {
    lua_createtable(L, 2, 0);
    for (int i = 0; i < 2; i++) {
      lua_pushnumber(L, results->control[i]);
      lua_rawseti(L, -2, i + 1);
    }
    lua_setfield(L, -2, "control");
    lua_pushboolean(L, results->control[1] != 0);
    lua_setfield(L, -2, "skipped");
  }
  if (results->has[TL_RESULT_COUNT]) {
    lua_pushinteger(L, results->count);
    lua_setfield(L, -2, "count");
  }
  lua_pushnumber(L, results->ms);
  lua_setfield(L, -2, "ms");
}

static int ranks_run(lua_State *L) {
  tl_ranks *ranks = check_ranks(L);
  tl_run run = {.section = TL_SECTION_INIT};
  tl_results results;
  float scalars[TL_SCALARS_MAX];
  bind_check(L, tl_section_find(luaL_checkstring(L, 2), &run.section));
  lua_settop(L, 3);
  if (!lua_isnil(L, 3)) {
    luaL_checktype(L, 3, LUA_TTABLE);
    run.step.step = bind_integer(L, 3, "run", "step", 0);
    lua_getfield(L, 3, "check");
    run.check = lua_toboolean(L, -1);
    lua_getfield(L, 3, "eager");
    run.eager = lua_toboolean(L, -1);
    lua_getfield(L, 3, "fresh");
    run.fresh = lua_toboolean(L, -1);
    run.eager |= run.fresh;
    run.profile = (int32_t)bind_integer(L, 3, "run", "profile", 0);
    if (bind_optional(L, 3, "run", "scalars", LUA_TTABLE)) {
      const lua_Unsigned count = lua_rawlen(L, -1);
      luaL_argcheck(L, count <= TL_SCALARS_MAX, 3, "more than 256 scalars");
      for (lua_Unsigned i = 0; i < count; i++) {
        lua_rawgeti(L, -1, (lua_Integer)i + 1);
        scalars[i] = (float)luaL_checknumber(L, -1);
        lua_pop(L, 1);
      }
      run.step.scalar_count = (int32_t)count;
    }
  }
  run.step.scalars = scalars;
  bind_check(L, tl_ranks_run(ranks, &run, &results));
  push_results(L, &results);
  return 1;
}

/* Arguments 2 and 3: a rank from 0 and a tensor from 1. */
static tl_view check_place(lua_State *L, const tl_ranks *ranks) {
  tl_view view = {.data = NULL};
  const lua_Integer rank = luaL_checkinteger(L, 2), tensor = luaL_checkinteger(L, 3);
  luaL_argcheck(L, rank >= 0 && rank < tl_ranks_count(ranks), 2, "no such rank");
  luaL_argcheck(L, tensor >= 1 && tensor <= INT32_MAX, 3, "no such tensor");
  bind_check(L, tl_ranks_view(ranks, (int32_t)rank, (int32_t)tensor - 1, &view));
  return view;
}

static int ranks_read(lua_State *L) {
  const tl_ranks *ranks = check_ranks(L);
  const tl_view view = check_place(L, ranks);
  tl_tensor **out = bind_push_tensor(L);
  bind_check(L, tl_tensor_new_unset(view.dtype, view.dims, view.shape, out));
  bind_check(L, tl_ranks_read(ranks, (int32_t)lua_tointeger(L, 2), (int32_t)lua_tointeger(L, 3) - 1,
                              tl_tensor_view(*out)->data));
  return 1;
}

static int ranks_write(lua_State *L) {
  const tl_ranks *ranks = check_ranks(L);
  const tl_view to = check_place(L, ranks);
  const tl_view *from = tl_tensor_view(bind_check_tensor(L, 4));
  luaL_argcheck(L, from->dtype == to.dtype, 4, "tensor of another dtype");
  luaL_argcheck(L, tl_view_count(from) == tl_view_count(&to), 4, "tensor of another size");
  bind_check(L, tl_ranks_write(ranks, (int32_t)lua_tointeger(L, 2),
                               (int32_t)lua_tointeger(L, 3) - 1, from->data));
  return 0;
}

enum { CARRIED_MAX = 1024 }; /* flights.lua keeps below it */

/* Entries of `width` of the list at `index`: what goes in has a third, a tensor. */
static int32_t read_carried(lua_State *L, const tl_ranks *ranks, int index, int width,
                            tl_carried *out) {
  const lua_Integer count = (lua_Integer)lua_rawlen(L, index) / width;
  luaL_argcheck(L, (lua_Integer)lua_rawlen(L, index) == count * width, index, "half an entry");
  luaL_argcheck(L, count <= CARRIED_MAX, index, "more than 1024 tensors");
  for (lua_Integer i = 0; i < count; i++) {
    tl_view view;
    lua_rawgeti(L, index, i * width + 1);
    lua_rawgeti(L, index, i * width + 2);
    const lua_Integer rank = luaL_checkinteger(L, -2), tensor = luaL_checkinteger(L, -1);
    luaL_argcheck(L, rank >= 0 && rank < tl_ranks_count(ranks), index, "no such rank");
    luaL_argcheck(L, tensor >= 1 && tensor <= INT32_MAX, index, "no such tensor");
    out[i] = (tl_carried){.rank = (int32_t)rank, .tensor = (int32_t)tensor - 1};
    lua_pop(L, 2);
    bind_check(L, tl_ranks_view(ranks, out[i].rank, out[i].tensor, &view));
    if (width < 3) continue;
    lua_rawgeti(L, index, i * width + 3);
    const tl_view *from = tl_tensor_view(bind_check_tensor(L, -1));
    luaL_argcheck(L, from->dtype == view.dtype, index, "tensor of another dtype");
    luaL_argcheck(L, tl_view_count(from) == tl_view_count(&view), index, "tensor of another size");
    out[i].from = from->data;
    lua_pop(L, 1);
  }
  return (int32_t)count;
}

/* Numbers of a list, as it is now: the caller may change its own. */
static void push_copy(lua_State *L, int index) {
  const lua_Integer count = (lua_Integer)lua_rawlen(L, index);
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, index, i);
    lua_rawseti(L, -2, i);
  }
}

/* A copy of the list of outs is kept for await, at the handle's user value 3 + place. */
static int ranks_queue(lua_State *L) {
  tl_ranks *ranks = check_ranks(L);
  tl_run run = {.section = TL_SECTION_INIT};
  tl_carried in[CARRIED_MAX], out[TL_QUEUE_OUTS_MAX];
  const lua_Integer place = luaL_checkinteger(L, 2);
  luaL_argcheck(L, place >= 0 && place < TL_QUEUE_PLACES, 2, "no such place");
  bind_check(L, tl_section_find(luaL_checkstring(L, 3), &run.section));
  for (int i = 4; i <= 6; i++) luaL_checktype(L, i, LUA_TTABLE);
  lua_settop(L, 6);
  run.step.step = bind_integer(L, 4, "queue", "step", 0);
  lua_getfield(L, 4, "fresh");
  run.fresh = run.eager = lua_toboolean(L, -1);
  luaL_argcheck(L, lua_rawlen(L, 6) <= 2 * TL_QUEUE_OUTS_MAX, 6, "more than 4 tensors");
  const int32_t ins = read_carried(L, ranks, 5, 3, in), outs = read_carried(L, ranks, 6, 2, out);
  bind_check(L, tl_ranks_queue(ranks, (int32_t)place, &run, in, ins, out, outs));
  push_copy(L, 6);
  lua_setiuservalue(L, 1, 3 + (int)place);
  return 0;
}

static int ranks_await(lua_State *L) {
  tl_ranks *ranks = check_ranks(L);
  const lua_Integer place = luaL_checkinteger(L, 2);
  const void *outs[TL_QUEUE_OUTS_MAX];
  luaL_argcheck(L, place >= 0 && place < TL_QUEUE_PLACES, 2, "no such place");
  bind_check(L, tl_ranks_await(ranks, (int32_t)place, outs));
  lua_settop(L, 2);
  lua_getiuservalue(L, 1, 3 + (int)place);
  tl_carried list[TL_QUEUE_OUTS_MAX];
  const int32_t count = read_carried(L, ranks, 3, 2, list);
  for (int32_t i = 0; i < count; i++) {
    tl_view view;
    bind_check(L, tl_ranks_view(ranks, list[i].rank, list[i].tensor, &view));
    tl_tensor **tensor = bind_push_tensor(L);
    bind_check(L, tl_tensor_new_unset(view.dtype, view.dims, view.shape, tensor));
    memcpy(tl_tensor_view(*tensor)->data, outs[i], (size_t)tl_view_bytes(&view));
  }
  return count;
}

static int ranks_queues(lua_State *L) {
  lua_pushboolean(L, tl_ranks_queues(check_ranks(L)));
  return 1;
}

/* The share of a shard; rows and cols default to dim 0 and the product of the others, pitch to
** cols. */
static int ranks_hash(lua_State *L) {
  const tl_ranks *ranks = check_ranks(L);
  const tl_view view = check_place(L, ranks);
  size_t length;
  const char *name = luaL_checklstring(L, 4, &length);
  lua_settop(L, 5);
  if (lua_isnil(L, 5)) lua_newtable(L), lua_replace(L, 5);
  luaL_checktype(L, 5, LUA_TTABLE);
  tl_hash_part part = {.name = tl_hash_bytes(name, (int64_t)length)};
  part.row_first = bind_integer(L, 5, "hash", "row_first", 0);
  part.col_first = bind_integer(L, 5, "hash", "col_first", 0);
  part.rows = bind_integer(L, 5, "hash", "rows", view.shape[0]);
  part.cols = bind_integer(L, 5, "hash", "cols", tl_view_row(&view));
  part.pitch = bind_integer(L, 5, "hash", "pitch", part.cols);
  part.cols_full = bind_integer(L, 5, "hash", "cols_full", part.cols);
  part.piece_rows = part.rows, part.piece_stride = part.rows;
  luaL_argcheck(L, part.col_first >= 0 && part.col_first <= part.cols_full - part.cols, 5,
                "columns past cols_full");
  uint64_t sum;
  bind_check(L, tl_ranks_hash(ranks, (int32_t)lua_tointeger(L, 2), (int32_t)lua_tointeger(L, 3) - 1,
                              &part, &sum));
  lua_pushinteger(L, (lua_Integer)sum);
  return 1;
}

static void push_bytes(lua_State *L, const int64_t *bytes) {
  lua_createtable(L, 0, TL_MEMORY_COUNT + 1);
  for (int kind = 0; kind < TL_MEMORY_COUNT; kind++) {
    lua_pushinteger(L, bytes[kind]);
    lua_setfield(L, -2, tl_memory_name((tl_memory)kind));
  }
}

static int ranks_memory(lua_State *L) {
  int64_t current[TL_MEMORY_COUNT], peak[TL_MEMORY_COUNT];
  tl_ranks_memory(check_ranks(L), current, peak);
  push_bytes(L, current);
  push_bytes(L, peak);
  lua_setfield(L, -2, "peak");
  return 1;
}

/* Bytes of each group of the rank's program, and the time that it waited for others. */
static int ranks_traffic(lua_State *L) {
  const tl_ranks *ranks = check_ranks(L);
  const lua_Integer rank = luaL_checkinteger(L, 2);
  luaL_argcheck(L, rank >= 0 && rank < tl_ranks_count(ranks), 2, "no such rank");
  const int32_t groups = tl_ranks_program(ranks, (int32_t)rank)->group_count;
  int64_t waited = 0, exchanged[TL_PATH_COUNT] = {0};
  int counted = 1;
  lua_createtable(L, groups, 0);
  for (int32_t group = 0; group < groups; group++) {
    const tl_traffic traffic = tl_ranks_traffic(ranks, (int32_t)rank, group);
    if (traffic.exchanged[0] < 0) return 0;
    if (traffic.moved < 0) counted = 0;
    lua_pushinteger(L, traffic.moved);
    lua_rawseti(L, -2, group + 1);
    waited = traffic.wait_ns;
    for (int path = 0; path < TL_PATH_COUNT; path++) exchanged[path] += traffic.exchanged[path];
  }
  lua_pushinteger(L, waited);
  if (!counted) {
    lua_pop(L, 2);
    lua_pushnil(L);
    lua_pushnil(L);
  }
  static const char *const names[] = {"peer", "network", "host"};
  lua_createtable(L, 0, TL_PATH_COUNT);
  for (int path = 0; path < TL_PATH_COUNT; path++) {
    lua_pushinteger(L, exchanged[path]);
    lua_setfield(L, -2, names[path]);
  }
  return 3;
}

static int core_profiler(lua_State *L) {
  const char *why = "";
  lua_pushboolean(L, tl_nvtx_open(&why));
  lua_pushstring(L, why);
  return lua_toboolean(L, -2) ? (lua_pop(L, 1), 1) : 2;
}

static int ranks_count(lua_State *L) {
  lua_pushinteger(L, tl_ranks_count(check_ranks(L)));
  return 1;
}

static int ranks_serve(lua_State *L) {
  bind_check(L, tl_ranks_serve(check_ranks(L)));
  return 0;
}

/* ranks:trace(true): times alone; ranks:trace { { outputs =, captures =, capture_bytes = }, .. }, a
** table a rank: see bind_trace.c; ranks:trace(false) stops. */
static int ranks_trace(lua_State *L) {
  tl_ranks *ranks = check_ranks(L);
  lua_settop(L, 2);
  const tl_trace_options *options = NULL;
  if (lua_istable(L, 2)) options = bind_read_trace_options(L, 2, tl_ranks_count(ranks));
  bind_check(L, tl_ranks_trace(ranks, lua_toboolean(L, 2), options));
  return 0;
}

static const tl_trace *check_trace(lua_State *L, int32_t *count) {
  const tl_ranks *ranks = check_ranks(L);
  const lua_Integer rank = luaL_checkinteger(L, 2);
  luaL_argcheck(L, rank >= 0 && rank < tl_ranks_count(ranks), 2, "no such rank");
  const tl_trace *trace = tl_ranks_traced(ranks, (int32_t)rank);
  if (trace == NULL)
    luaL_error(L, "no times of rank %I: tracing is off (call ranks:trace(true) before a run)",
               rank);
  *count = tl_ranks_program(ranks, (int32_t)rank)->instruction_count;
  return trace;
}

static int ranks_times(lua_State *L) {
  int32_t count = 0;
  const tl_trace_record *records = tl_trace_records(check_trace(L, &count));
  lua_createtable(L, count, 0);
  for (int32_t i = 0; i < count; i++) {
    lua_pushinteger(L, records[i].total_ns);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int ranks_spans(lua_State *L) {
  int32_t count = 0;
  const tl_trace_record *records = tl_trace_records(check_trace(L, &count));
  lua_createtable(L, count, 0);
  for (int32_t i = 0; i < count; i++) {
    lua_createtable(L, 2, 0);
    lua_pushinteger(L, records[i].start_ns);
    lua_rawseti(L, -2, 1);
    lua_pushinteger(L, records[i].end_ns);
    lua_rawseti(L, -2, 2);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int ranks_record(lua_State *L) {
  int32_t count = 0;
  const tl_trace *trace = check_trace(L, &count);
  bind_push_record(L, trace, count, luaL_checkinteger(L, 3) - 1, luaL_checkinteger(L, 4));
  return 1;
}

static int ranks_captured(lua_State *L) {
  int32_t count = 0;
  int64_t bytes;
  const char *block = tl_trace_captured(check_trace(L, &count), &bytes);
  const lua_Integer first = luaL_checkinteger(L, 3), want = luaL_checkinteger(L, 4);
  luaL_argcheck(L, first >= 0 && first <= bytes, 3, "past the captured bytes");
  lua_pushlstring(L, block + first, (size_t)(want < bytes - first ? want : bytes - first));
  return 1;
}

void bind_ranks_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"run",      ranks_run     },
      {"read",     ranks_read    },
      {"write",    ranks_write   },
      {"queue",    ranks_queue   },
      {"await",    ranks_await   },
      {"queues",   ranks_queues  },
      {"hash",     ranks_hash    },
      {"memory",   ranks_memory  },
      {"traffic",  ranks_traffic },
      {"count",    ranks_count   },
      {"serve",    ranks_serve   },
      {"trace",    ranks_trace   },
      {"times",    ranks_times   },
      {"spans",    ranks_spans   },
      {"record",   ranks_record  },
      {"captured", ranks_captured},
      {NULL,       NULL          },
  };
  bind_class(L, class_name, methods, ranks_close);
  lua_pushcfunction(L, core_ranks);
  lua_setfield(L, -2, "ranks");
  lua_pushcfunction(L, core_profiler);
  lua_setfield(L, -2, "profiler");
}
