/* The shim of the io_uring back end under sanitizers (scripts/sanitizers): one thread waits and takes completions,
 * others watch and cancel, through a ring of the given number of entries. Every watch of a pipe that is written to is
 * reported once, and none that was cancelled.
 *   uring ROUNDS SEED ENTRIES */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct weft_uring;
int weft_uring_open(unsigned, unsigned, struct weft_uring **);
int weft_uring_watch(struct weft_uring *, int, uint32_t, int, uint64_t), weft_uring_cancel(struct weft_uring *, uint64_t);
int weft_uring_cancel_now(struct weft_uring *, uint64_t, int), weft_uring_submit(struct weft_uring *), weft_uring_state(struct weft_uring *);
int weft_uring_look(struct weft_uring *), weft_uring_wait(struct weft_uring *, int64_t);
int weft_uring_reap(struct weft_uring *, struct io_uring_cqe *, int);
int weft_uring_descriptor(struct weft_uring *), weft_uring_is_forked(struct weft_uring *), weft_uring_is_open(int);
int weft_always_ready(int), weft_uring_present(int, uint32_t);
void weft_uring_close(struct weft_uring *);

enum { THREADS = 3, PIPES = 16, IDLE = 0, WATCHED = 1, REPORTED = 2 };

static struct weft_uring *ring;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static struct {
  int fds[2];
  uint32_t sequence;
  int state;
} pipes[THREADS][PIPES];
static unsigned rounds, wrong;
static int over;
static unsigned long reports, cancels, full, busy;

static void blame(const char *what, long a, long b) {
  fprintf(stderr, "wrong: %s (%ld, %ld)\n", what, a, b);
  __atomic_store_n(&wrong, 1, __ATOMIC_SEQ_CST);
}

static uint64_t name(int t, int p) { return (uint64_t)pipes[t][p].sequence << 32 | (unsigned)(t * PIPES + p); }

/* With the lock, as all that queues. */
static void watch(int t, int p, int multishot) {
  pipes[t][p].sequence++;
  pipes[t][p].state = WATCHED;
  while (weft_uring_watch(ring, pipes[t][p].fds[0], POLLIN, multishot, name(t, p)) == -EAGAIN) full++, weft_uring_submit(ring);
}

static void *ask(void *argument) {
  int t = (int)(uintptr_t)argument;
  unsigned seed = (unsigned)t + 7;
  for (unsigned i = 0; i < rounds && !__atomic_load_n(&wrong, __ATOMIC_SEQ_CST); i++) {
    char c = 'x';
    int n = 1 + rand_r(&seed) % PIPES, what = rand_r(&seed) % 4;
    pthread_mutex_lock(&lock);
    for (int p = 0; p < n; p++) watch(t, p, what == 1);
    pthread_mutex_unlock(&lock);
    if (what == 0) {
      /* Forgotten: from here on nothing is reported. */
      pthread_mutex_lock(&lock);
      while (weft_uring_submit(ring) < 0) continue;
      for (int p = 0; p < n; p++) {
        int r = weft_uring_cancel_now(ring, name(t, p), 100000);
        /* Busy: the thread that submitted the request got no core meanwhile. */
        if (r == -EBUSY) busy++;
        if (r != 0 && r != -EINVAL && r != -EBUSY) blame("cancel_now", r, p);
        if (r != 0)
          while (weft_uring_cancel(ring, name(t, p)) == -EAGAIN) full++, weft_uring_submit(ring);
        pipes[t][p].state = IDLE;
        cancels++;
      }
      pthread_mutex_unlock(&lock);
      continue;
    }
    for (int p = 0; p < n; p++)
      if (write(pipes[t][p].fds[1], &c, 1) != 1) blame("write", errno, p);
    pthread_mutex_lock(&lock);
    weft_uring_submit(ring);
    for (int p = 0; p < n; p++)
      while (pipes[t][p].state == WATCHED) pthread_cond_wait(&told, &lock);
    if (what == 1)
      for (int p = 0; p < n; p++) {
        while (weft_uring_cancel(ring, name(t, p)) == -EAGAIN) full++, weft_uring_submit(ring);
        pipes[t][p].state = IDLE;
        cancels++;
      }
    pthread_mutex_unlock(&lock);
    for (int p = 0; p < n; p++)
      if (read(pipes[t][p].fds[0], &c, 1) != 1) blame("read", errno, p);
  }
  return 0;
}

static void *own(void *argument) {
  (void)argument;
  struct io_uring_cqe some[8];
  while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
    int r = weft_uring_wait(ring, 1000000);
    if (r < 0 && r != -ETIME && r != -EINTR && r != -EBUSY && r != -EAGAIN) blame("wait", r, 0);
    for (int n; (n = weft_uring_reap(ring, some, 8)) > 0;) {
      pthread_mutex_lock(&lock);
      for (int i = 0; i < n; i++) {
        unsigned which = (uint32_t)some[i].user_data;
        if (some[i].user_data == UINT64_MAX) continue;
        int t = (int)which / PIPES, p = (int)which % PIPES;
        if (some[i].user_data != name(t, p) || some[i].res == -ECANCELED) continue;
        if (some[i].res < 0 || !(some[i].res & POLLIN)) blame("a completion", some[i].res, (long)which);
        if (pipes[t][p].state == IDLE) continue;
        pipes[t][p].state = REPORTED;
        reports++;
      }
      pthread_cond_broadcast(&told);
      pthread_mutex_unlock(&lock);
    }
  }
  return 0;
}

int main(int argc, char **argv) {
  pthread_t threads[THREADS], owner;
  rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 5000;
  unsigned entries = argc > 3 ? (unsigned)atoi(argv[3]) : 256;
  int err = weft_uring_open(entries, entries, &ring);
  if (err < 0) {
    printf("no ring: %s\n", strerror(-err));
    return 0;
  }
  for (int t = 0; t < THREADS; t++)
    for (int p = 0; p < PIPES; p++)
      if (pipe(pipes[t][p].fds) < 0) return 2;
  if (weft_uring_is_forked(ring) || weft_uring_is_open(weft_uring_descriptor(ring)) != 0 || weft_uring_is_open(-1) != -EBADF ||
      weft_always_ready(pipes[0][0].fds[0]) != 0 || weft_uring_present(pipes[0][0].fds[1], POLLOUT) != POLLOUT)
    blame("questions", 0, 0);
  pthread_create(&owner, 0, own, 0);
  for (int t = 0; t < THREADS; t++) pthread_create(&threads[t], 0, ask, (void *)(uintptr_t)t);
  for (int t = 0; t < THREADS; t++) pthread_join(threads[t], 0);
  __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
  pthread_join(owner, 0);
  /* Closed with requests in flight. */
  pthread_mutex_lock(&lock);
  for (int p = 0; p < PIPES; p++) watch(0, p, 1);
  pthread_mutex_unlock(&lock);
  weft_uring_look(ring);
  weft_uring_close(ring);
  printf("%lu reports, %lu cancelled, %lu of them busy, the queue was full %lu times\n", reports, cancels, busy, full);
  return (int)wrong;
}
