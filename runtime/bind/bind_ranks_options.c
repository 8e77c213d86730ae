/* bind_ranks_options.c - reads the options of core.ranks. */
#include <stdio.h>
#include <string.h>

#include "../cores.h"
#include "bind_data.h"
#include "bind_job.h"
#include "bind_ranks.h"

void bind_copy_list(lua_State *L) {
  const lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_rawgeti(L, -2, i);
    lua_rawseti(L, -2, i);
  }
  lua_remove(L, -2);
}

static double read_number(lua_State *L, int arg, const char *name, double otherwise) {
  const int there = bind_optional(L, arg, "ranks", name, LUA_TNUMBER);
  const double value = there ? lua_tonumber(L, -1) : otherwise;
  if (!(value >= 0)) luaL_error(L, "ranks: %s is %f", name, value);
  lua_pop(L, 1);
  return value;
}

/* The number of elements of options[name], which is left on the stack; 0 when it is absent. */
static lua_Integer open_list(lua_State *L, int arg, const char *name) {
  return bind_optional(L, arg, "ranks", name, LUA_TTABLE) ? (lua_Integer)lua_rawlen(L, -1) : 0;
}

static void *push_array(lua_State *L, lua_Integer count, size_t element) {
  void *array = lua_newuserdatauv(L, ((size_t)count + 1) * element, 0);
  memset(array, 0, ((size_t)count + 1) * element);
  return array;
}

/* The rank's group of this name, from the list on top of the stack; the array stays above it. */
static void read_members(lua_State *L, const char *place, int32_t rank, tl_rank_group *out) {
  const lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
  int32_t *members = push_array(L, count, sizeof *members);
  lua_insert(L, -2);
  out->size = (int32_t)count;
  out->position = -1;
  for (int32_t i = 0; i < count; i++) {
    members[i] = (int32_t)bind_element(L, place, i + 1);
    if (members[i] == rank) out->position = i;
  }
  out->ranks = members;
  lua_pop(L, 1);
}

static void refuse_unknown_groups(lua_State *L, const tl_program *program, const char *place) {
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    int32_t g = 0;
    lua_pop(L, 1);
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "a position";
    while (g < program->group_count && strcmp(program->texts[program->group_names[g]], name) != 0)
      g++;
    if (g == program->group_count) luaL_error(L, "%s: its program has no group %s", place, name);
  }
}

/* The rank on top of the stack. Lists of members are kept alive by the table at `keep`. */
static void read_rank(lua_State *L, int programs, int keep, int32_t rank, tl_rank_plan *plan) {
  char place[32];
  snprintf(place, sizeof place, "rank %d", rank);
  if (!lua_istable(L, -1)) luaL_error(L, "%s is a %s", place, luaL_typename(L, -1));
  const int table = lua_gettop(L);
  lua_rawgeti(L, programs, bind_integer(L, table, place, "program", 1));
  if (lua_isnil(L, -1)) luaL_error(L, "%s: there is no such program", place);
  plan->program = bind_check_program(L, lua_gettop(L));
  lua_pop(L, 1);
  if (!bind_optional(L, table, place, "groups", LUA_TTABLE)) {
    lua_pop(L, 1);
    lua_newtable(L);
  }
  refuse_unknown_groups(L, plan->program, place);
  for (int32_t g = 0; g < plan->program->group_count; g++) {
    const int groups = table + 1;
    const char *name = plan->program->texts[plan->program->group_names[g]];
    if (!bind_optional(L, groups, place, name, LUA_TTABLE)) {
      lua_pop(L, 1);
      lua_createtable(L, 1, 0);
      lua_pushinteger(L, rank);
      lua_rawseti(L, -2, 1);
    }
    read_members(L, place, rank, &plan->groups[g]);
    lua_rawsetp(L, keep, plan->groups[g].ranks);
  }
}

/* Where the rank on top of the stack begins in source `s`. */
static int64_t read_base(lua_State *L, int32_t s, int64_t samples, int64_t samples_first) {
  const int table = lua_gettop(L);
  const int type = lua_getfield(L, table, "sample_base");
  lua_pop(L, 1);
  if (type == LUA_TTABLE) {
    lua_getfield(L, table, "sample_base");
    const int64_t base = bind_element(L, "sample_base", s + 1);
    lua_pop(L, 1);
    return base;
  }
  const int64_t base = bind_integer(L, table, "ranks", "sample_base", 0);
  return s == 0 || samples_first == 0 ? base : base * samples / samples_first;
}

/* Feeds by rank and source; what a rank has of a source is its base and the shared rest. */
static void read_feeds(lua_State *L, int arg, int ranks, tl_ranks_options *out) {
  const int32_t sources = (int32_t)open_list(L, arg, "data");
  const int data = lua_gettop(L);
  const int64_t samples = bind_integer(L, arg, "ranks", "samples", 0);
  const lua_Integer evals = open_list(L, arg, "eval_samples");
  const int eval = lua_gettop(L);
  tl_feed *feeds = push_array(L, (lua_Integer)out->count * sources, sizeof *feeds);
  int64_t *bases = push_array(L, out->count, sizeof *bases);
  for (int32_t rank = 0; rank < out->count; rank++) {
    lua_rawgeti(L, ranks, rank + 1);
    bases[rank] = read_base(L, 0, samples, samples);
    for (int32_t s = 0; s < sources; s++) {
      tl_feed *feed = &feeds[rank * sources + s];
      lua_rawgeti(L, data, s + 1);
      feed->data = lua_toboolean(L, -1) ? bind_check_data(L, lua_gettop(L)) : NULL;
      lua_pop(L, 1);
      feed->samples = samples;
      if (s > 0) {
        if (s > evals) luaL_error(L, "ranks: eval_samples has no entry %d", s);
        lua_pushvalue(L, eval);
        feed->samples = bind_element(L, "eval_samples", s);
        lua_pop(L, 1);
      }
      feed->sample_base = read_base(L, s, feed->samples, samples);
    }
    lua_pop(L, 1);
  }
  out->feeds = feeds, out->feed_count = sources, out->sample_bases = bases;
}

