/* bind_call.c - calls one kernel from Lua.
**
**     core.call("rms_norm", { x, gain }, { y, rstd }, { eps = 1e-5 } [, { step =, seed =,
**               sample_base =, scalars = { .. }, threads = n, scratch = byte, device = "cuda",
**               repeats = n, gemm_rows = m, gemm_columns = n, attention_rows = n,
**               gemm_provider = 0 own, 1 auto, 2 cublaslt }])
** -> with repeats: milliseconds of one of as many runs on the GPU
**
** Operands stand in the order of the row in ops.def; one that is left out is `false`. All numbers
** of the row have to be given, and no others. `scratch` fills the temporary memory of all workers
** with a byte beforehand: results may not depend on it. `repeats` times the kernel of a GPU, the
** two gemm_.. are blocks.gemm, attention_rows is blocks.attention.q.
*/
#include "bind_call.h"

#include "../call_cuda.h"
#include "../cores.h"
#include "bind_cuda.h"
#include "bind_numbers.h"

static const char *const team_class = "tidelock.Team";

typedef struct team_handle {
  tl_pool *pool;
  tl_team *team;
} team_handle;

static int team_close(lua_State *L) {
  team_handle *h = luaL_checkudata(L, 1, team_class);
  tl_team_close(h->team);
  tl_pool_close(h->pool);
  *h = (team_handle){0};
  return 0;
}

/* Kept in the registry under the class's own key, by number of threads. */
tl_team *bind_team(lua_State *L, lua_Integer threads) {
  static const luaL_Reg none[] = {
      {NULL, NULL}
  };
  const lua_Integer cores = tl_cores_allowed();
  if (threads == 0) threads = cores;
  if (threads < 1 || threads > 1024) luaL_error(L, "threads is %I, must be 1 to 1024", threads);
  bind_class(L, team_class, none, team_close);
  luaL_getsubtable(L, LUA_REGISTRYINDEX, "tidelock.teams");
  if (lua_rawgeti(L, -1, threads) == LUA_TNIL) {
    team_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
    *h = (team_handle){0};
    luaL_setmetatable(L, team_class);
    tl_placement placement = {.look_on = 0};
    bind_check(L, tl_cores_place((int32_t)threads, &placement));
    bind_check(L, tl_pool_open((int32_t)threads - 1, -1, placement.look_on, &h->pool));
    bind_check(L, tl_team_open(h->pool, &h->team));
    lua_rawseti(L, -3, threads);
    lua_pop(L, 1);
    lua_rawgeti(L, -1, threads);
  }
  tl_team *team = ((team_handle *)luaL_checkudata(L, -1, team_class))->team;
  lua_pop(L, 2);
  return team;
}

/* Operands of the table at `arg`, as views; the array stays on the stack. Trailing operands that
** may be absent may be left out. */
static tl_view *read_operands(lua_State *L, int arg, tl_op op, int32_t outputs, const int64_t *ints,
                              int32_t *count) {
  bind_check(L, tl_op_operands(op, outputs, ints, count));
  tl_view *views = lua_newuserdatauv(L, sizeof *views * (size_t)(*count + 1), 0);
  const char *kind = outputs ? "outputs" : "inputs";
  if ((int64_t)lua_rawlen(L, arg) > *count)
    luaL_error(L, "%s: %I %s, takes %d: %s", tl_ops[op].name, (LUAI_UACINT)lua_rawlen(L, arg), kind,
               *count, outputs ? tl_ops[op].outputs : tl_ops[op].inputs);
  for (int32_t i = 0; i < *count; i++) {
    const tl_operand *operand = tl_op_operand(op, outputs, ints, i);
    lua_rawgeti(L, arg, i + 1);
    if (lua_toboolean(L, -1)) {
      if (!luaL_testudata(L, -1, "tidelock.Tensor"))
        luaL_error(L, "%s: entry %d of the %s (%s) is a %s, must be a tensor", tl_ops[op].name,
                   i + 1, kind, operand->name, luaL_typename(L, -1));
      views[i] = *tl_tensor_view(bind_check_tensor(L, lua_gettop(L)));
    } else if (operand->optional && !operand->many) {
      views[i] = (tl_view){.data = NULL};
    } else {
      luaL_error(L, "%s: entry %d of the %s (%s) is missing; it takes %d: %s", tl_ops[op].name,
                 i + 1, kind, operand->name, *count,
                 outputs ? tl_ops[op].outputs : tl_ops[op].inputs);
    }
    lua_pop(L, 1);
  }
  return views;
}

static int64_t option_int(lua_State *L, int options, const char *name) {
  int whole = 1;
  const int absent = lua_getfield(L, options, name) == LUA_TNIL;
  const lua_Integer value = absent ? 0 : lua_tointegerx(L, -1, &whole);
  if (!whole) luaL_error(L, "%s is %s, must be an integer", name, luaL_tolstring(L, -1, NULL));
  lua_pop(L, 1);
  return value;
}

