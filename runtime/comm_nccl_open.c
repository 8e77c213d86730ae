/* comm_nccl_open.c - opens communicators, channels and staging, and closes them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm_nccl_inner.h"
#include "memory.h"

static tl_status alloc(tl_nccl *n, int64_t bytes, void *out) {
  void *memory;
  TL_TRY(tl_cuda_alloc(n->cuda, bytes, &memory));
  n->bytes += bytes;
  tl_memory_note(TL_MEMORY_COMM, bytes);
  memcpy(out, &memory, sizeof memory);
  return TL_OK;
}

/* Ids of the world's communicator and of every channel's: made by rank 0, known by all. */
static tl_status share_ids(tl_nccl *n, tl_job *job, tl_nccl_id *ids, int32_t count) {
  const size_t length = (size_t)count * sizeof *ids;
  char *text = calloc(1, 2 * length + 1), **texts = NULL;
  if (text == NULL) return tl_fail(TL_MEMORY, "no room for ids");
  tl_status status = TL_OK;
  for (int32_t i = 0; n->rank == 0 && i < count && status == TL_OK; i++)
    status = tl_nccl_check(n->api->make_id(&ids[i]), "id");
  for (size_t i = 0; n->rank == 0 && i < length; i++)
    snprintf(text + 2 * i, 3, "%02x", ((unsigned char *)ids)[i]);
  if (status == TL_OK) status = tl_job_gather(job, text, &texts);
  if (status == TL_OK && strlen(texts[0]) != 2 * length)
    status = tl_fail(TL_COMM, "rank 0 knows another number of channels");
  for (size_t i = 0; status == TL_OK && i < length; i++) {
    unsigned value = 0;
    sscanf(texts[0] + 2 * i, "%2x", &value);
    ((unsigned char *)ids)[i] = (unsigned char)value;
  }
  for (int32_t r = 0; texts != NULL && r < n->ranks; r++) free(texts[r]);
  free(texts);
  free(text);
  return status;
}

static tl_status open_channel(tl_nccl *n, nccl_channel *c, int64_t bytes, tl_nccl_id id) {
  c->mine = n->rank == c->source || n->rank == c->target;
  if (!c->mine) return TL_OK;
  c->slot_bytes = (bytes + 63) / 64 * 64;
  if (n->rank == c->source) TL_TRY(alloc(n, TL_SLOTS * c->slot_bytes, &c->slots));
  TRY_CUDA(n, "stream", stream_create(&c->stream, TL_CUDA_STREAM_NON_BLOCKING));
  TRY_CUDA(n, "event", event_create(&c->ready, TL_CUDA_EVENT_PLAIN));
  for (int32_t k = 0; k < TL_SLOTS; k++)
    TRY_CUDA(n, "event", event_create(&c->done[k], TL_CUDA_EVENT_PLAIN));
  TRY_NCCL(n, "communicator of a channel", open(&c->comm, 2, id, n->rank == c->target));
  return TL_OK;
}

static tl_status open_all(tl_nccl *n, tl_job *job, const tl_channel *channels, int32_t count) {
  void *pinned;
  TL_TRY(tl_cuda_enter(n->cuda));
  TL_TRY(alloc(n, STAGING_BYTES, &n->out));
  TL_TRY(alloc(n, STAGING_BYTES, &n->in));
  TL_TRY(alloc(n, TL_PEERS_MAX * (int64_t)sizeof *n->rows, &n->rows));
  TRY_CUDA(n, "pinned memory", host_alloc(&pinned, sizeof *n->progress, TL_CUDA_HOST_PORTABLE));
  n->progress = pinned;
  *n->progress = (tl_peer_progress){.instruction = -1, .waits_for = -1};
  n->channels = calloc((size_t)count + 1, sizeof *n->channels);
  tl_nccl_id *ids = calloc((size_t)count + 1, sizeof *ids);
  if (n->channels == NULL || ids == NULL) {
    free(ids);
    return tl_fail(TL_MEMORY, "no room for channels");
  }
  n->channel_count = count;
  tl_status status = share_ids(n, job, ids, count + 1);
  if (status == TL_OK)
    status = tl_nccl_check(n->api->open(&n->comm, n->ranks, ids[0], n->rank),
                           "communicator of all ranks");
  for (int32_t i = 0; i < count && status == TL_OK; i++) {
    nccl_channel *c = &n->channels[i];
    c->source = channels[i].source, c->target = channels[i].target;
    c->number = channels[i].number;
    status = open_channel(n, c, channels[i].bytes_max, ids[i + 1]);
  }
  free(ids);
  return status;
}

tl_status tl_nccl_open(tl_job *job, tl_cuda *cuda, const tl_channel *channels,
                       int32_t channel_count, tl_nccl **out) {
  tl_nccl *n = calloc(1, sizeof *n);
  if (n == NULL) return tl_fail(TL_MEMORY, "no room for NCCL");
  n->base.kind = &tl_nccl_kind, n->cuda = cuda;
  n->rank = tl_job_rank(job), n->ranks = tl_job_world(job);
  tl_status status = tl_nccl_find(&n->api);
  if (status == TL_OK) status = open_all(n, job, channels, channel_count);
  if (status == TL_OK) {
    *out = n;
    return TL_OK;
  }
  tl_nccl_close(n);
  return status;
}

static void close_channel(tl_nccl *n, nccl_channel *c) {
  const tl_cuda_api *api = tl_cuda_calls(n->cuda);
  if (c->comm != NULL && !n->stopped) n->api->close(c->comm);
  if (c->ready != NULL) api->event_destroy(c->ready);
  for (int32_t k = 0; k < TL_SLOTS; k++)
    if (c->done[k] != NULL) api->event_destroy(c->done[k]);
  if (c->stream != NULL) api->stream_destroy(c->stream);
  tl_cuda_free(n->cuda, c->slots);
}

void tl_nccl_close(tl_nccl *n) {
  if (n == NULL) return;
  if (tl_cuda_enter(n->cuda) == TL_OK) {
    for (int32_t i = 0; i < n->channel_count; i++) close_channel(n, &n->channels[i]);
    if (n->comm != NULL && !n->stopped) n->api->close(n->comm);
    if (n->progress != NULL) tl_cuda_calls(n->cuda)->host_free(n->progress);
    tl_cuda_free(n->cuda, n->rows);
    tl_cuda_free(n->cuda, n->in);
    tl_cuda_free(n->cuda, n->out);
  }
  tl_memory_note(TL_MEMORY_COMM, -n->bytes);
  free(n->channels);
  free(n);
}

tl_status tl_nccl_group(tl_nccl *n, int32_t index, const tl_rank_group *from) {
  nccl_group *g = &n->groups[index];
  if (from->size > TL_PEERS_MAX)
    return tl_fail(TL_ARGUMENT, "a group has %d ranks; GPUs: at most %d", from->size, TL_PEERS_MAX);
  g->n = from->size, g->position = from->position;
  memcpy(g->ranks, from->ranks, (size_t)g->n * sizeof *g->ranks);
  return TL_OK;
}

tl_gpu_comm *tl_nccl_end(tl_nccl *n) { return &n->base; }
