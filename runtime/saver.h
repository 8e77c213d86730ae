/* saver.h - writes a folder of files in the background: the whole folder appears, or none of it.
**
**   caller   tl_saver_open ............ goes on ............ tl_saver_wait
**   thread        mkdir F.tmp   write and sync each file   rename(F.tmp, F)   sync its folder
**
** A reader that sees the folder F sees all its files, whenever the process was killed or the disk
** was full. What a killed writer leaves is F.tmp, which the next writer of F empties first. F.tmp
** is locked: of two writers of F at a time the second fails, and nothing of the first is touched.
**
** Nothing is copied: views, names and texts of a job belong to the caller and stay as they are
** until tl_saver_wait or tl_saver_close has returned.
*/
#ifndef TL_SAVER_H
#define TL_SAVER_H

#include <stdint.h>

#include "weights_file.h"

typedef struct tl_saver tl_saver;

/* One safetensors file of the folder. */
typedef struct tl_saver_file {
  const char *name; /* without a slash */
  const tl_weights_source *sources;
  int64_t count;
  const tl_weights_text *metadata;
  int64_t metadata_count;
} tl_saver_file;

typedef struct tl_saver_text {
  const char *name; /* without a slash */
  const char *text;
  int64_t bytes;
} tl_saver_text;

typedef struct tl_saver_job {
  const char *folder; /* must not exist yet; the folder above it does */
  const tl_saver_file *files;
  int64_t file_count;
  const tl_saver_text *texts; /* written after the files, in this order */
  int64_t text_count;
} tl_saver_job;

/* Starts the thread. Fails with TL_MEMORY when there is none to be had. */
tl_status tl_saver_open(const tl_saver_job *job, tl_saver **out);
int tl_saver_busy(const tl_saver *saver);
/* Waits for the end and gives the outcome of the writing, the same each time. After a failure
** nothing of the folder is left. */
tl_status tl_saver_wait(tl_saver *saver);
void tl_saver_close(tl_saver *saver); /* waits; NULL is allowed */

#endif
