/* comm_nccl_warm.c - one small message between all who will ever talk, before the first step. */
#include <unistd.h>

#include "comm_nccl_inner.h"
#include "comm_warm.h"
#include "world.h"

enum {
  WORD_TYPE = 2 /* ncclInt32 */,
  LOOK_US = 20,
  WARM_S = 60,
  PEERS = TL_GROUPS_MAX * TL_PEERS_MAX
};

/* Until the stream is idle. NCCL has no limit of its own. */
static tl_status wait_for(tl_nccl *n, void *comm, void *stream, int32_t peer) {
  const int64_t end = tl_now_ns() + (int64_t)WARM_S * 1000000000;
  const tl_cuda_api *api = tl_cuda_calls(n->cuda);
  int error = 0;
  for (int idle; (idle = api->stream_query(stream)) != 0; usleep(LOOK_US)) {
    if (idle != TL_CUDA_NOT_READY) return tl_cuda_check(api, idle, "warm-up");
    TRY_NCCL(n, "state of a warm-up", state(comm, &error));
    TL_TRY(tl_nccl_check(error, "warm-up"));
    if (tl_now_ns() > end)
      return tl_fail(TL_LOST, "rank %d waited %d s for the first message between it and rank %d",
                     n->rank, WARM_S, peer);
  }
  return TL_OK;
}

static tl_status look_who(tl_nccl *n, void *stream, int32_t peer) {
  int32_t who = -1;
  TRY_CUDA(n, "copy of a word", copy_out(&who, (uint64_t)(uintptr_t)n->in, sizeof who, stream));
  TRY_CUDA(n, "copy of a word", stream_wait(stream));
  if (who == peer) return TL_OK;
  return tl_fail(TL_COMM, "the first message between rank %d and rank %d brought %d, not %d",
                 n->rank, peer, who, peer);
}

static tl_status meet_peer(tl_nccl *n, int32_t peer) {
  void *stream = tl_cuda_stream(n->cuda);
  TRY_NCCL(n, "group", begin());
  int error = n->api->send(n->out, 1, WORD_TYPE, peer, n->comm, stream);
  if (error == 0) error = n->api->recv(n->in, 1, WORD_TYPE, peer, n->comm, stream);
  TRY_NCCL(n, "group", end());
  TL_TRY(tl_nccl_check(error, "first message"));
  TL_TRY(wait_for(n, n->comm, stream, peer));
  return look_who(n, stream, peer);
}

static tl_status meet_channel(tl_nccl *n, const nccl_channel *c) {
  const int sends = n->rank == c->source;
  if (sends)
    TRY_NCCL(n, "first message of a channel", send(n->out, 1, WORD_TYPE, 1, c->comm, c->stream));
  else
    TRY_NCCL(n, "first message of a channel", recv(n->in, 1, WORD_TYPE, 0, c->comm, c->stream));
  TL_TRY(wait_for(n, c->comm, c->stream, sends ? c->target : c->source));
  return sends ? TL_OK : look_who(n, c->stream, c->source);
}

tl_status tl_nccl_warm(tl_nccl *n) {
  int32_t peers[PEERS + 1], count = 0;
  void *stream = tl_cuda_stream(n->cuda);
  TL_TRY(tl_cuda_enter(n->cuda));
  for (int32_t g = 0; g < TL_GROUPS_MAX; g++)
    for (int32_t i = 0; i < n->groups[g].n; i++)
      count = tl_warm_add(n->rank, n->groups[g].ranks[i], peers, count);
  TRY_CUDA(n, "copy of a word",
           copy_in((uint64_t)(uintptr_t)n->out, &n->rank, sizeof n->rank, stream));
  TRY_CUDA(n, "copy of a word", stream_wait(stream));
  for (int32_t i = 0; i < count; i++) TL_TRY(meet_peer(n, peers[i]));
  for (int32_t i = 0; i < n->channel_count; i++)
    if (n->channels[i].mine) TL_TRY(meet_channel(n, &n->channels[i]));
  return TL_OK;
}