/* { rank from 0, instruction from 1, kind, step from 1 (every one), element from 1 (the first) } */
static void read_faults(lua_State *L, int arg, tl_ranks_options *out) {
  const lua_Integer count = open_list(L, arg, "faults");
  const int list = lua_gettop(L);
  tl_fault *faults = push_array(L, count, sizeof *faults);
  for (lua_Integer i = 0; i < count; i++) {
    lua_rawgeti(L, list, i + 1);
    const int table = lua_gettop(L);
    luaL_checktype(L, table, LUA_TTABLE);
    faults[i].rank = (int32_t)bind_integer(L, table, "fault", "rank", 0);
    faults[i].instruction = (int32_t)bind_integer(L, table, "fault", "instruction", 1) - 1;
    faults[i].step = bind_integer(L, table, "fault", "step", 0) - 1;
    faults[i].element = bind_integer(L, table, "fault", "element", 1) - 1;
    lua_getfield(L, table, "kind");
    bind_check(L, tl_fault_find(luaL_checkstring(L, -1), &faults[i].kind));
    lua_pop(L, 2);
  }
  out->faults = faults, out->fault_count = (int32_t)count;
}

static void read_plans(lua_State *L, int programs, int ranks, tl_ranks_options *out) {
  tl_rank_plan *plans = push_array(L, out->count, sizeof *plans);
  lua_newtable(L); /* keeps the members of all groups */
  const int keep = lua_gettop(L);
  for (int32_t rank = 0; rank < out->count; rank++) {
    const int top = lua_gettop(L);
    lua_rawgeti(L, ranks, rank + 1);
    read_rank(L, programs, keep, rank, &plans[rank]);
    lua_settop(L, top);
  }
  out->plans = plans;
}

static void refuse_unknown(lua_State *L, int arg) {
  static const char *const names[] = {
      "programs",     "ranks",          "seed",          "threads",   "data",
      "samples",      "timeout_s",      "start_s",       "poison",    "eval_samples",
      "shuffle",      "delay_us",       "faults",        "gpu_first", "gemm_rows",
      "gemm_columns", "attention_rows", "gemm_provider", "job",       NULL};
  lua_pushnil(L);
  while (lua_next(L, arg)) {
    lua_pop(L, 1);
    int i = 0;
    const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "a position";
    while (names[i] != NULL && strcmp(names[i], name) != 0) i++;
    if (names[i] == NULL) luaL_error(L, "ranks: no option %s", name);
  }
}

void bind_read_ranks_options(lua_State *L, int arg, tl_ranks_options *out) {
  refuse_unknown(L, arg);
  *out = (tl_ranks_options){0};
  if (open_list(L, arg, "programs") == 0) luaL_error(L, "ranks: programs is empty");
  const int programs = lua_gettop(L);
  const lua_Integer count = open_list(L, arg, "ranks");
  const int ranks = lua_gettop(L);
  if (count < 1 || count > 4096) luaL_error(L, "ranks: %I ranks, must be 1 to 4096", count);
  out->count = (int32_t)count;
  read_plans(L, programs, ranks, out);
  read_feeds(L, arg, ranks, out);
  read_faults(L, arg, out);
  out->seed = (uint64_t)bind_integer(L, arg, "ranks", "seed", 0);
  out->cores = (int32_t)bind_integer(L, arg, "ranks", "threads", tl_cores_allowed());
  out->timeout_s = read_number(L, arg, "timeout_s", 0);
  out->start_s = read_number(L, arg, "start_s", out->timeout_s > 0 ? out->timeout_s : 300);
  if (out->timeout_s == 0) out->timeout_s = 10;
  out->poison = (int32_t)bind_integer(L, arg, "ranks", "poison", -1);
  if (out->poison < -1 || out->poison > 255)
    luaL_error(L, "ranks: poison is %d, must be a byte", out->poison);
  out->delay_us = (int32_t)bind_integer(L, arg, "ranks", "delay_us", 0);
  out->shuffle = (int32_t)bind_integer(L, arg, "ranks", "shuffle", 0);
  if (lua_getfield(L, arg, "job") != LUA_TNIL) out->job = bind_check_job(L, lua_gettop(L));
  lua_pop(L, 1);
  if (out->job != NULL && tl_job_world(out->job) != out->count)
    luaL_error(L, "ranks: %d ranks, and the job has %d", out->count, tl_job_world(out->job));
  out->gpu_first = (int32_t)bind_integer(L, arg, "ranks", "gpu_first", -1);
  out->gemm_tile[0] = (int32_t)bind_integer(L, arg, "ranks", "gemm_rows", 0);
  out->gemm_tile[1] = (int32_t)bind_integer(L, arg, "ranks", "gemm_columns", 0);
  out->attention_rows = (int32_t)bind_integer(L, arg, "ranks", "attention_rows", 0);
  out->gemm_provider = (int32_t)bind_integer(L, arg, "ranks", "gemm_provider", 0);
}
