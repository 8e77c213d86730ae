/* wire.h - framed messages between two processes of a run, over TCP.
**
**   | magic | kind | size | size bytes |       header of 16 bytes, as this machine has integers
**
** Only words of the run go this way: who is there, what to do next, who has failed, and the tensors
** that a caller asks to see. Activations and sums never do (comm_mpi.c, comm_nccl.h). A frame that
** does not begin with the magic ends the connection: somebody else has dialled.
*/
#ifndef TL_WIRE_H
#define TL_WIRE_H

#include <pthread.h>
#include <stdint.h>

#include "status.h"

enum { TL_WIRE_HEAD = 16 };

typedef struct tl_frame {
  int32_t kind;
  int64_t bytes;
  char *data; /* malloc'd, one zero byte behind; the receiver frees it */
} tl_frame;

/* Listens on the first free port of first .. first + tries - 1; first 0: any port. */
tl_status tl_wire_listen(int32_t first, int32_t tries, int *socket, int32_t *port);
/* Waits up to `ms` for a connection; *out -1: nobody came. */
tl_status tl_wire_accept(int socket, int32_t ms, int *out);
/* One try; *out -1: nobody listens there. `host` is a name or an address. */
tl_status tl_wire_dial(const char *host, int32_t port, int *out);
void tl_wire_close(int socket); /* -1 is allowed */

/* Both wait up to 20 s for the other side to take or give bytes. Fail with TL_COMM when it has gone
** or speaks otherwise; what claims to be longer than `most` bytes is no message, and gets no
** room. */
tl_status tl_wire_send(int socket, int32_t kind, const void *data, int64_t bytes);
tl_status tl_wire_receive(int socket, int64_t most, tl_frame *out);
/* The same for a caller of whom nothing is known: takes what has come of the one message that it
** may say, of `kind` and `bytes`, and never waits. *got counts what was taken, from 0. 1: the
** message is whole in `data`; 0: not yet; -1: the caller has gone, or says something else. */
int tl_wire_hear(int socket, int32_t kind, void *data, int64_t bytes, int64_t *got);

/* Addresses of this machine, "192.0.2.1 10.0.0.7", the loopback's last. */
void tl_wire_addresses(char *out, int32_t bytes);

#endif
