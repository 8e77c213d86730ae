/* files.c - the file system, the clock and the machine through POSIX. */
#define _GNU_SOURCE
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <sha2.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static tl_status io_failure_of(const char *path, const char *act, int reason) {
  return tl_fail(TL_IO, "%s: cannot %s: %s", path, act, strerror(reason));
}

static tl_status io_failure(const char *path, const char *act) {
  return io_failure_of(path, act, errno);
}

/* ---- names ---- */

void tl_names_release(tl_names *names) {
  for (int64_t i = 0; i < names->count; i++) free(names->name[i]);
  free(names->name);
  *names = (tl_names){0};
}

static tl_status names_add(tl_names *names, const char *name) {
  if (names->count == names->capacity) {
    const int64_t capacity = names->capacity > 0 ? 2 * names->capacity : 16;
    char **grown = realloc(names->name, (size_t)capacity * sizeof *grown);
    if (grown == NULL) return tl_fail(TL_MEMORY, "out of memory for a list of names");
    names->name = grown;
    names->capacity = capacity;
  }
  char *copy = strdup(name);
  if (copy == NULL) return tl_fail(TL_MEMORY, "out of memory for a name");
  names->name[names->count++] = copy;
  return TL_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(tl_names *names) {
  if (names->count < 2) return;
  qsort(names->name, (size_t)names->count, sizeof *names->name, compare_names);
}

/* ---- looking ---- */

int tl_file_exists(const char *path) {
  struct stat about;
  return stat(path, &about) == 0;
}

int tl_file_is_directory(const char *path) {
  struct stat about;
  return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

tl_status tl_file_size(const char *path, int64_t *out) {
  struct stat about;
  if (stat(path, &about) != 0) return io_failure(path, "look at it");
  *out = about.st_size;
  return TL_OK;
}

tl_status tl_file_mtime(const char *path, double *out) {
  struct stat about;
  if (stat(path, &about) != 0) return io_failure(path, "look at it");
  *out = (double)about.st_mtim.tv_sec + 1e-9 * (double)about.st_mtim.tv_nsec;
  return TL_OK;
}

tl_status tl_file_free(const char *path, int64_t *out) {
  struct statvfs disk;
  if (statvfs(path, &disk) != 0) return io_failure(path, "look at its disk");
  *out = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
  return TL_OK;
}

tl_status tl_file_realpath(const char *path, char **out) {
  char *resolved = realpath(path, NULL);
  if (resolved == NULL) return io_failure(path, "resolve it");
  *out = resolved;
  return TL_OK;
}

tl_status tl_file_list(const char *path, tl_names *out) {
  tl_names names = {0};
  tl_status status = TL_OK;
  DIR *folder = opendir(path);
  if (folder == NULL) return io_failure(path, "list it");
  for (;;) {
    errno = 0;
    const struct dirent *entry = readdir(folder);
    if (entry == NULL) break;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    TL_TRY_GOTO(status, names_add(&names, entry->d_name), done);
  }
  if (errno != 0) {
    status = io_failure(path, "list it");
    goto done;
  }
  names_sort(&names);
  *out = names, names = (tl_names){0};
done:
  tl_names_release(&names);
  closedir(folder);
  return status;
}

tl_status tl_file_glob(const char *pattern, tl_names *out) {
  tl_names names = {0};
  tl_status status = TL_OK;
  glob_t found = {0};
  const int result = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
  if (result == GLOB_NOSPACE)
    status = tl_fail(TL_MEMORY, "out of memory for the files of %s", pattern);
  else if (result == GLOB_ABORTED)
    status = tl_fail(TL_IO, "%s: cannot read a folder of this pattern", pattern);
  if (status != TL_OK) goto done;
  for (size_t i = 0; i < found.gl_pathc; i++)
    TL_TRY_GOTO(status, names_add(&names, found.gl_pathv[i]), done);
  names_sort(&names);
  *out = names, names = (tl_names){0};
done:
  tl_names_release(&names);
  globfree(&found);
  return status;
}

tl_status tl_file_mkdirs(const char *path) {
  char *copy = strdup(path);
  if (copy == NULL) return tl_fail(TL_MEMORY, "out of memory for a path");
  tl_status status = TL_OK;
  for (char *at = copy + 1; copy[0] != '\0' && status == TL_OK; at++) {
    const char end = *at;
    if (end != '/' && end != '\0') continue;
    *at = '\0';
    const int reason = mkdir(copy, 0777) != 0 ? errno : 0; /* the next call has an errno, too */
    if (reason != 0 && !tl_file_is_directory(copy)) status = io_failure_of(copy, "make it", reason);
    *at = end;
    if (end == '\0') break;
  }
  free(copy);
  return status;
}

/* ---- mapping ---- */

/* Mapped files by address, so that a page that is gone can be told by name. A file that finds no
** entry free is told without its name. */
enum { MAPPINGS_KNOWN = 64, PATH_SHOWN = 256 };
static struct {
  _Atomic(const char *) data;
  int64_t bytes;
  char path[PATH_SHOWN];
} known[MAPPINGS_KNOWN];
static pthread_once_t watched = PTHREAD_ONCE_INIT;

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

/* A page of a mapping has no file behind it any more. Only calls that a signal allows. */
static void lost_page(int number, siginfo_t *info, void *context) {
  const char *at = info->si_addr;
  (void)number, (void)context;
  say("tidelock: ");
  for (int i = 0; i < MAPPINGS_KNOWN; i++) {
    const char *data = atomic_load(&known[i].data);
    if (data != NULL && at >= data && at < data + known[i].bytes) say(known[i].path);
  }
  say(": the file became shorter while it was read\n");
  _exit(1);
}

static void watch_pages(void) {
  struct sigaction action = {.sa_sigaction = lost_page, .sa_flags = SA_SIGINFO};
  sigaction(SIGBUS, &action, NULL);
}

static void remember(const char *path, const void *data, int64_t bytes) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_once(&watched, watch_pages);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAPPINGS_KNOWN; i++) {
    if (atomic_load(&known[i].data) != NULL) continue;
    known[i].bytes = bytes;
    snprintf(known[i].path, sizeof known[i].path, "%s", path);
    atomic_store(&known[i].data, data);
    break;
  }
  pthread_mutex_unlock(&lock);
}

