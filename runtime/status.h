/* status.h - how calls end.
**
** Whoever first sees a problem calls tl_fail once: it writes one message for this thread and
** returns the code. Everyone above hands the code up with TL_TRY or TL_TRY_GOTO.
*/
#ifndef TL_STATUS_H
#define TL_STATUS_H

typedef enum tl_status {
#define STATUS(code, text) TL_##code,
#include "status.def"
#undef STATUS
  TL_STATUS_COUNT
} tl_status;

/* Records a message for this thread (printf style, cut at 1,023 bytes) and returns `code`. */
tl_status tl_fail(tl_status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The last message of this thread; "" before the first failure, never NULL. */
const char *tl_last_error(void);

/* The code that came with it. */
tl_status tl_last_status(void);

#define TL_TRY(call)                      \
  do {                                    \
    const tl_status status_ = (call);     \
    if (status_ != TL_OK) return status_; \
  } while (0)

#define TL_TRY_GOTO(status, call, done) \
  do {                                  \
    (status) = (call);                  \
    if ((status) != TL_OK) goto done;   \
  } while (0)

#endif
