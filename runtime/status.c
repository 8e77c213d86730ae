/* status.c - one message per thread. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[1024];
static _Thread_local tl_status last = TL_OK;

tl_status tl_fail(tl_status code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  return last = code;
}

const char *tl_last_error(void) { return message; }

tl_status tl_last_status(void) { return last; }
