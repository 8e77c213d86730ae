/* mover.h - bytes between processes: what a transport must be able to do, and nothing more.
**
** A mover starts transfers and tells which have ended. It adds nothing: the order of sums is
** comm_processes.c's alone. MPI is one (comm_mpi.c), a module of its own that is loaded when a run
** was started by mpirun or srun, so that the program itself needs no MPI.
*/
#ifndef TL_MOVER_H
#define TL_MOVER_H

#include <stdint.h>

enum { TL_MOVER_VERSION = 2, TL_MOVER_TEXT = 256 };

typedef struct tl_move {
  void *handle; /* NULL: ended */
} tl_move;

/* All return 0, or another number after writing what went wrong to error(). `bytes` up to 1 GiB.
** Messages from one rank to another with one tag arrive in order. One thread at a time calls. */
typedef struct tl_mover {
  int32_t version; /* TL_MOVER_VERSION */
  int (*open)(int32_t *rank, int32_t *size);
  int (*share)(void *data, int32_t bytes); /* from rank 0 to all; only before the first transfer */
  int (*send)(int32_t rank, int32_t tag, const void *data, int64_t bytes, tl_move *out);
  int (*receive)(int32_t rank, int32_t tag, void *data, int64_t bytes, tl_move *out);
  int (*test)(tl_move *move); /* sets handle to NULL when it has ended */
  void (*push)(void);         /* lets go on what nobody tests, as buffered messages of a rank that
                              ** computes; NULL: they do so by themselves */
  void (*close)(void);        /* waits for all ranks */
  const char *(*error)(void);
  const char *(*about)(void); /* "Open MPI 4.1.4" */
} tl_mover;

/* What the module exports. */
typedef const tl_mover *(*tl_mover_find)(void);

#endif