static void forget(const void *data) {
  for (int i = 0; i < MAPPINGS_KNOWN; i++) {
    if (atomic_load(&known[i].data) == data) atomic_store(&known[i].data, NULL);
  }
}

tl_status tl_file_map(const char *path, tl_mapping *out) {
  tl_status status = TL_OK;
  struct stat about;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return io_failure(path, "open it");
  if (fstat(file, &about) != 0) {
    status = io_failure(path, "look at it");
  } else if (!S_ISREG(about.st_mode)) {
    status = tl_fail(TL_IO, "%s: not a regular file", path);
  } else if (about.st_size == 0) {
    *out = (tl_mapping){0};
  } else {
    void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
      status = io_failure(path, "map it");
    else
      *out = (tl_mapping){.data = data, .bytes = about.st_size};
    if (data != MAP_FAILED) remember(path, data, about.st_size);
  }
  close(file);
  return status;
}

void tl_file_unmap(tl_mapping *mapping) {
  if (mapping->data != NULL) {
    forget(mapping->data);
    munmap((void *)(uintptr_t)mapping->data, (size_t)mapping->bytes);
  }
  *mapping = (tl_mapping){0};
}

tl_status tl_file_sha256(const char *path, char out[TL_SHA256_TEXT]) {
  tl_mapping mapping;
  TL_TRY(tl_file_map(path, &mapping));
  SHA256Data(mapping.bytes > 0 ? mapping.data : (const void *)"", (size_t)mapping.bytes, out);
  tl_file_unmap(&mapping);
  return TL_OK;
}

/* ---- writing ---- */

