/* meet.c - two ranks meet on a port where strangers have dialled first: meet WHO
**
**   silent    more strangers than the hall holds, who say nothing and stay
**   slow      one whose message has begun and does not go on
**   magic     one whose message is right but for its magic
**   size      one whose message says that it has 2^62 bytes
**   world     one who is a rank of a larger run
**   twice     one who says that he is rank 0
**
** Strangers are connected before rank 0 looks, so that the system hands them to it first. Rank 1
** comes when they are there, and both must meet within START_S, which is less than any patience
** with a stranger. Those who say something wrong must have been sent away by then. Prints one line.
*/
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../runtime/job_meet.h"
#include "../../runtime/wire.h"

enum { PLACE = 1024, STRANGERS = 70, START_S = 8, HELLO = 1 };

typedef struct message {
  uint32_t magic;
  int32_t kind;
  int64_t bytes;
  int32_t rank, world;
} message;

static pthread_barrier_t shared;
static char place[PLACE];
static __thread int32_t self;
static const char *who;
static int strangers[STRANGERS], stranger_count;

static void dial(int32_t port, const message *m, size_t bytes) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof a) != 0) exit(2);
  if (bytes > 0 && send(s, m, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) exit(2);
  strangers[stranger_count++] = s;
}

/* What the hall is full of before it opens. */
static void come(int32_t port) {
  message m = {0x6b6c6474, HELLO, 8, 1, 2};
  const int is_silent = strcmp(who, "silent") == 0;
  size_t bytes = sizeof m;
  if (strcmp(who, "slow") == 0) bytes = 20;
  if (strcmp(who, "magic") == 0) m.magic ^= 1;
  if (strcmp(who, "size") == 0) m.bytes = (int64_t)1 << 62;
  if (strcmp(who, "world") == 0) m.world = 3;
  if (strcmp(who, "twice") == 0) m.rank = 0;
  for (int i = 0; i < (is_silent ? STRANGERS : 1); i++) dial(port, &m, is_silent ? 0 : bytes);
}

/* The mover's one word: where rank 0 listens, to all. */
static int share(void *data, int32_t bytes) {
  if (bytes > PLACE) exit(2);
  if (self == 0) {
    int32_t port;
    memcpy(place, data, (size_t)bytes);
    memcpy(&port, place + 512, sizeof port); /* behind the addresses */
    come(port);
  }
  pthread_barrier_wait(&shared);
  memcpy(data, place, (size_t)bytes);
  return 0;
}

static const char *no_error(void) { return "none"; }

typedef struct rank {
  int32_t number;
  int sockets[2];
  tl_status status;
  char message[256];
} rank;

static void *meet(void *given) {
  static const tl_mover mover = {.version = TL_MOVER_VERSION, .share = share, .error = no_error};
  rank *r = given;
  self = r->number;
  const tl_job_meeting m = {.rank = self, .world = 2, .mover = &mover, .start_s = START_S};
  r->status = tl_job_meet(&m, r->sockets);
  if (r->status != TL_OK) snprintf(r->message, sizeof r->message, "%s", tl_last_error());
  return NULL;
}

/* Whether what rank 1 says comes to rank 0. */
static int talk(const rank *ranks) {
  tl_frame frame = {0};
  if (tl_wire_send(ranks[1].sockets[0], 7, "tide", 4) != TL_OK) return 0;
  if (tl_wire_receive(ranks[0].sockets[1], 4, &frame) != TL_OK) return 0;
  const int good = frame.kind == 7 && strcmp(frame.data, "tide") == 0;
  free(frame.data);
  return good;
}

int main(int count, char **words) {
  rank ranks[2] = {{.number = 0}, {.number = 1}};
  pthread_t threads[2];
  who = count > 1 ? words[1] : "silent";
  pthread_barrier_init(&shared, NULL, 2);
  for (int r = 0; r < 2; r++) pthread_create(&threads[r], NULL, meet, &ranks[r]);
  for (int r = 0; r < 2; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < 2; r++)
    if (ranks[r].status != TL_OK) return printf("rank %d: %s\n", r, ranks[r].message), 1;
  if (!talk(ranks)) return printf("they met, and do not talk\n"), 1;
  for (int i = 0; i < stranger_count; i++) {
    char byte;
    if (recv(strangers[i], &byte, 1, 0) > 0) return printf("a stranger was welcomed\n"), 1;
  }
  printf("%d strangers: good\n", stranger_count);
  return 0;
}
