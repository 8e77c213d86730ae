/* bind_program.c - reads a program from Lua and verifies it.
**
**   core.program {
**     arena_bytes = 4096,
**     groups = { "tp", "dp" },
**     tensors = { { offset = 0, dtype = "f32", shape = { 2, 3 } }, .. },
**     sites = { "recipes/x.lua:8", .. },
**     instructions = { { op = "linear", inputs = { 1, 2 }, outputs = { 3 },
**                        attrs = { parts = 1, .. },
**                        site = 1, micro = 0, lane = 0, phase = "forward", waits = { 4 } }, .. },
**     sections = { init = { 1, 3 }, step = { 4, 20 } },        -- first and count
**     results = { loss = 5 }, name_of = { [5] = "loss" }, persistent = { 2 },
**   }
**
** In Lua tensors, sites and instructions count from 1 and 0 is an operand that is absent; groups,
** micro-batches and lanes count from 0. Trailing operands that may be absent may be left out.
** `persistent` names tensors that are filled from outside before the program runs.
**
**   program:instructions() -> count        program:arena_bytes() -> bytes
**   program:save(path, about): a file for programs without Lua (program_file.h); about is JSON
**   program:scratch() -> bytes that no section may expect to find from an earlier one
**   program:gpu_bytes() -> of a GPU's rank beside the arena: for passes of few rows, for kernels
*/
#include "bind_program.h"

#include <stdio.h>
#include <string.h>

#include "../passes_cuda.h"
#include "../program_file.h"
#include "../verify.h"
#include "bind_numbers.h"

static const char *const class_name = "tidelock.Program";

typedef struct handle {
  tl_program *program; /* NULL before creation and after close() */
  int32_t users;       /* ranks that execute it */
} handle;

const tl_program *bind_check_program(lua_State *L, int arg) {
  const handle *h = luaL_checkudata(L, arg, class_name);
  luaL_argcheck(L, h->program != NULL && h->program->verified, arg, "program is closed");
  return h->program;
}

void bind_hold_program(lua_State *L, int arg, int32_t more) {
  handle *h = luaL_checkudata(L, arg, class_name);
  h->users += more;
}

int bind_optional(lua_State *L, int table, const char *place, const char *name, int type) {
  const int found = lua_getfield(L, table, name);
  if (found != LUA_TNIL && found != type)
    luaL_error(L, "%s: %s is a %s, must be a %s", place, name, lua_typename(L, found),
               lua_typename(L, type));
  return found != LUA_TNIL;
}

static void required(lua_State *L, int table, const char *place, const char *name, int type) {
  if (!bind_optional(L, table, place, name, type)) luaL_error(L, "%s: %s is missing", place, name);
}

