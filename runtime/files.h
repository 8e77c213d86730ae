/* files.h - what the rest asks of the file system, the clock and the machine.
**
**   read     whole files, mapped files, sorted listings and patterns
**   write    beside the target first, then renamed over it: a reader sees the old file or the new
**            one, never a part, also when the process is killed or the power fails
**
**      write(path)   path.tmp-<pid>-<n> --write, fsync--> rename(path) --> fsync(folder)
**
** Names come out in bytewise order, whatever the locale. Times are seconds in double precision.
** Failures are TL_IO with the path and the system's reason.
*/
#ifndef TL_FILES_H
#define TL_FILES_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "status.h"

/* A sorted list of names. One allocation each for the list and its names. */
typedef struct tl_names {
  char **name;
  int64_t count, capacity;
} tl_names;

void tl_names_release(tl_names *names); /* leaves an empty list; an empty list is fine */

int tl_file_exists(const char *path); /* follows links; 0 for a dangling one */
int tl_file_is_directory(const char *path);
tl_status tl_file_size(const char *path, int64_t *out);
tl_status tl_file_mtime(const char *path, double *out); /* seconds since 1970 */
/* Bytes that this user may still write on the file system where `path` lies; `path` is there. */
tl_status tl_file_free(const char *path, int64_t *out);
/* The absolute path without links; free() it. */
tl_status tl_file_realpath(const char *path, char **out);

enum { TL_SHA256_TEXT = 65 }; /* 64 hex digits and the end */
/* SHA-256 of a whole file as lower-case hex digits. */
tl_status tl_file_sha256(const char *path, char out[TL_SHA256_TEXT]);

/* Makes `path` and the folders above it; those that exist already are fine. */
tl_status tl_file_mkdirs(const char *path);
/* Names in the folder `path`, without "." and "..". Release *out. */
tl_status tl_file_list(const char *path, tl_names *out);
/* Paths that match a shell pattern; none is not a failure. Release *out. */
tl_status tl_file_glob(const char *pattern, tl_names *out);

/* Renames a file or a folder within one file system and makes the rename last. */
tl_status tl_file_rename(const char *from, const char *to);

/* A read-only view of a whole file that needs no memory of its own: pages come and go. An empty
** file has data == NULL. Where it shrinks while it is mapped, the first touch of a page that is
** gone ends the process with 1 and the name of the file. */
typedef struct tl_mapping {
  const void *data;
  int64_t bytes;
} tl_mapping;

/* Fails for what is no regular file. The caller unmaps it. */
tl_status tl_file_map(const char *path, tl_mapping *out);
void tl_file_unmap(tl_mapping *mapping); /* twice is fine */

/* A file being written beside its target. Open, write, then commit (the rename) or abandon. */
typedef struct tl_writer {
  FILE *file;
  char *path, *temporary;
} tl_writer;

tl_status tl_writer_open(const char *path, tl_writer *out);
tl_status tl_writer_write(tl_writer *writer, const void *data, int64_t bytes);
tl_status tl_writer_commit(tl_writer *writer); /* closes the writer, also on failure */
void tl_writer_abandon(tl_writer *writer);     /* removes what was written; twice is fine */

/* Adds to the end of a file, made where there is none, and returns when the disk has it. Killed on
** the way it leaves a part of `data` at the end, and never touches what was there. */
tl_status tl_file_append(const char *path, const void *data, int64_t bytes);

/* Claims a folder or a file for this process, until tl_file_unlock or its end, however it ends.
** *out is -1 when somebody else has it. Where the file system knows no locks, everybody gets it. */
tl_status tl_file_lock(const char *path, int32_t *out);
void tl_file_unlock(int32_t *lock); /* twice is fine */

int32_t tl_machine_columns(void);      /* of the terminal at stderr; 0 when there is none */
double tl_machine_seconds(void);       /* monotonic, from an arbitrary start */
void tl_machine_sleep(double seconds); /* at least this long, also when signals arrive */

#endif
