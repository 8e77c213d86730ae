/* nvml.h - clock, temperature and power of a GPU, from NVML, opened at run time.
**
** These are read beside measurements and hashes; nothing is ever set. The library comes with the
** driver; where it is not, or does not know the GPU, the functions fail and say so. Source: NVML
** API reference.
*/
#ifndef TL_NVML_H
#define TL_NVML_H

#include <stdint.h>

#include "status.h"

typedef struct tl_nvml_vitals { /* -1: the GPU does not report it */
  int32_t clock_mhz;            /* of the multiprocessors, now */
  int32_t memory_mhz;
  int32_t celsius;
  int32_t milliwatts;
} tl_nvml_vitals;

/* Of the GPU at this place of the bus, "0000:1b:00.0". Takes some milliseconds the first time. */
tl_status tl_nvml_read(const char *pci, tl_nvml_vitals *out);

#endif
