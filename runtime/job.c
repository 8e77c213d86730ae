/* job.c - connections, the thread that watches them, and what it does about a loss. */
#define _GNU_SOURCE
#include "job.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "job_meet.h"

enum { TICK_MS = 100, LAST_WORDS_MS = 10000, TELL_NS = 500000000 };
enum { KIND_SEAT = -1, KIND_ABORT = -2, KIND_BYE = -3, KIND_LOST = -4 };

typedef struct entry {
  struct entry *next;
  tl_frame frame;
} entry;

typedef struct peer {
  int socket;           /* -1: none */
  _Atomic int32_t left; /* it has said goodbye, or is lost */
  int64_t heard_ns;
  pthread_mutex_t sending;
  entry *first, *last; /* frames that nobody has taken; guarded by the job's mutex */
} peer;

struct tl_job {
  int32_t rank, world;
  double timeout_s;
  void *module;
  const tl_mover *mover;
  pthread_t thread;
  int32_t started;
  pthread_mutex_t mutex; /* guards the queues, failure, status, watched */
  pthread_cond_t arrived;
  tl_world *watched;
  char failure[TL_ERROR_BYTES];
  tl_status status; /* of the failure */
  _Atomic int32_t failed, closing, headless;
  int32_t spread; /* the failure has been told; of the thread */
  peer peers[];   /* (world) */
};

int32_t tl_job_rank(const tl_job *job) { return job->rank; }
int32_t tl_job_world(const tl_job *job) { return job->world; }
const tl_mover *tl_job_mover(const tl_job *job) { return job->mover; }
int32_t tl_job_headless(const tl_job *job) { return atomic_load(&job->headless); }

/* --- Failures --------------------------------------------------------------------------------- */

/* Keeps the first message, and ends the world and all waits of this process. */
static void fail_here(tl_job *job, int32_t rank, tl_status status, const char *message) {
  pthread_mutex_lock(&job->mutex);
  tl_world *world = job->watched;
  if (!atomic_load(&job->failed)) {
    snprintf(job->failure, sizeof job->failure, "%s", message);
    job->status = status;
    atomic_store(&job->failed, 1);
  }
  pthread_cond_broadcast(&job->arrived);
  if (world != NULL) tl_world_abort(world, rank, status, message);
  pthread_mutex_unlock(&job->mutex);
}

void tl_job_fail(tl_job *job, const char *message) { fail_here(job, job->rank, TL_COMM, message); }

/* The world's failure is the job's, and the other way round. */
static void notice_failure(tl_job *job) {
  char text[TL_ERROR_BYTES] = "";
  int32_t rank = job->rank;
  tl_status status = TL_COMM;
  pthread_mutex_lock(&job->mutex);
  if (job->watched != NULL && tl_world_aborted(job->watched)) {
    snprintf(text, sizeof text, "%s", tl_world_error(job->watched, &rank));
    status = tl_world_status(job->watched);
  }
  pthread_mutex_unlock(&job->mutex);
  if (text[0] != '\0') fail_here(job, rank, status, text);
}

static void send_quietly(tl_job *job, int32_t rank, int32_t kind, const void *data, int64_t bytes) {
  peer *p = &job->peers[rank];
  if (p->socket < 0 || p->left) return;
  pthread_mutex_lock(&p->sending);
  if (tl_wire_send(p->socket, kind, data, bytes) != TL_OK) p->left = 1;
  pthread_mutex_unlock(&p->sending);
}

static void tell_all(tl_job *job, int32_t kind, const void *data, int64_t bytes) {
  for (int32_t r = 0; r < job->world; r++) send_quietly(job, r, kind, data, bytes);
}

static void spread_failure(tl_job *job) {
  if (job->spread || !atomic_load(&job->failed)) return;
  job->spread = 1;
  tell_all(job, job->status == TL_LOST ? KIND_LOST : KIND_ABORT, job->failure,
           (int64_t)strlen(job->failure));
}

