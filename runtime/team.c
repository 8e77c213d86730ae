/* team.c - one pool of helpers, and the loops that teams offer it.
**
**   pool   offers: loop -> loop -> ...     one per team that is inside tl_team_for
**          helpers: sleep until some loop has tasks left, join the one with the fewest helpers
**
**   tasks  | share of worker 0 | share of worker 1 | ...     each taken from its front
**
** A worker takes its own share first, then what is left of the others: in loop after loop the same
** worker meets the same rows, which are in its core's cache. The team's own thread works too, then
** takes its loop off the list and waits until the helpers that joined have left.
**
** Who waits looks on for a moment before it sleeps, where the pool was opened so (cores.h).
*/
#include "team.h"

#include <assert.h>
#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "cores.h"
#include "memory.h"

/* Tasks next .. end - 1 of a loop; next may run past end. One cache line each. */
typedef struct share {
  _Alignas(64) _Atomic int64_t next;
  int64_t end;
} share;

typedef struct loop {
  struct loop *next;
  tl_task task;
  void *context;
  share *shares; /* of every worker of the pool, here or not */
  int32_t share_count;
  _Atomic int64_t waiting; /* tasks that nobody has taken */
  _Atomic int32_t helpers; /* inside now; guarded by the pool's mutex */
  pthread_cond_t left;     /* the last helper has left */
} loop;

typedef struct helper {
  tl_pool *pool;
  pthread_t thread;
  void *scratch;
  int32_t worker; /* 1 .. helper_count */
} helper;

struct tl_pool {
  pthread_mutex_t mutex;
  pthread_cond_t offered;
  loop *loops;
  _Atomic uint32_t offers; /* loops offered so far */
  int32_t look_on;         /* before sleeping */
  int32_t sleeping;        /* helpers that wait on `offered` */
  int32_t closing;
  int32_t helper_count; /* threads that run */
  helper helpers[];
};

struct tl_team {
  tl_pool *pool;    /* NULL: alone */
  void *scratch;    /* of worker 0 */
  uint64_t shuffle; /* state of the orders of tasks; 0: their own */
  loop loop;
};

/* Nearest even, subnormals kept: what every kernel assumes. */
static void set_arithmetic(void) { fesetenv(FE_DFL_ENV); }

static int arithmetic_is_set(void) {
  const volatile float tiny = 0x1p-140f; /* a subnormal: flushing makes it, or its half, zero */
  return fegetround() == FE_TONEAREST && tiny * 0.5f == 0x1p-141f;
}

static void run_share(loop *l, share *s, int32_t worker) {
  while (atomic_load(&s->next) < s->end) {
    const int64_t index = atomic_fetch_add(&s->next, 1);
    if (index >= s->end) return;
    atomic_fetch_sub(&l->waiting, 1);
    l->task(l->context, index, worker);
  }
}

static void run_tasks(loop *l, int32_t worker) {
  for (int32_t i = 0; i < l->share_count; i++)
    run_share(l, &l->shares[(worker + i) % l->share_count], worker);
}

static void deal(loop *l, int64_t count) {
  for (int64_t i = 0; i < l->share_count; i++) {
    atomic_store(&l->shares[i].next, count * i / l->share_count);
    l->shares[i].end = count * (i + 1) / l->share_count;
  }
  atomic_store(&l->waiting, count);
}

