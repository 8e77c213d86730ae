/* peers_cuda.h - the GPUs of one process: one rank on each, and kernels that reach across.
**
**   rank 0, its thread   [kernel][meet][fold][meet][kernel] ..      stream of GPU 0
**                                  ^|   ^       ^
**                                  |v   | reads | boards (kernels/comm/comm_args.h)
**   rank 1, its thread   [kernel][meet][fold][meet][kernel] ..      stream of GPU 1
**
** Devices wait for each other by themselves; the threads of the ranks never meet inside a step. No
** multicast object is made and no memory is managed.
**
** Order of calls: open, one `add` for each rank, groups and channels, connect; then ends are used,
** each by its rank's thread; close after all devices are idle.
*/
#ifndef TL_PEERS_CUDA_H
#define TL_PEERS_CUDA_H

#include "cuda.h"
#include "gpu_comm.h"
#include "verify.h"

typedef struct tl_peers tl_peers;

/* For `ranks` GPUs, each of which tl_peers_add brings before any group is made. */
tl_status tl_peers_open(int32_t ranks, tl_peers **out);
void tl_peers_close(tl_peers *peers); /* NULL is allowed */

tl_status tl_peers_add(tl_peers *peers, int32_t rank, tl_cuda *cuda);
/* Group `index` of the rank's program. Groups of the same name and ranks are one. Fails for more
** than 16 ranks and, when a tree is asked for later, for a number that is no power of two. */
tl_status tl_peers_group(tl_peers *peers, int32_t rank, int32_t index, const char *name,
                         const tl_rank_group *group);
/* A channel for messages up to `bytes`; (source, target, number) are unique. */
tl_status tl_peers_channel(tl_peers *peers, int32_t source, int32_t target, int32_t number,
                           int64_t bytes);
/* Lets every GPU reach every other. Fails with the two that have no link. */
tl_status tl_peers_connect(tl_peers *peers);

tl_gpu_comm *tl_peers_end(tl_peers *peers, int32_t rank);

#endif
