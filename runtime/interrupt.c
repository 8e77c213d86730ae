/* interrupt.c - the flag is global because a signal handler has no argument to reach state by. */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

static const struct {
  int number;
  const char *name;
} caught[] = {
    {SIGINT,  "SIGINT" },
    {SIGTERM, "SIGTERM"},
    {SIGHUP,  "SIGHUP" },
};
enum { CAUGHT = sizeof caught / sizeof caught[0] };

static volatile sig_atomic_t flag; /* the number of the signal */

static void on_signal(int number) {
  flag = number;
  for (int i = 0; i < CAUGHT; i++) signal(caught[i].number, SIG_DFL); /* the next one ends it */
}

void tl_interrupt_catch(void) {
  for (int i = 0; i < CAUGHT; i++) {
    struct sigaction action;
    if (sigaction(caught[i].number, NULL, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = (struct sigaction){.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(caught[i].number, &action, NULL);
  }
}

const char *tl_interrupted(void) {
  for (int i = 0; i < CAUGHT; i++)
    if (flag == caught[i].number) return caught[i].name;
  return NULL;
}