/* The loop with tasks left that has the fewest helpers; NULL if there is none. */
static loop *choose(const tl_pool *pool) {
  loop *best = NULL;
  for (loop *l = pool->loops; l != NULL; l = l->next)
    if (atomic_load(&l->waiting) > 0 &&
        (best == NULL || atomic_load(&l->helpers) < atomic_load(&best->helpers)))
      best = l;
  return best;
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* Looks on until there is a loop after number `seen`. */
static void await_offer(tl_pool *pool, uint32_t seen) {
  if (!pool->look_on) return;
  const int64_t until = now_ns() + TL_LOOK_ON_NS;
  while (atomic_load(&pool->offers) == seen && now_ns() < until) continue;
}

static void await_helpers(const tl_pool *pool, const loop *l) {
  if (!pool->look_on) return;
  const int64_t until = now_ns() + TL_LOOK_ON_NS;
  while (atomic_load(&l->helpers) > 0 && now_ns() < until) continue;
}

static void *helper_main(void *argument) {
  const helper *h = argument;
  tl_pool *pool = h->pool;
  set_arithmetic();
  pthread_mutex_lock(&pool->mutex);
  for (uint32_t seen = 0; !pool->closing;) {
    loop *l = choose(pool);
    if (l == NULL && seen != atomic_load(&pool->offers)) {
      seen = atomic_load(&pool->offers);
      pthread_mutex_unlock(&pool->mutex);
      await_offer(pool, seen);
      pthread_mutex_lock(&pool->mutex);
      continue;
    }
    if (l == NULL) {
      pool->sleeping++;
      pthread_cond_wait(&pool->offered, &pool->mutex);
      pool->sleeping--;
      continue;
    }
    atomic_fetch_add(&l->helpers, 1);
    pthread_mutex_unlock(&pool->mutex);
    run_tasks(l, h->worker);
    pthread_mutex_lock(&pool->mutex);
    if (atomic_fetch_sub(&l->helpers, 1) == 1) pthread_cond_signal(&l->left);
  }
  pthread_mutex_unlock(&pool->mutex);
  return NULL;
}

static tl_status start_helper(tl_pool *pool, int32_t place) {
  helper *h = &pool->helpers[pool->helper_count];
  *h = (helper){.pool = pool, .worker = pool->helper_count + 1};
  TL_TRY(tl_memory_alloc(TL_MEMORY_SCRATCH, TL_SCRATCH_BYTES, &h->scratch));
  if (pthread_create(&h->thread, NULL, helper_main, h) != 0) {
    tl_memory_free(h->scratch);
    return tl_fail(TL_MEMORY, "helper thread %d cannot be started", h->worker);
  }
  pool->helper_count++;
  tl_cores_name(h->thread, "helper", h->worker);
  return place < 0 ? TL_OK : tl_cores_pin(h->thread, place + h->worker - 1);
}

tl_status tl_pool_open(int32_t helpers, int32_t place, int32_t look_on, tl_pool **out) {
  if (helpers < 0) return tl_fail(TL_ARGUMENT, "a pool of %d helpers", helpers);
  tl_pool *pool = calloc(1, sizeof *pool + (size_t)helpers * sizeof pool->helpers[0]);
  if (pool == NULL) return tl_fail(TL_MEMORY, "no room for a pool of %d helpers", helpers);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->offered, NULL);
  pool->look_on = look_on;
  tl_status status = TL_OK;
  for (int32_t i = 0; i < helpers; i++) TL_TRY_GOTO(status, start_helper(pool, place), done);
  *out = pool, pool = NULL;
done:
  tl_pool_close(pool);
  return status;
}