tl_status tl_writer_open(const char *path, tl_writer *out) {
  static _Atomic int writers; /* keeps temporary names of one process apart */
  tl_writer writer = {.path = strdup(path)};
  if (writer.path == NULL ||
      asprintf(&writer.temporary, "%s.tmp-%ld-%d", path, (long)getpid(), writers++) < 0) {
    free(writer.path);
    return tl_fail(TL_MEMORY, "out of memory for a path");
  }
  writer.file = fopen(writer.temporary, "wbe");
  if (writer.file == NULL) {
    const tl_status status = io_failure(path, "create it");
    free(writer.path);
    free(writer.temporary);
    return status;
  }
  *out = writer;
  return TL_OK;
}

tl_status tl_writer_write(tl_writer *writer, const void *data, int64_t bytes) {
  if (bytes > 0 && fwrite(data, 1, (size_t)bytes, writer->file) != (size_t)bytes)
    return io_failure(writer->path, "write it");
  return TL_OK;
}

/* Makes a rename last: the folder's entry is data of the folder. */
static tl_status sync_folder_of(const char *path) {
  char *folder = strdup(path);
  if (folder == NULL) return tl_fail(TL_MEMORY, "out of memory for a path");
  char *slash = strrchr(folder, '/');
  if (slash != NULL) slash[slash == folder ? 1 : 0] = '\0';
  tl_status status = TL_OK;
  const int file = open(slash != NULL ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0 || (fsync(file) != 0 && errno != EINVAL)) /* EINVAL: it has nothing to sync */
    status = io_failure(path, "sync its folder");
  if (file >= 0) close(file);
  free(folder);
  return status;
}

void tl_writer_abandon(tl_writer *writer) {
  if (writer->file != NULL) fclose(writer->file);
  if (writer->temporary != NULL) unlink(writer->temporary);
  free(writer->path);
  free(writer->temporary);
  *writer = (tl_writer){0};
}

tl_status tl_writer_commit(tl_writer *writer) {
  tl_status status = TL_OK;
  if (fflush(writer->file) != 0 || fsync(fileno(writer->file)) != 0)
    status = io_failure(writer->path, "write it");
  if (status == TL_OK && rename(writer->temporary, writer->path) != 0)
    status = io_failure(writer->path, "replace it");
  if (status == TL_OK) {
    free(writer->temporary), writer->temporary = NULL; /* it is the target now */
    status = sync_folder_of(writer->path);
  }
  tl_writer_abandon(writer);
  return status;
}

tl_status tl_file_rename(const char *from, const char *to) {
  TL_TRY(sync_folder_of(from));
  if (rename(from, to) != 0) return io_failure(to, "replace it");
  return sync_folder_of(to);
}

tl_status tl_file_append(const char *path, const void *data, int64_t bytes) {
  const int fresh = !tl_file_exists(path);
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return io_failure(path, "open it");
  tl_status status = TL_OK;
  for (int64_t done = 0; done < bytes && status == TL_OK;) {
    const ssize_t wrote = write(file, (const char *)data + done, (size_t)(bytes - done));
    if (wrote < 0 && errno != EINTR) status = io_failure(path, "write it");
    if (wrote > 0) done += wrote;
  }
  if (status == TL_OK && fsync(file) != 0) status = io_failure(path, "write it");
  close(file);
  return status == TL_OK && fresh ? sync_folder_of(path) : status;
}

/* ---- locks ---- */

tl_status tl_file_lock(const char *path, int32_t *out) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return io_failure(path, "open it");
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(file);
    *out = -1;
    return TL_OK;
  }
  *out = file;
  return TL_OK;
}

void tl_file_unlock(int32_t *lock) {
  if (*lock >= 0) close(*lock);
  *lock = -1;
}

/* ---- machine ---- */

int32_t tl_machine_columns(void) {
  struct winsize size;
  if (!isatty(STDERR_FILENO) || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

double tl_machine_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void tl_machine_sleep(double seconds) {
  if (!(seconds > 0)) return;
  struct timespec rest = {.tv_sec = (time_t)seconds};
  rest.tv_nsec = (long)((seconds - (double)rest.tv_sec) * 1e9);
  while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
}
