/* A relay whose bytes arrive late, in both directions: a long way between two programs
 * of one machine, where the kernel has no netem. It takes what comes at once, so only
 * the programs' own windows limit what is under way.
 *
 *   delay-relay --to P [--port P] [--ms N]     prints "listening on P"; ends on SIGTERM
 *
 * A byte takes N milliseconds (25), so a round trip twice as many. */
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIECE 65536

/* What was received, and when it is due at the other side. An empty piece is the end. */
typedef struct piece {
  struct piece *next;
  uint64_t due_ns;
  size_t length;
  char bytes[PIECE];
} piece;

/* One direction. The thread that reads appends pieces, the thread that writes takes them. */
typedef struct {
  int from, to;
  pthread_mutex_t lock;
  pthread_cond_t more;
  piece *first, *last;
} direction;

static uint64_t delay_ns;

static void append(direction *d, piece *p) {
  pthread_mutex_lock(&d->lock);
  if (d->last != NULL)
    d->last->next = p;
  else
    d->first = p;
  d->last = p;
  pthread_cond_signal(&d->more);
  pthread_mutex_unlock(&d->lock);
}

static piece *take(direction *d) {
  pthread_mutex_lock(&d->lock);
  while (d->first == NULL)
    pthread_cond_wait(&d->more, &d->lock);
  piece *p = d->first;
  d->first = p->next;
  if (d->first == NULL)
    d->last = NULL;
  pthread_mutex_unlock(&d->lock);
  return p;
}

static void *reading(void *argument) {
  direction *d = argument;
  for (;;) {
    piece *p = malloc(sizeof *p);
    if (p == NULL)
      die("malloc");
    ssize_t got = recv(d->from, p->bytes, PIECE, 0);
    p->next = NULL;
    p->length = got > 0 ? (size_t)got : 0;
    p->due_ns = now_ns() + delay_ns;
    append(d, p);
    if (got <= 0)
      return NULL;
  }
}

static void *writing(void *argument) {
  direction *d = argument;
  for (;;) {
    piece *p = take(d);
    struct timespec due = {.tv_sec = (time_t)(p->due_ns / 1000000000u), .tv_nsec = (long)(p->due_ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
      ;
    for (size_t sent = 0; sent < p->length;) {
      ssize_t n = send(d->to, p->bytes + sent, p->length - sent, MSG_NOSIGNAL);
      if (n < 0) { /* it is gone, so the sender has to go too */
        shutdown(d->from, SHUT_RDWR);
        return NULL;
      }
      sent += (size_t)n;
    }
    if (p->length == 0) {
      shutdown(d->to, SHUT_WR);
      return NULL;
    }
    free(p);
  }
}

static void start(void *(*work)(void *), void *argument) {
  pthread_t thread;
  errno = pthread_create(&thread, NULL, work, argument);
  if (errno != 0)
    die("pthread_create");
  pthread_detach(thread);
}

/* Sockets and memory of a connection stay until the program ends: a benchmark makes few. */
static void relay(int from, int to) {
  direction *d = calloc(1, sizeof *d);
  if (d == NULL)
    die("calloc");
  *d = (direction){.from = from, .to = to, .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};
  start(reading, d);
  start(writing, d);
}

int main(int argc, char **argv) {
  long to = option_long(argc, argv, "to", 0);
  delay_ns = (uint64_t)(1e6 * option_double(argc, argv, "ms", 25));
  errno = 0;
  if (to == 0)
    die("usage: delay-relay --to P [--port P] [--ms N]");
  int listener = peer_listen(argc, argv);
  fcntl(listener, F_SETFL, 0);
  for (;;) {
    int client = accept(listener, NULL, NULL);
    if (client < 0)
      die("accept");
    int server = peer_connect("127.0.0.1", to);
    relay(client, server);
    relay(server, client);
  }
}
