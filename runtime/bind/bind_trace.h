/* bind_trace.h - traces in Lua: what to record, and what was recorded, as bytes. */
#ifndef TL_BIND_TRACE_H
#define TL_BIND_TRACE_H

#include "../trace.h"
#include "bind.h"

/* The options of `count` ranks from the list of tables at `arg`. They stay on the stack, as
** userdata. */
const tl_trace_options *bind_read_trace_options(lua_State *L, int arg, int32_t count);

/* Pushes what a trace knows of instructions first .. first + count - 1 of `all`: TL_RECORD_BYTES
** each, then all hashes of the trace. */
void bind_push_record(lua_State *L, const tl_trace *trace, int32_t all, lua_Integer first,
                      lua_Integer count);

#endif
