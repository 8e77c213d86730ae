/* team_stress.c - several teams share one pool and run many short loops at once.
**
** A task marks itself as done and keeps a value in its worker's scratch for a moment. A task that
** is lost or run twice shows up as a wrong mark, two workers with one number as a changed value;
** under the thread sanitizer both are races too. Prints one line and ends with 0 or 1.
*/
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../runtime/team.h"

enum { TEAMS = 3, LOOPS = 400, TASKS = 97 };

typedef struct job {
  tl_team *team;
  int32_t done[TASKS]; /* plain memory: two runs of one task would be a race */
} job;

static void task(void *context, int64_t index, int32_t worker) {
  job *j = context;
  int64_t *kept = tl_team_scratch(j->team, worker);
  *kept = index;
  sched_yield();
  if (*kept == index) j->done[index]++;
}

/* 1 when a loop of `count` tasks ran each of them once. */
static int run_loop(job *j, int64_t count) {
  memset(j->done, 0, sizeof j->done);
  tl_team_for(j->team, count, task, j);
  for (int64_t i = 0; i < TASKS; i++)
    if (j->done[i] != (i < count)) return 0;
  return 1;
}

static int32_t order[TASKS], taken;

static void note(void *context, int64_t index, int32_t worker) {
  (void)context, (void)worker;
  order[taken++] = (int32_t)index;
}

/* NULL when a shuffled team, alone, runs every task once, and not in order. */
static const char *check_shuffle(void) {
  tl_team *team = NULL;
  int moved = 0;
  if (tl_team_open(NULL, &team) != TL_OK) return "no team";
  tl_team_shuffle(team, 1);
  for (int64_t count = 2; count <= TASKS; count++) {
    int32_t seen[TASKS] = {0};
    taken = 0;
    tl_team_for(team, count, note, NULL);
    for (int32_t i = 0; i < taken; i++) seen[order[i]]++, moved += order[i] != i;
    for (int64_t i = 0; i < count; i++)
      if (seen[i] != 1) return "a shuffled task was lost or run twice";
  }
  tl_team_close(team);
  return moved > TASKS * TASKS / 4 ? NULL : "tasks were not shuffled";
}

static void *team_main(void *argument) {
  tl_pool *pool = argument;
  tl_team *team = NULL;
  if (tl_team_open(pool, &team) != TL_OK) return "no team";
  job j = {.team = team};
  int good = 1;
  for (int loop = 0; loop < LOOPS; loop++) good = good && run_loop(&j, loop % (TASKS + 1));
  tl_team_close(team);
  return good ? NULL : "a task was lost, run twice or disturbed";
}

int main(void) {
  pthread_t threads[TEAMS];
  tl_pool *pool = NULL;
  int failed = 0;
  if (tl_pool_open(3, -1, 1, &pool) != TL_OK) {
    printf("%s\n", tl_last_error());
    return 1;
  }
  for (int i = 0; i < TEAMS; i++) pthread_create(&threads[i], NULL, team_main, pool);
  for (int i = 0; i < TEAMS; i++) {
    void *message;
    pthread_join(threads[i], &message);
    if (message != NULL) printf("team %d: %s\n", i, (char *)message), failed = 1;
  }
  tl_pool_close(pool);
  const char *shuffled = check_shuffle();
  if (shuffled != NULL) printf("%s\n", shuffled), failed = 1;
  printf("%d teams, %d loops each: %s\n", TEAMS, LOOPS, failed ? "failed" : "good");
  return failed;
}
