/* interrupt.c - the flag is global because a signal handler has no argument to reach state by. */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t flag;

static void on_signal(int number) {
  flag = 1;
  signal(number, SIG_DFL);
}

void tl_interrupt_install(void) {
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
}

int32_t tl_interrupted(void) { return flag != 0; }
