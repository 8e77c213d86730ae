/* lane.c - a queue, a thread that empties it, and one failure to report. */
#include "lane.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "cores.h"
#include "world.h"

typedef struct node {
  struct node *next;
  tl_lane_task task;
  void *context;
} node;

struct tl_lane {
  pthread_t thread;
  tl_pool *pool;
  tl_team *team; /* opened and closed by the lane's thread */
  pthread_mutex_t mutex;
  pthread_cond_t queued, ended;
  /* all that follows is guarded by the mutex */
  node *first, **end;         /* tasks that have not begun */
  int64_t submitted, done;    /* tasks */
  int64_t failed;             /* the first task that failed and was not reported; 0: none */
  tl_status status;           /* of that task */
  char error[TL_ERROR_BYTES]; /* of that task */
  int32_t open, closing;      /* the thread stands ready; it is to end */
  int32_t watchers;           /* tasks of other lanes that wait for this one */
};

static void fail(tl_lane *lane, int64_t event, tl_status status, const char *message) {
  if (lane->failed != 0) return;
  lane->failed = event, lane->status = status;
  snprintf(lane->error, sizeof lane->error, "%s", message);
}

/* Runs the first task of the queue; called and left with the mutex locked. */
static void run_first(tl_lane *lane) {
  node *n = lane->first;
  lane->first = n->next;
  if (lane->first == NULL) lane->end = &lane->first;
  const int32_t skipped = lane->failed != 0 || lane->closing;
  pthread_mutex_unlock(&lane->mutex);
  const tl_status status = n->task(n->context, lane->team, skipped);
  free(n);
  pthread_mutex_lock(&lane->mutex);
  if (status != TL_OK) fail(lane, lane->done + 1, status, tl_last_error());
  if (skipped) fail(lane, lane->done + 1, TL_ARGUMENT, "the lane was closed");
  lane->done++;
  pthread_cond_broadcast(&lane->ended);
}

static void *lane_main(void *argument) {
  tl_lane *lane = argument;
  tl_team *team = NULL;
  const tl_status status = tl_team_open(lane->pool, &team);
  pthread_mutex_lock(&lane->mutex);
  if (status != TL_OK) fail(lane, 1, status, tl_last_error());
  lane->team = team, lane->open = 1;
  pthread_cond_broadcast(&lane->ended);
  while (status == TL_OK) {
    while (lane->first == NULL && !lane->closing) pthread_cond_wait(&lane->queued, &lane->mutex);
    if (lane->first == NULL) break;
    run_first(lane);
  }
  pthread_mutex_unlock(&lane->mutex);
  tl_team_close(team);
  return NULL;
}

/* Signals stay with the caller's thread; a fault of a mapped file is the lane's own (files.c). */
static tl_status start_thread(tl_lane *lane) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int failed = pthread_create(&lane->thread, NULL, lane_main, lane);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return failed ? tl_fail(TL_MEMORY, "the thread of a lane cannot be started") : TL_OK;
}

static void free_lane(tl_lane *lane) {
  tl_pool_close(lane->pool);
  pthread_cond_destroy(&lane->ended);
  pthread_cond_destroy(&lane->queued);
  pthread_mutex_destroy(&lane->mutex);
  free(lane);
}

tl_status tl_lane_open(int32_t threads, tl_lane **out) {
  tl_placement placement;
  tl_lane *lane = calloc(1, sizeof *lane);
  if (lane == NULL) return tl_fail(TL_MEMORY, "no room for a lane");
  pthread_mutex_init(&lane->mutex, NULL);
  pthread_cond_init(&lane->queued, NULL);
  pthread_cond_init(&lane->ended, NULL);
  lane->end = &lane->first;
  tl_status status = TL_OK;
  TL_TRY_GOTO(status, tl_cores_place(threads, &placement), done);
  TL_TRY_GOTO(status, tl_pool_open(threads - 1, -1, placement.look_on, &lane->pool), done);
  TL_TRY_GOTO(status, start_thread(lane), done);
  pthread_mutex_lock(&lane->mutex);
  while (!lane->open) pthread_cond_wait(&lane->ended, &lane->mutex);
  pthread_mutex_unlock(&lane->mutex);
  if (lane->failed != 0) {
    pthread_join(lane->thread, NULL);
    TL_TRY_GOTO(status, tl_fail(lane->status, "%s", lane->error), done);
  }
  *out = lane, lane = NULL;
done:
  if (lane != NULL) free_lane(lane);
  return status;
}

