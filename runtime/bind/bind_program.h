/* bind_program.h - programs, for bindings that take them. */
#ifndef TL_BIND_PROGRAM_H
#define TL_BIND_PROGRAM_H

#include "../program.h"
#include "bind.h"

/* The verified program at `arg`; an argument error if it is closed or something else. */
const tl_program *bind_check_program(lua_State *L, int arg);

/* Counts a user more (1) or less (-1): a program in use cannot be closed. */
void bind_hold_program(lua_State *L, int arg, int32_t more);

/* Pushes t[name], or nil, after checking that it is of the type or absent; 1 if it is there.
** `place` begins the message. */
int bind_optional(lua_State *L, int table, const char *place, const char *name, int type);
/* t[name] as an integer; `otherwise` when it is absent. */
lua_Integer bind_integer(lua_State *L, int table, const char *place, const char *name,
                         lua_Integer otherwise);
/* Element `position` (from 1) of the table on top of the stack, as an integer. */
lua_Integer bind_element(lua_State *L, const char *place, lua_Integer position);

#endif
