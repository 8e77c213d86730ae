/* bind_data.h - the source that a Lua handle holds, for bindings that feed it to a run. */
#ifndef TL_BIND_DATA_H
#define TL_BIND_DATA_H

#include "../data.h"
#include "bind.h"

/* The source at `arg`; an argument error if it is closed or something else. It lives as long as the
** handle, which the caller keeps. */
tl_data *bind_check_data(lua_State *L, int arg);

#endif
