/* limit.h - how long a silent rank is waited for.
**
**   first run of a section     start_s
**   later runs                 the larger of timeout_s and 20 times the median of the last runs
*/
#ifndef TL_LIMIT_H
#define TL_LIMIT_H

#include "program.h"

enum { TL_LIMIT_RUNS = 15 };

typedef struct tl_limit {
  double timeout_s, start_s;
  int64_t runs[TL_SECTIONS];
  int64_t ns[TL_SECTIONS][TL_LIMIT_RUNS]; /* of the last runs, in any order */
} tl_limit;

/* Seconds that the next run of the section may take. */
double tl_limit_of(const tl_limit *limit, tl_section section);
/* A run has ended well. */
void tl_limit_note(tl_limit *limit, tl_section section, int64_t ns);

#endif
