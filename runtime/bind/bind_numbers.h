/* bind_numbers.h - the numbers of an operator, from a table that names them. */
#ifndef TL_BIND_NUMBERS_H
#define TL_BIND_NUMBERS_H

#include "../../kernels/signature.h"
#include "bind.h"

/* The numbers of `op` from the table at stack index `attrs`, in the order of its row; the array
** stays on the stack, where it lives until it is popped. Raises "<place>: ..." when one is missing
** or of a wrong type. */
int64_t *bind_read_ints(lua_State *L, int attrs, tl_op op, const char *place, int32_t *count);
float *bind_read_floats(lua_State *L, int attrs, tl_op op, const char *place, int32_t *count);
/* Raises when the table names a number that the row does not have. */
void bind_refuse_unknown(lua_State *L, int attrs, tl_op op, const char *place);

#endif
