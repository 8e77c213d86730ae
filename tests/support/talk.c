/* talk.c - raw bytes over TCP, many connections at once: talk PORT [options] FILE ...
**
** Sends each FILE to 127.0.0.1:PORT on a connection of its own, all at the same time, and writes
** what comes back until the server closes (or 60 s have passed) to FILE.got. Options hold for the
** files behind them:
**
**   -wait MS     before connecting           -pace N MS   N bytes at a time, MS between them
**   -drop MS     after the last byte: reset the connection after MS, unread; the buffer is small
**   -half        close the sending side after the last byte
**   -tell        say "sent" after the last byte
*/
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TALKS_MAX = 512, SILENCE_MS = 60000 };

typedef struct talk {
  const char *path;
  int port, wait, pace_bytes, pace_ms, drop, half, tell; /* drop: -1 for no */
  int failed;
} talk;

static void sleep_ms(int ms) {
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  nanosleep(&time, NULL);
}

static char *read_file(const char *path, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return NULL;
  *bytes = (size_t)ftell(file);
  rewind(file);
  char *text = malloc(*bytes + 1);
  if (text != NULL && fread(text, 1, *bytes, file) != *bytes) abort();
  fclose(file);
  return text;
}

static int connect_to(int port, int small) {
  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  const int bytes = 4096;
  if (small) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket_, (struct sockaddr *)&address, sizeof address) == 0) return socket_;
  close(socket_);
  return -1;
}

/* A server may answer and close before all has been sent: that is no failure of ours. */
static void send_all(const talk *t, int file, const char *text, size_t bytes) {
  const size_t piece = t->pace_bytes > 0 ? (size_t)t->pace_bytes : bytes;
  for (size_t at = 0; at < bytes;) {
    const size_t count = bytes - at < piece ? bytes - at : piece;
    const ssize_t sent = send(file, text + at, count, MSG_NOSIGNAL);
    if (sent <= 0) return;
    at += (size_t)sent;
    if (t->pace_ms > 0) sleep_ms(t->pace_ms);
  }
}

static void receive_all(int file, FILE *to) {
  char buffer[65536];
  struct pollfd waiting = {.fd = file, .events = POLLIN};
  while (poll(&waiting, 1, SILENCE_MS) > 0) {
    const ssize_t bytes = recv(file, buffer, sizeof buffer, 0);
    if (bytes <= 0) return;
    fwrite(buffer, 1, (size_t)bytes, to);
  }
}

static void *run(void *given) {
  talk *t = given;
  char path[4096];
  size_t bytes = 0;
  char *text = read_file(t->path, &bytes);
  snprintf(path, sizeof path, "%s.got", t->path);
  FILE *to = fopen(path, "wb");
  sleep_ms(t->wait);
  const int file = connect_to(t->port, t->drop >= 0);
  t->failed = text == NULL || to == NULL || file < 0;
  if (!t->failed) {
    send_all(t, file, text, bytes);
    if (t->half) shutdown(file, SHUT_WR);
    if (t->tell && (puts("sent") < 0 || fflush(stdout) != 0)) t->failed = 1;
    if (t->drop >= 0) {
      const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
      sleep_ms(t->drop);
      setsockopt(file, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    } else {
      receive_all(file, to);
    }
  }
  if (file >= 0) close(file);
  if (to != NULL) fclose(to);
  free(text);
  return NULL;
}

int main(int argc, char **argv) {
  static talk talks[TALKS_MAX];
  static pthread_t threads[TALKS_MAX];
  talk now = {.port = argc > 1 ? atoi(argv[1]) : 0, .drop = -1};
  int count = 0, failed = 0;
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], "-wait") == 0 && i + 1 < argc) {
      now.wait = atoi(argv[++i]);
    } else if (strcmp(argv[i], "-drop") == 0 && i + 1 < argc) {
      now.drop = atoi(argv[++i]);
    } else if (strcmp(argv[i], "-pace") == 0 && i + 2 < argc) {
      now.pace_bytes = atoi(argv[i + 1]);
      now.pace_ms = atoi(argv[i + 2]);
      i += 2;
    } else if (strcmp(argv[i], "-half") == 0) {
      now.half = 1;
    } else if (strcmp(argv[i], "-tell") == 0) {
      now.tell = 1;
    } else if (count < TALKS_MAX) {
      now.path = argv[i];
      talks[count++] = now;
    }
  }
  for (int i = 0; i < count; i++)
    if (pthread_create(&threads[i], NULL, run, &talks[i]) != 0) return 1;
  for (int i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
    failed += talks[i].failed;
  }
  if (failed > 0) fprintf(stderr, "talk: %d of %d without a connection\n", failed, count);
  return failed > 0;
}
