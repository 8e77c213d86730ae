/* cores.c - reads the mask of allowed processors, decides, and pins. */
#define _GNU_SOURCE
#include "cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mask {
  cpu_set_t sets[8]; /* of 1,024 processors each: more than any machine has */
} mask;

static int read_mask(mask *m) {
  memset(m, 0, sizeof *m);
  return sched_getaffinity(0, sizeof *m, m->sets) == 0;
}

int32_t tl_cores_allowed(void) {
  mask m;
  return read_mask(&m) ? CPU_COUNT_S(sizeof m, m.sets) : 1;
}

/* Whether the variable leaves a thing on. */
static tl_status read_switch(const char *name, int32_t *on) {
  const char *text = getenv(name);
  *on = text == NULL || text[0] == '\0' || strcmp(text, "on") == 0;
  if (*on || strcmp(text, "off") == 0) return TL_OK;
  return tl_fail(TL_ARGUMENT, "%s: \"%s\" is not on or off", name, text);
}

tl_status tl_cores_place(int32_t threads, tl_placement *out) {
  int32_t pin, spin;
  const int32_t fits = threads <= tl_cores_allowed();
  TL_TRY(read_switch("TL_PIN", &pin));
  TL_TRY(read_switch("TL_SPIN", &spin));
  *out = (tl_placement){.pinned = pin && fits, .look_on = spin && fits};
  return TL_OK;
}

tl_status tl_cores_pin(pthread_t thread, int32_t place) {
  mask allowed, one;
  int32_t core = 0;
  if (!read_mask(&allowed) || place >= CPU_COUNT_S(sizeof allowed, allowed.sets))
    return tl_fail(TL_ARGUMENT, "there is no core for thread %d; TL_PIN=off runs without", place);
  for (int32_t left = place; !CPU_ISSET_S(core, sizeof allowed, allowed.sets) || left-- > 0;)
    core++;
  memset(&one, 0, sizeof one);
  CPU_SET_S(core, sizeof one, one.sets);
  if (pthread_setaffinity_np(thread, sizeof one, one.sets) != 0)
    return tl_fail(TL_ARGUMENT, "a thread cannot be pinned to core %d; TL_PIN=off runs without",
                   core);
  return TL_OK;
}

void tl_cores_name(pthread_t thread, const char *kind, int32_t number) {
  char name[16]; /* what the system has room for */
  snprintf(name, sizeof name, "%s %d", kind, number);
  pthread_setname_np(thread, name);
}
