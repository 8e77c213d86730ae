/* interrupt.h - Ctrl-C and its kin, as a flag that loops ask for between steps.
**
** The first SIGINT, SIGTERM or SIGHUP sets the flag, so that a run can end at a step and save; a
** second one ends the process at once, as if nothing had been installed. A signal that the process
** was started to ignore (nohup, a job in the background of a script) stays ignored.
*/
#ifndef TL_INTERRUPT_H
#define TL_INTERRUPT_H

/* Takes over the three signals; for commands that ask for the flag. Twice is fine. */
void tl_interrupt_catch(void);
/* "SIGINT", "SIGTERM" or "SIGHUP" after such a signal, else NULL. */
const char *tl_interrupted(void);

#endif
