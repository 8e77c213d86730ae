/* bind_weights.h - tensors to be written, as Lua lists them. */
#ifndef TL_BIND_WEIGHTS_H
#define TL_BIND_WEIGHTS_H

#include "../weights_file.h"
#include "bind.h"

/* The list of { name =, tensor = } or { name =, parts = { t, .. }, dim = } at `arg`. The block and
** what it points to live as long as two values on the stack: pushes both. */
const tl_weights_source *bind_read_sources(lua_State *L, int arg, int64_t *count);

/* The table { key = text } at `arg` in bytewise order of keys, NULL where it is none or nil. Pushes
** one value, which the block lives in. */
const tl_weights_text *bind_read_metadata(lua_State *L, int arg, int64_t *count);

#endif
