/* bind_op.c - lists the operators.
**
**     core.ops() -> list of { name, inputs, outputs, ints, floats, gradient, traits, host, cuda }
*/
#include "../../kernels/op.h"
#include "bind.h"

static void push_traits(lua_State *L, int32_t traits) {
  static const char *const names[] = {"rowwise", "tree", "whole", "comm", "data", "routed"};
  lua_newtable(L);
  for (int i = 0; i < 6; i++)
    if (traits >> i & 1) {
      lua_pushboolean(L, 1);
      lua_setfield(L, -2, names[i]);
    }
}

static void set_text(lua_State *L, const char *field, const char *text) {
  lua_pushstring(L, text);
  lua_setfield(L, -2, field);
}

static int core_ops(lua_State *L) {
  lua_createtable(L, TL_OP_COUNT, 0);
  for (int32_t op = 0; op < TL_OP_COUNT; op++) {
    const tl_op_row *row = &tl_ops[op];
    lua_createtable(L, 0, 9);
    set_text(L, "name", row->name);
    set_text(L, "inputs", row->inputs);
    set_text(L, "outputs", row->outputs);
    set_text(L, "ints", row->ints);
    set_text(L, "floats", row->floats);
    set_text(L, "gradient", row->gradient);
    push_traits(L, row->traits);
    lua_setfield(L, -2, "traits");
    lua_pushboolean(L, row->host != NULL);
    lua_setfield(L, -2, "host");
    lua_pushboolean(L, row->cuda != NULL);
    lua_setfield(L, -2, "cuda");
    lua_rawseti(L, -2, op + 1);
  }
  return 1;
}

void bind_op_open(lua_State *L) {
  lua_pushcfunction(L, core_ops);
  lua_setfield(L, -2, "ops");
}