/* Pops the top of the stack as an integer. */
static lua_Integer pop_integer(lua_State *L, const char *place, const char *name) {
  int whole;
  const lua_Integer value = lua_tointegerx(L, -1, &whole);
  if (!whole || lua_type(L, -1) != LUA_TNUMBER)
    luaL_error(L, "%s: %s is %s, must be an integer", place, name, luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return value;
}

lua_Integer bind_integer(lua_State *L, int table, const char *place, const char *name,
                         lua_Integer otherwise) {
  if (lua_getfield(L, table, name) != LUA_TNIL) return pop_integer(L, place, name);
  lua_pop(L, 1);
  return otherwise;
}

lua_Integer bind_element(lua_State *L, const char *place, lua_Integer position) {
  lua_rawgeti(L, -1, position);
  return pop_integer(L, place, "an element");
}

static lua_Integer required_integer(lua_State *L, int table, const char *place, const char *name) {
  if (lua_getfield(L, table, name) == LUA_TNIL) luaL_error(L, "%s: %s is missing", place, name);
  return pop_integer(L, place, name);
}

static int32_t narrow(lua_State *L, const char *place, const char *name, lua_Integer value) {
  if (value < INT32_MIN / 2 || value > INT32_MAX / 2)
    luaL_error(L, "%s: %s is %I, which is out of range", place, name, (LUAI_UACINT)value);
  return (int32_t)value;
}

static void read_tensor(lua_State *L, tl_program *program, int index) {
  char place[48];
  snprintf(place, sizeof place, "tensor %d", index);
  if (!lua_istable(L, -1)) luaL_error(L, "%s is a %s", place, luaL_typename(L, -1));
  const int table = lua_gettop(L);
  const int64_t offset = required_integer(L, table, place, "offset");
  tl_dtype dtype = TL_F32;
  int64_t shape[TL_DIMS_MAX] = {0};
  required(L, table, place, "dtype", LUA_TSTRING);
  bind_check(L, tl_dtype_parse(lua_tostring(L, -1), &dtype));
  required(L, table, place, "shape", LUA_TTABLE);
  const lua_Unsigned dims = lua_rawlen(L, -1);
  for (lua_Unsigned i = 0; i < dims && i < TL_DIMS_MAX; i++)
    shape[i] = bind_element(L, place, (lua_Integer)i + 1);
  bind_check(L, tl_program_add_tensor(program, offset, dtype, (int32_t)dims, shape));
}

/* Calls `read` for every element of program[name]. */
static void each(lua_State *L, int table, const char *name, tl_program *program,
                 void (*read)(lua_State *L, tl_program *program, int index)) {
  if (bind_optional(L, table, "program", name, LUA_TTABLE)) {
    const lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
    for (lua_Integer i = 1; i <= count; i++) {
      const int top = lua_gettop(L);
      lua_rawgeti(L, -1, i);
      read(L, program, (int)i - 1);
      lua_settop(L, top);
    }
  }
  lua_pop(L, 1);
}

static void read_group(lua_State *L, tl_program *program, int index) {
  if (lua_type(L, -1) != LUA_TSTRING)
    luaL_error(L, "group %d is a %s", index, luaL_typename(L, -1));
  bind_check(L, tl_program_add_group(program, lua_tostring(L, -1)));
}

/* Sites are the first texts, so that site i of Lua is text i - 1. */
static void read_site(lua_State *L, tl_program *program, int index) {
  int32_t text;
  if (lua_type(L, -1) != LUA_TSTRING) luaL_error(L, "site %d is a %s", index, luaL_typename(L, -1));
  bind_check(L, tl_program_add_text(program, lua_tostring(L, -1), &text));
}

/* The list attrs[name] of indices from 1, counted from 0; `room` elements at least, filled with
** -1. The array stays on the stack. */
static int32_t *read_indices(lua_State *L, int table, const char *place, const char *name,
                             int32_t room, int32_t *count) {
  const int there = bind_optional(L, table, place, name, LUA_TTABLE);
  const int32_t have = there ? (int32_t)lua_rawlen(L, -1) : 0;
  const int32_t total = have > room ? have : room;
  int32_t *list = lua_newuserdatauv(L, sizeof *list * ((size_t)total + 1), 0);
  lua_insert(L, -2);
  for (int32_t i = 0; i < total; i++)
    list[i] = i < have ? narrow(L, place, name, bind_element(L, place, i + 1)) - 1 : -1;
  lua_pop(L, 1);
  *count = total;
  return list;
}

/* Text of a phase: one of a handful, so a new one is looked for among the texts after the sites. */
static int32_t find_text(lua_State *L, tl_program *program, int32_t sites, const char *text) {
  int32_t found = 0;
  for (int32_t i = sites; i < program->text_count; i++)
    if (strcmp(program->texts[i], text) == 0) return i;
  bind_check(L, tl_program_add_text(program, text, &found));
  return found;
}

/* "instruction 3 linear (x.lua:8)", for messages. */
static void place_of(const tl_program *program, tl_op op, int32_t site, char *out, size_t bytes) {
  const char *text = site >= 0 ? program->texts[site] : "no recipe line";
  snprintf(out, bytes, "instruction %d %s (%s)", program->instruction_count, tl_ops[op].name, text);
}

static void read_instruction(lua_State *L, tl_program *program, int32_t sites) {
  char place[256];
  const int table = lua_gettop(L);
  tl_instruction_parts parts = {.phase = -1};
  int32_t inputs = 0, outputs = 0;
  snprintf(place, sizeof place, "instruction %d", program->instruction_count);
  if (!lua_istable(L, table)) luaL_error(L, "%s is a %s", place, luaL_typename(L, table));
  parts.site = narrow(L, place, "site", bind_integer(L, table, place, "site", 0)) - 1;
  if (parts.site < -1 || parts.site >= sites)
    luaL_error(L, "%s: site is %d; there are %d", place, parts.site + 1, sites);
  required(L, table, place, "op", LUA_TSTRING);
  if (tl_op_find(lua_tostring(L, -1), &parts.op) != TL_OK)
    luaL_error(L, "%s (%s): %s", place,
               parts.site < 0 ? "no recipe line" : program->texts[parts.site], tl_last_error());
  place_of(program, parts.op, parts.site, place, sizeof place);
  if (!bind_optional(L, table, place, "attrs", LUA_TTABLE)) lua_newtable(L);
  const int attrs = lua_gettop(L);
  bind_refuse_unknown(L, attrs, parts.op, place);
  parts.ints = bind_read_ints(L, attrs, parts.op, place, &parts.int_count);
  parts.floats = bind_read_floats(L, attrs, parts.op, place, &parts.float_count);
  if (tl_op_operands(parts.op, 0, parts.ints, &inputs) != TL_OK ||
      tl_op_operands(parts.op, 1, parts.ints, &outputs) != TL_OK)
    luaL_error(L, "%s: %s", place, tl_last_error());
  parts.inputs = read_indices(L, table, place, "inputs", inputs, &parts.input_count);
  parts.outputs = read_indices(L, table, place, "outputs", outputs, &parts.output_count);
  parts.waits = read_indices(L, table, place, "waits", 0, &parts.wait_count);
  parts.micro = narrow(L, place, "micro", bind_integer(L, table, place, "micro", 0));
  parts.lane = narrow(L, place, "lane", bind_integer(L, table, place, "lane", 0));
  if (bind_optional(L, table, place, "phase", LUA_TSTRING))
    parts.phase = find_text(L, program, sites, lua_tostring(L, -1));
  bind_check(L, tl_program_add_instruction(program, &parts));
}

static void read_instructions(lua_State *L, int table, tl_program *program, int32_t sites) {
  required(L, table, "program", "instructions", LUA_TTABLE);
  const lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
  for (lua_Integer i = 1; i <= count; i++) {
    const int top = lua_gettop(L);
    lua_rawgeti(L, -1, i);
    read_instruction(L, program, sites);
    lua_settop(L, top);
  }
  lua_pop(L, 1);
}

static void read_sections(lua_State *L, int table, tl_program *program) {
  required(L, table, "program", "sections", LUA_TTABLE);
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    tl_section section = TL_SECTION_INIT;
    if (lua_type(L, -2) != LUA_TSTRING) luaL_error(L, "program: a section without a name");
    bind_check(L, tl_section_find(lua_tostring(L, -2), &section));
    if (!lua_istable(L, -1)) luaL_error(L, "program: a section is { first, count }");
    program->sections[section].first =
        narrow(L, "section", "first", bind_element(L, "section", 1)) - 1;
    program->sections[section].count = narrow(L, "section", "count", bind_element(L, "section", 2));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static void read_results(lua_State *L, int table, tl_program *program) {
  if (bind_optional(L, table, "program", "results", LUA_TTABLE)) {
    const int results = lua_gettop(L);
    for (int32_t r = 0; r < TL_RESULTS; r++) {
      const char *name = tl_result_name((tl_result)r);
      program->results[r] =
          narrow(L, "results", name, bind_integer(L, results, "results", name, 0)) - 1;
    }
  }
  lua_pop(L, 1);
}

static int32_t check_index(lua_State *L, const tl_program *program, const char *name,
                           lua_Integer i) {
  if (i < 1 || i > program->place_count)
    luaL_error(L, "program: %s has tensor %I; there are %d", name, (LUAI_UACINT)i,
               program->place_count);
  return (int32_t)i - 1;
}

static void read_marks(lua_State *L, int table, tl_program *program) {
  if (bind_optional(L, table, "program", "name_of", LUA_TTABLE)) {
    lua_pushnil(L);
    while (lua_next(L, -2)) {
      if (!lua_isinteger(L, -2) || lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "program: name_of maps tensors to names");
      const int32_t tensor = check_index(L, program, "name_of", lua_tointeger(L, -2));
      bind_check(L,
                 tl_program_add_text(program, lua_tostring(L, -1), &program->places[tensor].name));
      lua_pop(L, 1);
    }
  }
  lua_pop(L, 1);
  if (bind_optional(L, table, "program", "persistent", LUA_TTABLE)) {
    for (lua_Integer i = 1; i <= (lua_Integer)lua_rawlen(L, -1); i++) {
      const lua_Integer tensor = bind_element(L, "persistent", i);
      program->places[check_index(L, program, "persistent", tensor)].persistent = 1;
    }
  }
  lua_pop(L, 1);
}

static int core_program(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkstack(L, 24, "program");
  handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  *h = (handle){0};
  luaL_setmetatable(L, class_name);
  bind_check(L, tl_program_new(required_integer(L, 1, "program", "arena_bytes"), &h->program));
  each(L, 1, "sites", h->program, read_site);
  const int32_t sites = h->program->text_count;
  each(L, 1, "groups", h->program, read_group);
  each(L, 1, "tensors", h->program, read_tensor);
  read_instructions(L, 1, h->program, sites);
  read_sections(L, 1, h->program);
  read_results(L, 1, h->program);
  read_marks(L, 1, h->program);
  bind_check(L, tl_program_verify(h->program));
  return 1;
}

static int program_instructions(lua_State *L) {
  lua_pushinteger(L, bind_check_program(L, 1)->instruction_count);
  return 1;
}

static int program_arena_bytes(lua_State *L) {
  lua_pushinteger(L, bind_check_program(L, 1)->arena_bytes);
  return 1;
}

static int program_scratch(lua_State *L) {
  const tl_program *program = bind_check_program(L, 1);
  int64_t bytes = 0;
  for (int32_t i = 0; i < program->scratch_count; i++) bytes += program->scratch[i].bytes;
  lua_pushinteger(L, bytes);
  return 1;
}

static int program_gpu_bytes(lua_State *L) {
  lua_pushinteger(L, tl_passes_bytes(bind_check_program(L, 1)));
  lua_pushinteger(L, TL_CUDA_SCRATCH_BYTES);
  return 2;
}

static int program_save(lua_State *L) {
  bind_check(
      L, tl_program_save(bind_check_program(L, 1), luaL_checkstring(L, 3), luaL_checkstring(L, 2)));
  return 0;
}

static int program_close(lua_State *L) {
  handle *h = luaL_checkudata(L, 1, class_name);
  if (h->users > 0) return luaL_error(L, "the program is in use by ranks: close them first");
  tl_program_close(h->program);
  h->program = NULL;
  return 0;
}

void bind_program_open(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"instructions", program_instructions},
      {"arena_bytes",  program_arena_bytes },
      {"scratch",      program_scratch     },
      {"gpu_bytes",    program_gpu_bytes   },
      {"save",         program_save        },
      {NULL,           NULL                },
  };
  bind_class(L, class_name, methods, program_close);
  lua_pushcfunction(L, core_program);
  lua_setfield(L, -2, "program");
}