/* Where rank was when it was heard of last; rank 0 knows all, others themselves. */
static void lose(tl_job *job, int32_t rank, const char *how) {
  char text[TL_ERROR_BYTES], place[256] = "";
  pthread_mutex_lock(&job->mutex);
  if (job->watched != NULL) tl_world_place(job->watched, rank, place, sizeof place);
  pthread_mutex_unlock(&job->mutex);
  snprintf(text, sizeof text, "rank %d is lost: %s%s%s", rank, how,
           place[0] != '\0' ? "; it was last seen in " : "", place);
  if (rank == 0) atomic_store(&job->headless, 1);
  fail_here(job, rank, TL_LOST, text);
}

/* --- The thread ------------------------------------------------------------------------------- */

static void queue_frame(tl_job *job, int32_t rank, tl_frame frame) {
  peer *p = &job->peers[rank];
  entry *e = malloc(sizeof *e);
  if (e == NULL) {
    free(frame.data);
    fail_here(job, job->rank, TL_MEMORY, "no room for a message");
    return;
  }
  *e = (entry){NULL, frame};
  pthread_mutex_lock(&job->mutex);
  if (p->first == NULL) p->first = e;
  if (p->last != NULL) p->last->next = e;
  p->last = e;
  pthread_cond_broadcast(&job->arrived);
  pthread_mutex_unlock(&job->mutex);
}

static void take_seat(tl_job *job, int32_t rank, const tl_frame *frame) {
  tl_seat seat;
  if (frame->bytes != sizeof seat) return;
  memcpy(&seat, frame->data, sizeof seat);
  pthread_mutex_lock(&job->mutex);
  if (job->watched != NULL) tl_world_tell(job->watched, rank, &seat);
  pthread_mutex_unlock(&job->mutex);
}

static void read_peer(tl_job *job, int32_t rank) {
  peer *p = &job->peers[rank];
  tl_frame frame;
  if (tl_wire_receive(p->socket, INT64_MAX - 1, &frame) != TL_OK) {
    p->left = 1;
    lose(job, rank, tl_last_error());
    return;
  }
  p->heard_ns = tl_now_ns();
  if (frame.kind >= 0) {
    queue_frame(job, rank, frame);
    return;
  }
  if (frame.kind == KIND_SEAT) take_seat(job, rank, &frame);
  if (frame.kind == KIND_ABORT) fail_here(job, rank, TL_COMM, frame.data);
  if (frame.kind == KIND_LOST) fail_here(job, rank, TL_LOST, frame.data);
  if (frame.kind == KIND_BYE) {
    p->left = 1;
    if (rank == 0) atomic_store(&job->closing, 1);
  }
  free(frame.data);
}

static void look_at_clocks(tl_job *job, int64_t *told_ns) {
  const int64_t now = tl_now_ns();
  if (now - *told_ns < TELL_NS) return;
  *told_ns = now;
  pthread_mutex_lock(&job->mutex);
  tl_world *world = job->watched;
  const tl_seat seat = world != NULL ? tl_world_seat(world, job->rank) : (tl_seat){0, -1, -1};
  if (world != NULL && job->rank == 0) tl_world_judge(world);
  pthread_mutex_unlock(&job->mutex);
  tell_all(job, KIND_SEAT, &seat, sizeof seat);
  for (int32_t r = 0; r < job->world; r++) {
    char how[96];
    peer *p = &job->peers[r];
    if (p->socket < 0 || p->left || (double)(now - p->heard_ns) / 1e9 < job->timeout_s) continue;
    snprintf(how, sizeof how, "no sign of life for %.3g s", job->timeout_s);
    p->left = 1;
    lose(job, r, how);
  }
}

static void *watch(void *argument) {
  tl_job *job = argument;
  struct pollfd *polls = calloc((size_t)job->world, sizeof *polls);
  int64_t told_ns = 0;
  while (polls != NULL && !atomic_load(&job->closing)) {
    for (int32_t r = 0; r < job->world; r++)
      polls[r] =
          (struct pollfd){.fd = job->peers[r].left ? -1 : job->peers[r].socket, .events = POLLIN};
    poll(polls, (nfds_t)job->world, TICK_MS);
    for (int32_t r = 0; r < job->world; r++)
      if (polls[r].revents != 0) read_peer(job, r);
    look_at_clocks(job, &told_ns);
    notice_failure(job);
    spread_failure(job);
  }
  free(polls);
  pthread_mutex_lock(&job->mutex);
  pthread_cond_broadcast(&job->arrived);
  pthread_mutex_unlock(&job->mutex);
  return NULL;
}

