/* uses.h - who writes and reads the bytes of an instruction's operands, inside its section.
**
** Places of the arena are used again by other tensors, so bytes are compared and not tensors. What
** is asked here is asked while a section is captured, not when it runs.
*/
#ifndef TL_USES_H
#define TL_USES_H

#include "../kernels/fused/fused.h"
#include "program.h"

/* tl_call.ahead: the inputs that no earlier instruction of the section writes. 0 for operators
** whose kernels do not ask, and outside generation, where little is gained. Keys and values of
** attention_cached count as such inputs where only the cache_write of the same rows writes them:
** then all that changes is the place of each row. */
uint64_t tl_uses_ahead(const tl_program *program, int32_t index);

/* What `out` says of who reads the outputs of `index`, in a section that ends at `end`. */
void tl_uses_note(const tl_program *program, int32_t index, int32_t end, tl_fused_call *out);

#endif