void tl_pool_close(tl_pool *pool) {
  if (pool == NULL) return;
  pthread_mutex_lock(&pool->mutex);
  pool->closing = 1;
  pthread_cond_broadcast(&pool->offered);
  pthread_mutex_unlock(&pool->mutex);
  for (int32_t i = 0; i < pool->helper_count; i++) {
    pthread_join(pool->helpers[i].thread, NULL);
    tl_memory_free(pool->helpers[i].scratch);
  }
  pthread_cond_destroy(&pool->offered);
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

tl_status tl_team_open(tl_pool *pool, tl_team **out) {
  tl_team *team = calloc(1, sizeof *team);
  if (team == NULL) return tl_fail(TL_MEMORY, "no room for a team");
  team->pool = pool;
  team->loop.share_count = tl_team_workers(team);
  team->loop.shares = aligned_alloc(64, (size_t)team->loop.share_count * sizeof(share));
  tl_status status = TL_OK;
  if (team->loop.shares == NULL) status = tl_fail(TL_MEMORY, "no room for a team");
  if (status == TL_OK)
    status = tl_memory_alloc(TL_MEMORY_SCRATCH, TL_SCRATCH_BYTES, &team->scratch);
  if (status != TL_OK) {
    free(team->loop.shares);
    free(team);
    return status;
  }
  pthread_cond_init(&team->loop.left, NULL);
  set_arithmetic();
  *out = team;
  return TL_OK;
}

void tl_team_close(tl_team *team) {
  if (team == NULL) return;
  pthread_cond_destroy(&team->loop.left);
  tl_memory_free(team->scratch);
  free(team->loop.shares);
  free(team);
}

int32_t tl_team_workers(const tl_team *team) {
  return team->pool == NULL ? 1 : 1 + team->pool->helper_count;
}

void *tl_team_scratch(tl_team *team, int32_t worker) {
  return worker == 0 ? team->scratch : team->pool->helpers[worker - 1].scratch;
}

/* Puts the loop on the list and wakes as many helpers as it has use for. */
static void offer(tl_pool *pool, loop *l, int64_t count) {
  pthread_mutex_lock(&pool->mutex);
  l->next = pool->loops;
  pool->loops = l;
  atomic_fetch_add(&pool->offers, 1);
  for (int64_t i = 0; i < pool->sleeping && i < count - 1; i++) pthread_cond_signal(&pool->offered);
  pthread_mutex_unlock(&pool->mutex);
}

static void withdraw(tl_pool *pool, loop *l) {
  pthread_mutex_lock(&pool->mutex);
  loop **link = &pool->loops;
  while (*link != l) link = &(*link)->next;
  *link = l->next;
  pthread_mutex_unlock(&pool->mutex);
  await_helpers(pool, l);
  pthread_mutex_lock(&pool->mutex);
  while (atomic_load(&l->helpers) > 0) pthread_cond_wait(&l->left, &pool->mutex);
  pthread_mutex_unlock(&pool->mutex);
}

void tl_team_shuffle(tl_team *team, uint64_t seed) { team->shuffle = seed; }

/* Task i of a shuffled loop is task (i * step + first) % count: step has no divisor in common with
** count, so each comes once. */
typedef struct shuffled {
  tl_task task;
  void *context;
  int64_t count, step, first;
} shuffled;

static void run_shuffled(void *context, int64_t index, int32_t worker) {
  const shuffled *s = context;
  s->task(s->context, (index % s->count * s->step + s->first) % s->count, worker);
}

static shuffled shuffle(uint64_t *state, tl_task task, void *context, int64_t count) {
  static const int64_t primes[] = {7919, 104729, 611953, 15485863};
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  int pick = (int)(*state >> 62);
  for (int tries = 0; tries < 4 && count % primes[pick] == 0; tries++) pick = (pick + 1) % 4;
  const int64_t step = count % primes[pick] == 0 ? 1 : primes[pick];
  return (shuffled){task, context, count, step, (int64_t)((*state >> 20) % (uint64_t)count)};
}

static void run_loop(tl_team *team, int64_t count, tl_task task, void *context) {
  assert(arithmetic_is_set());
  if (count <= 1 || tl_team_workers(team) == 1) {
    for (int64_t index = 0; index < count; index++) task(context, index, 0);
    return;
  }
  loop *l = &team->loop;
  l->task = task, l->context = context;
  deal(l, count);
  offer(team->pool, l, count);
  run_tasks(l, 0);
  withdraw(team->pool, l);
}

void tl_team_for(tl_team *team, int64_t count, tl_task task, void *context) {
  if (team->shuffle == 0 || count < 2) {
    run_loop(team, count, task, context);
  } else {
    shuffled s = shuffle(&team->shuffle, task, context, count);
    run_loop(team, count, run_shuffled, &s);
  }
}
