/* interrupt.h - Ctrl-C, as a flag that loops ask for between steps.
**
** The first SIGINT sets the flag, so that a run can end at a step and save; a second one ends the
** process at once, as if nothing had been installed.
*/
#ifndef TL_INTERRUPT_H
#define TL_INTERRUPT_H

#include <stdint.h>

/* Takes over SIGINT; called once by the program, never by the loadable module. */
void tl_interrupt_install(void);
/* 1 after a SIGINT. */
int32_t tl_interrupted(void);

#endif
