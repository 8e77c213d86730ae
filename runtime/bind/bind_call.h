/* bind_call.h - the arguments of core.call, for it and for calls on a lane. */
#ifndef TL_BIND_CALL_H
#define TL_BIND_CALL_H

#include "../../kernels/op.h"
#include "bind.h"

/* Reads operator, inputs, outputs, numbers and options from stack index `first` on, or raises.
** Afterwards the options are at first + 4, and what `call` points to stands above them; it has no
** team yet. */
tl_op bind_read_call(lua_State *L, int first, tl_call *call, tl_step *step);
/* Raises when the operator is one of the executor. */
void bind_need_host(lua_State *L, tl_op op);
/* Whether the options at this index say device = "cuda". */
int bind_on_gpu(lua_State *L, int options);

#endif
