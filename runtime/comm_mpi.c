/* comm_mpi.c - Open MPI as a mover of bytes. A module of its own, built where its headers are.
**
** Sums never go through MPI's own reductions, whose order is not ours. Errors are returned, and end
** nothing by themselves. Programs were verified together (verify.h), so every message has the size
** that is expected; a longer one is an error of MPI.
*/
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "mover.h"

static char text[TL_MOVER_TEXT], about_text[MPI_MAX_LIBRARY_VERSION_STRING];
static MPI_Comm world;

static int check(int error, const char *what) {
  char words[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (error == MPI_SUCCESS) return 0;
  MPI_Error_string(error, words, &length);
  snprintf(text, sizeof text, "MPI, %s: %.*s", what, length, words);
  return 1;
}

static int mover_open(int32_t *rank, int32_t *size) {
  int given = 0, r = 0, n = 0;
  if (check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given), "start")) return 1;
  if (given < MPI_THREAD_SERIALIZED) {
    snprintf(text, sizeof text, "this MPI cannot be called from a thread that is not the first");
    return 1;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "copy of the world")) return 1;
  MPI_Comm_rank(world, &r);
  MPI_Comm_size(world, &n);
  *rank = r, *size = n;
  return 0;
}

static int mover_share(void *data, int32_t bytes) {
  return check(MPI_Bcast(data, bytes, MPI_BYTE, 0, world), "broadcast");
}

static int mover_send(int32_t rank, int32_t tag, const void *data, int64_t bytes, tl_move *out) {
  MPI_Request r;
  const int failed = check(MPI_Isend(data, (int)bytes, MPI_BYTE, rank, tag, world, &r), "send");
  memcpy(&out->handle, &r, sizeof out->handle);
  return failed;
}

static int mover_receive(int32_t rank, int32_t tag, void *data, int64_t bytes, tl_move *out) {
  MPI_Request r;
  const int failed = check(MPI_Irecv(data, (int)bytes, MPI_BYTE, rank, tag, world, &r), "receive");
  memcpy(&out->handle, &r, sizeof out->handle);
  return failed;
}

static int mover_test(tl_move *move) {
  MPI_Request r;
  int ended = 0;
  memcpy(&r, &move->handle, sizeof r);
  const int failed = check(MPI_Test(&r, &ended, MPI_STATUS_IGNORE), "test");
  if (ended || failed) move->handle = NULL;
  return failed;
}

/* MPI moves what it has buffered only while it is called, whatever the call. */
static void mover_push(void) {
  int there = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world, &there, MPI_STATUS_IGNORE);
}

static void mover_close(void) { MPI_Finalize(); }
static const char *mover_error(void) { return text; }

static const char *mover_about(void) {
  int length = 0;
  MPI_Get_library_version(about_text, &length);
  about_text[strcspn(about_text, ",\n")] = '\0';
  return about_text;
}

_Static_assert(sizeof(MPI_Request) == sizeof(void *), "a request of this MPI is a pointer");

const tl_mover *tl_mover_of_module(void);
const tl_mover *tl_mover_of_module(void) {
  static const tl_mover mover = {.version = TL_MOVER_VERSION,
                                 .open = mover_open,
                                 .share = mover_share,
                                 .send = mover_send,
                                 .receive = mover_receive,
                                 .test = mover_test,
                                 .push = mover_push,
                                 .close = mover_close,
                                 .error = mover_error,
                                 .about = mover_about};
  return &mover;
}
