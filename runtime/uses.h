/* uses.h - who writes and reads the bytes of an instruction's operands, inside its section.
**
** Places of the arena are used again by other tensors, so bytes are compared and not tensors. What
** is asked here is asked while a section is captured, not when it runs.
*/
#ifndef TL_USES_H
#define TL_USES_H

#include "program.h"

/* tl_call.ahead: the inputs that no earlier instruction of the section writes. 0 for operators
** whose kernels do not ask. */
uint64_t tl_uses_ahead(const tl_program *program, int32_t index);

/* Whether no instruction after the next one, up to `end`, reads what `index` makes (its first
** output). A place that is written whole may be read again. */
int32_t tl_uses_last(const tl_program *program, int32_t index, int32_t end);

#endif
