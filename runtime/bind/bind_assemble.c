/* bind_assemble.c - logical tensors from the shards of ranks.
**
**   core.assemble(dtype, { rows [, cols] }, { { tensor, row_first, col_first, rows, cols,
**                 source_row }, ... })
**
** Each piece is `rows` rows of `cols` elements, from row source_row of its tensor (read as rows of
** `cols`), put at (row_first, col_first). Rows and columns past the logical size are left out: a
** padded shard may be handed over whole.
*/
#include "bind.h"

#include <string.h>

typedef struct piece {
  const tl_view *view;
  int64_t row_first, col_first, rows, cols, source_row;
} piece;

static int64_t field(lua_State *L, int table, const char *name, int64_t otherwise) {
  lua_getfield(L, table, name);
  const int64_t value = lua_isnil(L, -1) ? otherwise : (int64_t)luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return value;
}

static void copy_piece(const tl_view *to, int64_t rows, int64_t cols, const piece *p) {
  const int64_t bytes = tl_dtype_bytes(to->dtype);
  const int64_t width = p->col_first + p->cols > cols ? cols - p->col_first : p->cols;
  for (int64_t r = 0; r < p->rows && p->row_first + r < rows && width > 0; r++)
    memcpy((char *)to->data + ((p->row_first + r) * cols + p->col_first) * bytes,
           (const char *)p->view->data + (p->source_row + r) * p->cols * bytes,
           (size_t)(width * bytes));
}

static piece check_piece(lua_State *L, int table, tl_dtype dtype) {
  piece p;
  lua_getfield(L, table, "tensor");
  p.view = tl_tensor_view(bind_check_tensor(L, lua_gettop(L)));
  lua_pop(L, 1); /* the table keeps it alive */
  p.row_first = field(L, table, "row_first", 0);
  p.col_first = field(L, table, "col_first", 0);
  p.source_row = field(L, table, "source_row", 0);
  p.cols = field(L, table, "cols", 1);
  p.rows = field(L, table, "rows", 0);
  if (p.view->dtype != dtype) luaL_error(L, "assemble: a piece has another dtype");
  if (p.row_first < 0 || p.col_first < 0 || p.source_row < 0 || p.cols < 1 || p.rows < 0 ||
      (p.source_row + p.rows) * p.cols > tl_view_count(p.view))
    luaL_error(L, "assemble: a piece of %d x %d from row %d reaches past its tensor of %d elements",
               (int)p.rows, (int)p.cols, (int)p.source_row, (int)tl_view_count(p.view));
  return p;
}

static int assemble(lua_State *L) {
  const tl_dtype dtype = bind_check_dtype(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checktype(L, 3, LUA_TTABLE);
  int64_t shape[2] = {0, 1};
  const int32_t dims = (int32_t)lua_rawlen(L, 2);
  luaL_argcheck(L, dims == 1 || dims == 2, 2, "one or two sizes are wanted");
  for (int32_t i = 0; i < dims; i++) {
    lua_geti(L, 2, i + 1);
    shape[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  tl_tensor **out = bind_push_tensor(L);
  const int result = lua_gettop(L);
  bind_check(L, tl_tensor_new(dtype, dims, shape, out));
  const lua_Integer count = (lua_Integer)lua_rawlen(L, 3);
  for (lua_Integer i = 1; i <= count; i++) {
    lua_geti(L, 3, i);
    luaL_checktype(L, -1, LUA_TTABLE);
    const piece p = check_piece(L, lua_gettop(L), dtype);
    copy_piece(tl_tensor_view(*out), shape[0], shape[1], &p);
    lua_pop(L, 1);
  }
  lua_settop(L, result);
  return 1;
}

void bind_assemble_open(lua_State *L) {
  lua_pushcfunction(L, assemble);
  lua_setfield(L, -2, "assemble");
}