/* --- For the caller --------------------------------------------------------------------------- */

/* After the first failure neither its text nor its status changes. */
static tl_status failure(const tl_job *job) { return tl_fail(job->status, "%s", job->failure); }

tl_status tl_job_send(tl_job *job, int32_t rank, int32_t kind, const void *data, int64_t bytes) {
  peer *p = &job->peers[rank];
  pthread_mutex_lock(&p->sending);
  const tl_status status = p->left ? tl_fail(TL_COMM, "it has left the run")
                                   : tl_wire_send(p->socket, kind, data, bytes);
  if (status != TL_OK) p->left = 1;
  pthread_mutex_unlock(&p->sending);
  if (status == TL_OK) return TL_OK;
  lose(job, rank, tl_last_error());
  return failure(job);
}

tl_status tl_job_receive(tl_job *job, int32_t rank, tl_frame *out) {
  peer *p = &job->peers[rank];
  tl_status status = TL_OK;
  pthread_mutex_lock(&job->mutex);
  while (p->first == NULL && !atomic_load(&job->failed) && !atomic_load(&job->closing))
    pthread_cond_wait(&job->arrived, &job->mutex);
  entry *e = p->first;
  if (e != NULL) {
    p->first = e->next;
    if (p->first == NULL) p->last = NULL;
    *out = e->frame;
  } else {
    status =
        atomic_load(&job->failed) ? failure(job) : tl_fail(TL_COMM, "rank 0 has ended the run");
  }
  pthread_mutex_unlock(&job->mutex);
  free(e);
  return status;
}

void tl_job_watch(tl_job *job, tl_world *world) {
  if (world == NULL) notice_failure(job); /* it may be younger than the thread's last look */
  pthread_mutex_lock(&job->mutex);
  job->watched = world;
  pthread_mutex_unlock(&job->mutex);
}

static tl_status gather_at_root(tl_job *job, char **list) {
  for (int32_t r = 1; r < job->world; r++) {
    tl_frame frame;
    TL_TRY(tl_job_receive(job, r, &frame));
    list[r] = frame.data;
  }
  for (int32_t r = 1; r < job->world; r++)
    for (int32_t k = 0; k < job->world; k++)
      TL_TRY(tl_job_send(job, r, 0, list[k], (int64_t)strlen(list[k])));
  return TL_OK;
}

static tl_status gather_elsewhere(tl_job *job, char **list) {
  TL_TRY(tl_job_send(job, 0, 0, list[job->rank], (int64_t)strlen(list[job->rank])));
  for (int32_t k = 0; k < job->world; k++) {
    tl_frame frame;
    TL_TRY(tl_job_receive(job, 0, &frame));
    free(list[k]);
    list[k] = frame.data;
  }
  return TL_OK;
}

tl_status tl_job_gather(tl_job *job, const char *mine, char ***texts) {
  char **list = calloc((size_t)job->world, sizeof *list);
  if (list != NULL) list[job->rank] = strdup(mine);
  if (list == NULL || list[job->rank] == NULL) {
    free(list);
    return tl_fail(TL_MEMORY, "no room for the texts of %d ranks", job->world);
  }
  *texts = list;
  return job->rank == 0 ? gather_at_root(job, list) : gather_elsewhere(job, list);
}

/* --- Opening ---------------------------------------------------------------------------------- */