void tl_lane_close(tl_lane *lane) {
  if (lane == NULL) return;
  pthread_mutex_lock(&lane->mutex);
  lane->closing = 1;
  pthread_cond_broadcast(&lane->queued);
  while (lane->done < lane->submitted || lane->watchers > 0)
    pthread_cond_wait(&lane->ended, &lane->mutex);
  pthread_mutex_unlock(&lane->mutex);
  pthread_join(lane->thread, NULL);
  free_lane(lane);
}

tl_status tl_lane_submit(tl_lane *lane, tl_lane_task task, void *context, int64_t *event) {
  node *n = malloc(sizeof *n);
  if (n == NULL) {
    (void)task(context, NULL, 1);
    return tl_fail(TL_MEMORY, "no room for a task of a lane");
  }
  *n = (node){.task = task, .context = context};
  pthread_mutex_lock(&lane->mutex);
  *lane->end = n;
  lane->end = &n->next;
  *event = ++lane->submitted;
  pthread_cond_signal(&lane->queued);
  pthread_mutex_unlock(&lane->mutex);
  return TL_OK;
}

typedef struct watch {
  tl_lane *lane;
  int64_t event;
} watch;

static tl_status watch_lane(void *context, tl_team *team, int32_t skipped) {
  const watch w = *(watch *)context;
  tl_status status = TL_OK;
  free(context);
  (void)team;
  pthread_mutex_lock(&w.lane->mutex);
  while (w.lane->done < w.event && !skipped) pthread_cond_wait(&w.lane->ended, &w.lane->mutex);
  if (!skipped && w.lane->failed != 0 && w.lane->failed <= w.event)
    status = tl_fail(w.lane->status, "the lane that this one waits for: %s", w.lane->error);
  w.lane->watchers--;
  pthread_cond_broadcast(&w.lane->ended);
  pthread_mutex_unlock(&w.lane->mutex);
  return status;
}

static tl_status check_event(tl_lane *lane, int64_t event) {
  const int64_t submitted = tl_lane_submitted(lane);
  if (event >= 0 && event <= submitted) return TL_OK;
  return tl_fail(TL_ARGUMENT, "event %lld; the lane has %lld", (long long)event,
                 (long long)submitted);
}

tl_status tl_lane_after(tl_lane *lane, tl_lane *other, int64_t event) {
  int64_t mine;
  TL_TRY(check_event(other, event));
  if (lane == other) return TL_OK; /* it stands behind that event anyway */
  watch *w = malloc(sizeof *w);
  if (w == NULL) return tl_fail(TL_MEMORY, "no room for a task of a lane");
  *w = (watch){.lane = other, .event = event};
  pthread_mutex_lock(&other->mutex);
  other->watchers++;
  pthread_mutex_unlock(&other->mutex);
  return tl_lane_submit(lane, watch_lane, w, &mine);
}

/* A failure is taken off only when all that was queued behind it has been skipped, and lanes that
** wait for it have seen it. */
tl_status tl_lane_wait(tl_lane *lane, int64_t event) {
  tl_status status = TL_OK;
  TL_TRY(check_event(lane, event));
  pthread_mutex_lock(&lane->mutex);
  while (lane->done < event) pthread_cond_wait(&lane->ended, &lane->mutex);
  if (lane->failed != 0 && lane->failed <= event) {
    while (lane->done < lane->submitted || lane->watchers > 0)
      pthread_cond_wait(&lane->ended, &lane->mutex);
    status =
        tl_fail(lane->status, "call %lld of the lane: %s", (long long)lane->failed, lane->error);
    lane->failed = 0;
  }
  pthread_mutex_unlock(&lane->mutex);
  return status;
}

int64_t tl_lane_submitted(tl_lane *lane) {
  pthread_mutex_lock(&lane->mutex);
  const int64_t submitted = lane->submitted;
  pthread_mutex_unlock(&lane->mutex);
  return submitted;
}

int64_t tl_lane_ended(tl_lane *lane) {
  pthread_mutex_lock(&lane->mutex);
  const int64_t done = lane->done;
  pthread_mutex_unlock(&lane->mutex);
  return done;
}
