/* comm.h - how ranks talk: groups that compute together, channels that carry activations.
**
**   world   all ranks of a run, its time limit, and the first failure (world.h)
**   comm    one rank's handle on one group: ranks [0, 2, 4, 6] of the axis "dp", say
**
**   all_gather       x (outer, piece)          y (outer, n, piece)   y[o][r] = x of rank r
**   reduce_scatter   x (outer, n, piece) f32   y (outer, piece) f32  y[o] = tree of all x[o][me]
**   all_reduce       x (count) f32             y (count) f32         tree over ranks
**   all_reduce_max   x (count) f32             y (count) f32         +0 is above -0; NaN wins
**   all_reduce_count x (count) i64             y (count) i64         sum
**   broadcast        x (count) of the root     y (count)
**   exchange         x (rows, width)           y (rows, width)       rows of experts, exchange.h
**
** The tree adds ranks pairwise, neighbours first: ((r0+r1)+(r2+r3))+((r4+r5)+(r6+r7)). It does not
** depend on size, alignment or on who folds, so n must be a power of two. For n = 1 nothing is
** added: y is a copy. y may be x in the three all_reduces and in broadcast, never partly overlap.
**
** exchange moves rows without adding any, so the way they take changes no bit:
**
**   flat           every rank pulls from every other
**   hierarchical   islands of neighbours: inside an island directly; from another island one
**                  message, to the rank with the same place in its island, which passes rows on
**                  inside
**   ring           everybody's rows go round, each rank keeps a copy of what is for it
**
** send and recv move bytes in order through a mailbox per (source, target, channel number).
**
** Every wait blocks. It ends by itself when a rank has failed or is silent for longer than the
** world's limit. Then every call on every rank returns TL_COMM, and tl_world_error names the first
** failure.
*/
#ifndef TL_COMM_H
#define TL_COMM_H

#include <stdint.h>

#include "../kernels/moe/exchange.h"
#include "status.h"
#include "team.h"

typedef struct tl_comm tl_comm;

typedef enum tl_hops { TL_HOPS_FLAT, TL_HOPS_HIERARCHICAL, TL_HOPS_RING } tl_hops;

/* One exchange: the same on all ranks but for the three buffers. */
typedef struct tl_swap {
  tl_exchange plan;
  tl_hops hops;
  int32_t island; /* ranks of an island; it divides the group */
  int32_t home;   /* 0: rows go from their homes to the owners of experts; 1: back */
  int64_t row_bytes;
  const char *x;
  char *y, *stage;                    /* stage: where rows of others stop over; NULL when flat */
  int64_t x_rows, y_rows, stage_rows; /* that there is room for */
} tl_swap;

/* The way that bytes take: out of the memory of another rank of this process (threads, GPUs that
** reach each other), from another process (on this host or another), or through this host's memory
** on their way between devices, which no transport does. */
typedef enum tl_path { TL_PATH_PEER, TL_PATH_NETWORK, TL_PATH_HOST, TL_PATH_COUNT } tl_path;

/* What a transport does; groups have more than one rank here. */
typedef struct tl_comm_kind {
  tl_path path;
  tl_status (*all_gather)(tl_comm *comm, const void *x, void *y, int64_t outer, int64_t bytes);
  tl_status (*reduce_scatter)(tl_comm *comm, const float *x, float *y, int64_t outer,
                              int64_t piece);
  tl_status (*all_reduce)(tl_comm *comm, const float *x, float *y, int64_t count);
  tl_status (*all_reduce_max)(tl_comm *comm, const float *x, float *y, int64_t count);
  tl_status (*all_reduce_count)(tl_comm *comm, const int64_t *x, int64_t *y, int64_t count);
  tl_status (*broadcast)(tl_comm *comm, const void *x, void *y, int64_t bytes, int32_t root);
  tl_status (*exchange)(tl_comm *comm, const tl_swap *swap);
  tl_status (*barrier)(tl_comm *comm);
  tl_status (*send)(tl_comm *comm, int32_t peer, int32_t channel, const void *x, int64_t bytes);
  tl_status (*recv)(tl_comm *comm, int32_t peer, int32_t channel, void *x, int64_t bytes);
  void (*close)(tl_comm *comm);
} tl_comm_kind;

struct tl_comm {
  const tl_comm_kind *kind;
  const int32_t *ranks; /* of the world, in group order */
  int32_t size;
  int32_t position; /* of this rank in the group */
  tl_team *team;    /* shares the work of folds and copies; NULL: none */
  int64_t moved;    /* bytes that this rank read from others or sent to them, since it was opened */
  int64_t exchanged[TL_PATH_COUNT]; /* those of them that were rows of experts, by path */
};

/* Every rank of the group calls the same function with the same sizes. `outer`, `piece` and `count`
** are elements, `bytes` is of one piece or one message. Fail with TL_COMM when a rank has failed
** or is silent; the trees also with TL_ARGUMENT when the group's size is not a power of two. */
tl_status tl_comm_all_gather(tl_comm *comm, const void *x, void *y, int64_t outer, int64_t bytes);
tl_status tl_comm_reduce_scatter(tl_comm *comm, const float *x, float *y, int64_t outer,
                                 int64_t piece);
tl_status tl_comm_all_reduce(tl_comm *comm, const float *x, float *y, int64_t count);
tl_status tl_comm_all_reduce_max(tl_comm *comm, const float *x, float *y, int64_t count);
tl_status tl_comm_all_reduce_count(tl_comm *comm, const int64_t *x, int64_t *y, int64_t count);
tl_status tl_comm_broadcast(tl_comm *comm, const void *x, void *y, int64_t bytes, int32_t root);
/* Fails with TL_PROGRAM when a buffer is too small for the rows that there are. */
tl_status tl_comm_exchange(tl_comm *comm, const tl_swap *swap);
tl_status tl_comm_barrier(tl_comm *comm);
/* `peer` is a position in the group. */
tl_status tl_comm_send(tl_comm *comm, int32_t peer, int32_t channel, const void *x, int64_t bytes);
tl_status tl_comm_recv(tl_comm *comm, int32_t peer, int32_t channel, void *x, int64_t bytes);
void tl_comm_close(tl_comm *comm);

/* For transports: copies the blocks that go from rank `source` to `target`. `from` is the source's
** x, or, with `packed`, these blocks alone one after the other; `to` is the target's y, or, with
** `packing`, room for them one after the other. Returns the rows. */
typedef struct tl_carry {
  const char *from;
  char *to;
  int32_t packed, packing;
} tl_carry;
int64_t tl_swap_carry(const tl_swap *swap, int32_t source, int32_t target, tl_carry carry);

/* Folds for transports: out[i] from parts[0][at + i] .. parts[n - 1][at + i]. `out` may be one of
** the parts at the same place. */
typedef void (*tl_fold)(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count);
void tl_fold_tree(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count);
void tl_fold_max(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count);
void tl_fold_count(const void *const *parts, int32_t n, int64_t at, void *out, int64_t count);

#endif