/* The step's scalars; the array stays on the stack. */
static void read_scalars(lua_State *L, int options, tl_step *step) {
  const int absent = lua_getfield(L, options, "scalars") == LUA_TNIL;
  if (!absent && !lua_istable(L, -1)) luaL_error(L, "scalars must be a table of numbers");
  step->scalar_count = absent ? 0 : (int32_t)lua_rawlen(L, -1);
  float *scalars = lua_newuserdatauv(L, sizeof *scalars * (size_t)(step->scalar_count + 1), 0);
  for (int32_t i = 0; i < step->scalar_count; i++) {
    lua_rawgeti(L, -2, i + 1);
    scalars[i] = (float)luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  step->scalars = scalars;
}

static tl_op check_op(lua_State *L, int arg) {
  tl_op op = (tl_op)0;
  bind_check(L, tl_op_find(luaL_checkstring(L, arg), &op));
  return op;
}

static void check_options(lua_State *L, int arg) {
  static const char *const names[] = {
      "step",           "seed",          "sample_base", "scalars",   "threads",
      "scratch",        "device",        "repeats",     "gemm_rows", "gemm_columns",
      "attention_rows", "gemm_provider", NULL};
  lua_pushnil(L);
  while (lua_next(L, arg)) {
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    luaL_checkoption(L, -1, NULL, names);
    lua_pop(L, 1);
  }
}

static void fill_scratch(lua_State *L, int options, tl_team *team) {
  if (lua_getfield(L, options, "scratch") != LUA_TNIL) {
    const int byte = (int)option_int(L, options, "scratch");
    for (int32_t worker = 0; worker < tl_team_workers(team); worker++)
      memset(tl_team_scratch(team, worker), byte, TL_SCRATCH_BYTES);
  }
  lua_pop(L, 1);
}

int bind_on_gpu(lua_State *L, int options) {
  static const char *const devices[] = {"host", "cuda", NULL};
  lua_getfield(L, options, "device");
  const int device = luaL_checkoption(L, -1, "host", devices);
  lua_pop(L, 1);
  return device == 1;
}

tl_op bind_read_call(lua_State *L, int first, tl_call *call, tl_step *step) {
  const tl_op op = check_op(L, first);
  luaL_checktype(L, first + 1, LUA_TTABLE);
  luaL_checktype(L, first + 2, LUA_TTABLE);
  lua_settop(L, first + 4);
  for (int arg = first + 3; arg <= first + 4; arg++) {
    if (lua_isnil(L, arg)) {
      lua_newtable(L);
      lua_replace(L, arg);
    }
    luaL_checktype(L, arg, LUA_TTABLE);
  }
  luaL_checkstack(L, 16, "operands");
  check_options(L, first + 4);
  bind_refuse_unknown(L, first + 3, op, tl_ops[op].name);
  *step = (tl_step){.step = option_int(L, first + 4, "step"),
                    .seed = (uint64_t)option_int(L, first + 4, "seed"),
                    .sample_base = option_int(L, first + 4, "sample_base")};
  read_scalars(L, first + 4, step);
  *call = (tl_call){.step = step};
  call->ints = bind_read_ints(L, first + 3, op, tl_ops[op].name, &call->int_count);
  call->floats = bind_read_floats(L, first + 3, op, tl_ops[op].name, &call->float_count);
  call->in = read_operands(L, first + 1, op, 0, call->ints, &call->in_count);
  call->out = read_operands(L, first + 2, op, 1, call->ints, &call->out_count);
  return op;
}

void bind_need_host(lua_State *L, tl_op op) {
  if (tl_ops[op].host == NULL) luaL_error(L, "operator %s has no host kernel", tl_ops[op].name);
}

/* With `repeats`, returns the milliseconds of a run. */
static int call_on_gpu(lua_State *L, tl_op op, const tl_call *call) {
  const int64_t repeats = option_int(L, 5, "repeats");
  const tl_cuda_blocks blocks = {
      (int32_t)option_int(L, 5, "gemm_rows"), (int32_t)option_int(L, 5, "gemm_columns"),
      (int32_t)option_int(L, 5, "attention_rows"), (int32_t)option_int(L, 5, "gemm_provider")};
  tl_cuda *cuda = bind_cuda(L, 0);
  float ms = 0;
  luaL_argcheck(L, repeats >= 0 && repeats <= INT32_MAX, 5, "repeats is not a count");
  tl_cuda_set_blocks(cuda, &blocks);
  bind_check(L, tl_call_on_gpu(cuda, op, call, (int32_t)repeats, &ms));
  if (repeats == 0) return 0;
  lua_pushnumber(L, ms);
  return 1;
}

static int core_call(lua_State *L) {
  tl_call call;
  tl_step step;
  const tl_op op = bind_read_call(L, 1, &call, &step);
  if (bind_on_gpu(L, 5)) return call_on_gpu(L, op, &call);
  call.team = bind_team(L, option_int(L, 5, "threads"));
  bind_need_host(L, op);
  fill_scratch(L, 5, call.team);
  bind_check(L, tl_ops[op].host(&call));
  return 0;
}

void bind_call_open(lua_State *L) {
  lua_pushcfunction(L, core_call);
  lua_setfield(L, -2, "call");
}
