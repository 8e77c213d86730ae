/* saver.c - writes a folder of files in the background. */
#define _GNU_SOURCE /* asprintf */
#include "saver.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { MESSAGE_BYTES = 1024 };

struct tl_saver {
  tl_saver_job job;
  char *temporary; /* "<folder>.tmp" */
  pthread_t thread;
  int joined;
  atomic_int busy;
  tl_status status; /* of the thread; read after it was joined */
  char message[MESSAGE_BYTES];
};

static char *join(const char *folder, const char *name) {
  char *path;
  return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* Removes all that lies in the temporary folder: files only, it was made here. */
static void empty(const tl_saver *saver) {
  tl_names names = {0};
  if (tl_file_list(saver->temporary, &names) == TL_OK)
    for (int64_t i = 0; i < names.count; i++) {
      char *path = join(saver->temporary, names.name[i]);
      if (path != NULL) unlink(path);
      free(path);
    }
  tl_names_release(&names);
}

/* The temporary folder is there, and this writer's alone: a second one would mix its files in. */
static tl_status claim(const tl_saver *saver, int32_t *lock) {
  TL_TRY(tl_file_mkdirs(saver->temporary));
  TL_TRY(tl_file_lock(saver->temporary, lock));
  return *lock >= 0 ? TL_OK : tl_fail(TL_IO, "%s: somebody else is writing it", saver->job.folder);
}

static tl_status write_text(const tl_saver *saver, const tl_saver_text *text) {
  tl_writer writer = {0};
  tl_status status = TL_OK;
  char *path = join(saver->temporary, text->name);
  if (path == NULL) return tl_fail(TL_MEMORY, "out of memory for a path");
  TL_TRY_GOTO(status, tl_writer_open(path, &writer), done);
  TL_TRY_GOTO(status, tl_writer_write(&writer, text->text, text->bytes), done);
  status = tl_writer_commit(&writer);
done:
  tl_writer_abandon(&writer);
  free(path);
  return status;
}

static tl_status write_file(const tl_saver *saver, const tl_saver_file *file) {
  char *path = join(saver->temporary, file->name);
  if (path == NULL) return tl_fail(TL_MEMORY, "out of memory for a path");
  const tl_status status =
      tl_weights_write(path, file->sources, file->count, file->metadata, file->metadata_count);
  free(path);
  return status;
}

static tl_status write_all(const tl_saver *saver) {
  empty(saver);
  for (int64_t i = 0; i < saver->job.file_count; i++)
    TL_TRY(write_file(saver, &saver->job.files[i]));
  for (int64_t i = 0; i < saver->job.text_count; i++)
    TL_TRY(write_text(saver, &saver->job.texts[i]));
  return tl_file_rename(saver->temporary, saver->job.folder);
}

static void *run(void *context) {
  tl_saver *saver = context;
  int32_t lock = -1;
  saver->status = claim(saver, &lock);
  if (saver->status == TL_OK) saver->status = write_all(saver);
  if (saver->status != TL_OK) {
    snprintf(saver->message, sizeof saver->message, "%s", tl_last_error());
    if (lock >= 0) {
      empty(saver);
      rmdir(saver->temporary);
    }
  }
  tl_file_unlock(&lock);
  atomic_store(&saver->busy, 0);
  return NULL;
}

/* Signals stay with the threads that know what to do with them. */
static int start_thread(tl_saver *saver) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&saver->thread, NULL, run, saver);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

tl_status tl_saver_open(const tl_saver_job *job, tl_saver **out) {
  tl_saver *saver = calloc(1, sizeof *saver);
  if (saver == NULL || asprintf(&saver->temporary, "%s.tmp", job->folder) < 0) {
    free(saver);
    return tl_fail(TL_MEMORY, "%s: out of memory for its writer", job->folder);
  }
  saver->job = *job;
  atomic_init(&saver->busy, 1);
  const int error = start_thread(saver);
  if (error != 0) {
    free(saver->temporary);
    free(saver);
    return tl_fail(TL_MEMORY, "%s: no thread to write it: %s", job->folder, strerror(error));
  }
  *out = saver;
  return TL_OK;
}

int tl_saver_busy(const tl_saver *saver) { return atomic_load(&saver->busy); }

tl_status tl_saver_wait(tl_saver *saver) {
  if (!saver->joined) pthread_join(saver->thread, NULL);
  saver->joined = 1;
  return saver->status == TL_OK ? TL_OK : tl_fail(saver->status, "%s", saver->message);
}

void tl_saver_close(tl_saver *saver) {
  if (saver == NULL) return;
  if (!saver->joined) pthread_join(saver->thread, NULL);
  free(saver->temporary);
  free(saver);
}