static tl_status load_mover(tl_job *job, const char *path) {
  tl_mover_find find;
  int32_t rank = 0, world = 0;
  job->module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (job->module == NULL)
    return tl_fail(TL_COMM,
                   "this run was started by mpirun or srun, and %s cannot be loaded: %s; install "
                   "libopenmpi-dev and openmpi-bin, then build with TL_MPI=on ./tl help",
                   path, dlerror());
  void *symbol = dlsym(job->module, "tl_mover_of_module");
  memcpy(&find, &symbol, sizeof find);
  if (symbol == NULL || find()->version != TL_MOVER_VERSION)
    return tl_fail(TL_COMM, "%s belongs to another build", path);
  job->mover = find();
  if (job->mover->open(&rank, &world)) return tl_fail(TL_COMM, "%s", job->mover->error());
  if (rank == job->rank && world == job->world) return TL_OK;
  return tl_fail(TL_COMM,
                 "the launcher's variables say rank %d of %d, MPI says rank %d of %d: was this "
                 "program started by another MPI than it was built with (%s)?",
                 job->rank, job->world, rank, world, job->mover->about());
}

static tl_status open_job(tl_job *job, const tl_job_options *o) {
  if (o->module != NULL) TL_TRY(load_mover(job, o->module));
  int *sockets = malloc((size_t)job->world * sizeof *sockets);
  if (sockets == NULL) return tl_fail(TL_MEMORY, "no room for a job");
  const tl_job_meeting meeting = {job->rank,  job->world, job->mover,
                                  o->address, o->port,    o->start_s};
  const tl_status status = tl_job_meet(&meeting, sockets);
  for (int32_t r = 0; status == TL_OK && r < job->world; r++) {
    job->peers[r].socket = sockets[r];
    job->peers[r].heard_ns = tl_now_ns();
  }
  free(sockets);
  if (status != TL_OK) return status;
  if (pthread_create(&job->thread, NULL, watch, job) != 0)
    return tl_fail(TL_MEMORY, "the thread that watches the ranks cannot be started");
  job->started = 1;
  return TL_OK;
}

tl_status tl_job_open(const tl_job_options *o, tl_job **out) {
  tl_job *job = calloc(1, sizeof *job + (size_t)o->world * sizeof job->peers[0]);
  if (job == NULL) return tl_fail(TL_MEMORY, "no room for a job of %d ranks", o->world);
  job->rank = o->rank, job->world = o->world, job->timeout_s = o->timeout_s;
  pthread_mutex_init(&job->mutex, NULL);
  pthread_cond_init(&job->arrived, NULL);
  for (int32_t r = 0; r < o->world; r++) {
    job->peers[r].socket = -1;
    pthread_mutex_init(&job->peers[r].sending, NULL);
  }
  const tl_status status = open_job(job, o);
  if (status == TL_OK) {
    *out = job;
    return TL_OK;
  }
  tl_job_close(job, 1);
  return status;
}

static void free_queue(peer *p) {
  for (entry *e = p->first, *next; e != NULL; e = next) {
    next = e->next;
    free(e->frame.data);
    free(e);
  }
}

/* Tells the others. A launcher ends all processes when the first one ends badly, so rank 0, which
** has something to say, goes before the others. */
static void end_badly(tl_job *job) {
  fail_here(job, job->rank, TL_COMM, "this rank has failed");
  int32_t waited_ms = 0;
  do {
    nanosleep(&(struct timespec){.tv_nsec = TICK_MS * 1000000}, NULL);
    waited_ms += TICK_MS;
  } while (waited_ms < 3 * TICK_MS ||
           (job->rank != 0 && !job->peers[0].left && waited_ms < LAST_WORDS_MS));
}

void tl_job_close(tl_job *job, int32_t failed) {
  if (job == NULL) return;
  if (job->started) {
    if (!failed && !atomic_load(&job->failed)) tell_all(job, KIND_BYE, "", 0);
    if (failed) end_badly(job);
    atomic_store(&job->closing, 1);
    pthread_join(job->thread, NULL);
  }
  if (job->mover != NULL && !failed && !atomic_load(&job->failed)) job->mover->close();
  for (int32_t r = 0; r < job->world; r++) {
    tl_wire_close(job->peers[r].socket);
    free_queue(&job->peers[r]);
    pthread_mutex_destroy(&job->peers[r].sending);
  }
  pthread_cond_destroy(&job->arrived);
  pthread_mutex_destroy(&job->mutex);
  free(job);
}
